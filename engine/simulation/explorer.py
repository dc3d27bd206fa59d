"""Every schedule of a small graph, with every single crash point.

A depth-first walk over all states that the world can reach, each visited once. What may happen: everything the world
lists, an epoch (so many), an abort of an open epoch (so many), a crash of everything (so many, during a restore too),
and a probe when nothing else can happen, or earlier (so many).

What makes the walk shorter, and leaves nothing out:

- Receipt on a regular channel is one step with processing. Before it is processed, a batch of a regular channel has no
  effect in its mailbox that it does not have on the wire; a held channel is not read.
- Tasks start at once, reports to the coordinator arrive at once, and so does the news of a complete cut; files are
  written at once where a graph says so. A slow task is one that gets no turn, a late report one before a late append.
- A barrier or END that completes nothing is received at once: it is noted for its channel, and whatever else happens at
  that task before or after leads to the same state. So is one of a back edge: the log has the same content either way.
- A source with one channel acts when that channel is empty: nothing but its own order of acts can be seen of it.
- With a single epoch, its manifest is written at once: while it is not, a crash leads to the beginning.
- A crash takes every task: any death rolls all of them back. What is left on the wires is of an old attempt, and
  dropped. Before the first complete cut a crash leads to the beginning; after it to the same restored run whenever it
  comes, until the next cut is complete. So it is counted everywhere, and followed where a cut completes and during a
  restore; and the files of a cut are forgotten one step later.

In each complete cut every record must be in one place: not yet read, in a log, or done. At the end all are done, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from engine.simulation.cloning import dump, load, mark
from engine.simulation.cuts import check_cut
from engine.simulation.tiny_graphs import TinyGraph
from engine.simulation.world import Happening, Parts, World
from graphs.ids import ChannelId, Epoch
from recovery.errors import ProtocolError
from recovery.messages import Data
from recovery.orders import Complete, StartTasks
from recovery.supervisor import Stage

Story = tuple[Any, Happening] | None
"""The last event, and the story before it."""

Stack = list[tuple[bytes, list[Happening], Story]]


@dataclass
class Position:
    """A state of the walk: the world, what may still be injected, and how it came here."""

    world: World
    left: dict[str, int]
    judged: Epoch
    story: Story = None


@dataclass
class Exploration:
    """What the walk found."""

    graph: str
    states: int = 0
    transitions: int = 0
    crash_points: int = 0
    cuts: int = 0
    cuts_with_log: int = 0
    ends: int = 0
    complete: bool = False
    violations: list[str] = field(default_factory=list[str])


class Explorer:
    """Walks one graph."""

    def __init__(self, graph: TinyGraph, parts: Parts | None = None, states_max: int = 2_000_000) -> None:
        self.graph = graph
        self.parts = parts
        self.states_max = states_max
        self.found = Exploration(graph.name)
        self.seen: set[bytes] = set()

    def run(self, violations_max: int = 1, progress: Callable[[Exploration], None] | None = None) -> Exploration:
        """Visit every state; stops early when so many violations are found, or states visited."""
        world = self.graph.world(self.parts)
        stack: Stack = []
        reported = 0
        self._visit(Position(world, dict(self.graph.bounds), Epoch(0)), stack)
        while stack and self.found.states < self.states_max:
            copy, events, story = stack.pop()
            for event in events:
                world, left, judged = load(copy)
                position = Position(world, left, judged, story)
                self.found.transitions += 1
                try:
                    self._apply(position, event)
                except (ProtocolError, LookupError, ValueError) as error:
                    self._violation(f"{type(error).__name__}: {error}", (story, event))
                else:
                    self._visit(position, stack)
                if len(self.found.violations) >= violations_max:
                    return self.found
            if progress is not None and self.found.states // 10_000 > reported:
                reported = self.found.states // 10_000
                progress(self.found)
        self.found.complete = not stack
        return self.found

    # -- steps ---------------------------------------------------------------------------------------------------

    def _events(self, position: Position) -> Iterator[Happening]:
        world, left = position.world, position.left
        if world.is_over:
            return
        own = [event for event in world.enabled() if self._is_step(world, event)]
        yield from own
        if left["crashes"] and (world.hosts or world.unrestored):
            self.found.crash_points += 1
            if world.record.cuts or (world.unrestored and world.supervisor.cuts):
                yield ("crash",)
        coordinator = world.coordinator
        if coordinator is None:
            return
        if left["epochs"] and coordinator.final is None and all(h.is_started for h in world.hosts.values()):
            yield ("epoch",)
        if left["aborts"]:
            yield from (("abort_epoch", e) for e, cut in coordinator.open.items() if not cut.mode.is_probe)
        if not own or left["early_probes"]:
            yield ("tick",)

    def _is_step(self, world: World, event: Happening) -> bool:
        if event[0] in ("produce", "exhaust", "order"):
            channels = world.deployment.tasks[event[1]].outputs
            is_source = world.deployment.tasks[event[1]].is_source
            return not (is_source and len(channels) == 1 and world.wires.get(channels[0].id))
        if event[0] != "receive" or self._is_logged(world, event):
            return True
        inbox = world.hosts[event[1].receiver].core.inboxes.get(event[1])
        return inbox is None or not inbox.queue

    def _is_logged(self, world: World, event: Happening) -> bool:
        return self.graph.logs_regular or world.deployment.channels[event[1]].is_back

    def _apply(self, position: Position, event: Happening) -> None:
        world, left = position.world, position.left
        position.story = (position.story, event)
        if event != ("crash",) and world.supervisor.stage is Stage.RUNNING:
            world.store.forget_complete(world.supervisor.attempt)
            world.record.cuts.clear()
        match event:
            case ("crash",):
                left["crashes"] -= 1
                world.apply(("crash", (*world.hosts, *world.unrestored)))
                world.wires.clear()
                world.reports.clear()
                world.store.forget_incomplete()
                world.apply(("notice",))
            case ("epoch",):
                left["epochs"] -= 1
                coordinator = self._coordinator(world)
                world.obey(coordinator.request(self.graph.mode, world.now_ms))
            case ("abort_epoch", epoch):
                left["aborts"] -= 1
                coordinator = self._coordinator(world)
                task = next(iter(world.deployment.tasks))
                world.obey(coordinator.on_decline(task, coordinator.attempt, epoch, "explored", world.now_ms))
            case ("tick",):
                if self._own_events(world):
                    left["early_probes"] -= 1
                world.obey(self._coordinator(world).on_tick(world.now_ms))
            case ("receive", channel):
                world.apply(event)
                host = world.hosts[channel.receiver]
                if not self._is_logged(world, event) and channel in host.core.ready():
                    host.take(channel, world)
            case _:
                world.apply(event)
        self._settle(world)

    def _own_events(self, world: World) -> bool:
        return any(self._is_step(world, event) for event in world.enabled())

    def _coordinator(self, world: World) -> Any:
        if world.coordinator is None:
            raise ProtocolError("there is no coordinator")
        return world.coordinator

    def _settle(self, world: World) -> None:
        """Let happen at once what is no step of its own."""
        while not world.is_over:
            event = next((event for event in world.enabled() if self._is_at_once(world, event)), None)
            if event is None:
                return
            world.apply(event)

    def _is_at_once(self, world: World, event: Happening) -> bool:
        match event:
            case ("report" | "encode", *_):
                return True
            case ("restore", _):
                return self.graph.bounds["crashes"] < 2
            case ("order", task):
                return isinstance(world.hosts[task].orders[0], StartTasks | Complete)
            case ("write", *_):
                return self.graph.writes_at_once
            case ("append",):
                return self.graph.bounds["epochs"] < 2
            case ("receive", channel):
                return not self.graph.logs_regular and self._changes_nothing_else(world, channel)
            case _:
                return False

    def _changes_nothing_else(self, world: World, channel: ChannelId) -> bool:
        core = world.hosts[channel.receiver].core
        inbox = core.inboxes.get(channel)
        if inbox is None or core.rounds is not None or isinstance(world.wires[channel][0][1], Data):
            return False
        if inbox.is_back:
            return True
        others = [i for i in core.inboxes.values() if not i.is_back and not i.ended and i is not inbox]
        return not inbox.queue and any(other.id not in core.alignment.held for other in others)

    # -- judgement -----------------------------------------------------------------------------------------------

    def _visit(self, position: Position, stack: Stack) -> None:
        world = position.world
        unjudged = sorted(epoch for epoch in world.record.cuts if epoch > position.judged)
        position.judged = max(position.judged, *unjudged, Epoch(0))
        place = mark(world, (position.left, position.judged))
        if place in self.seen:
            return
        self.seen.add(place)
        self.found.states += 1
        for epoch in unjudged:
            self._judge_cut(world, epoch, position.story)
        if world.is_over:
            self._judge_end(world, position.story)
            return
        events = list(self._events(position))
        if not self._own_events(world) and self._is_stuck(position):
            self._violation("nothing can happen any more, and the run is not finished", position.story)
            return
        stack.append((dump((world, position.left, position.judged)), events, position.story))

    def _is_stuck(self, position: Position) -> bool:
        world = load(dump(position.world))
        if world.coordinator is None:
            return True
        world.obey(world.coordinator.on_tick(world.now_ms))
        self._settle(world)
        return not self._own_events(world) and not world.is_over

    def _judge_cut(self, world: World, epoch: Epoch, story: Story) -> None:
        cut = world.record.cuts[epoch]
        self.found.cuts += 1
        self.found.cuts_with_log += any(record.log for s in cut.snapshots.values() for record in s.inputs)
        for violation in check_cut(cut, world.record.deployments[cut.attempt]):
            self._violation(str(violation), story)
        is_final = world.coordinator is not None and world.coordinator.final == epoch
        wrong = self.graph.wrong_in(cut) or (self.graph.unfinished_in(cut) if is_final else "")
        if wrong:
            self._violation(f"epoch {epoch}: {wrong}", story)

    def _judge_end(self, world: World, story: Story) -> None:
        self.found.ends += 1
        if not world.is_finished:
            self._violation(f"the run failed: {world.failure}", story)

    def _violation(self, what: str, story: Story) -> None:
        events: list[Happening] = []
        while story is not None:
            story, event = story
            events.append(event)
        steps = [f"  {number:3} {' '.join(map(str, event))}" for number, event in enumerate(reversed(events), 1)]
        self.found.violations.append("\n".join([f"{self.graph.name}: {what}", *steps]))

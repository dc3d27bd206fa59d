"""Every schedule of a small graph, with every single crash point.

A depth-first walk over all states that the world can reach, each visited once. Possible events: everything that the
world lists; a limited number each of epochs, aborts of open epochs, and crashes of everything, even during a restore;
and a probe when nothing else can happen, or a limited number earlier. The world is partitioned (`explored_places.py`),
so most steps are lookups.

The walk is shortened as follows, without leaving anything out:

- Receiving a batch on a regular channel is one step with processing it. An unprocessed batch has the same effect in the
  mailbox as on the wire; a held channel is not read.
- Tasks start at once, reports reach the coordinator at once, and so does the news of a complete cut; files are written
  at once if the graph says so. A slow task is equivalent to one that gets no turn, a late report to a late append.
- Credit reaches its sender at once, except in the graph about credit that is late or lost. Late credit for a regular
  channel is equivalent to a sender that gets no turn; for a back edge, whose sender goes on, to items that are late
  themselves.
- A barrier or END that completes nothing is received at once: it is noted for its channel, and other events at that
  task lead to the same state before or after it. The same holds for a barrier of a back edge, because the log has the
  same content either way. It does not hold for an END that makes a difference: on a back edge, because its head may be
  told to end before or after it; and in an iteration, where it stands for a marker.
- A source with one channel acts when that channel is empty: only the order of its own actions is visible.
- If other tasks cannot change the steps of a task, those go first (`explored_alone.py`).
- With a single epoch, its manifest is written at once: before that, a crash leads to the beginning.
- A crash takes every task, because any death rolls all of them back. Items left on the wires belong to an old attempt
  and are dropped. Before the first complete cut, a crash leads to the beginning; afterwards, until the next cut is
  complete, it leads to the same restored run. So crashes are counted everywhere, but followed only where a cut
  completes and during a restore; the files of a cut are removed one step later.

In each complete cut every record must be in one place: not yet read, in a log, or done. At the end all are done, once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from backedge.engine.simulation.checker.cut_checks import check_cut
from backedge.engine.simulation.world.world import Happening
from backedge.engine.simulation.world.world_options import Parts
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.credit import Credit
from proof.explored_alone import Alone
from proof.explored_centre import Centres
from proof.explored_places import DATA, Numbers, Place, Places, Wires
from proof.explored_steps import Left, RefusedError, State, Step
from proof.tiny_graphs import TinyGraph

NO_CREDIT = Credit(0, 0, 0)
"""What a sender knows that has not started."""

Story = tuple[Any, Happening] | None
"""The last event, and the story before it."""


@dataclass
class Exploration:
    """The findings of the walk.

    - exercised: what its steps did to channels: batches that were split, for example. Equal steps are counted once.
    """

    graph: str
    states: int = 0
    transitions: int = 0
    crash_points: int = 0
    cuts: int = 0
    cuts_with_log: int = 0
    ends: int = 0
    complete: bool = False
    exercised: dict[str, int] = field(default_factory=dict[str, int])
    violations: list[str] = field(default_factory=list[str])


class Explorer:
    """Walks one graph."""

    def __init__(
        self, graph: TinyGraph, parts: Parts | None = None, states_max: int = 100_000_000, reduced: bool = True
    ) -> None:
        self.graph = graph
        self.states_max = states_max
        self.found = Exploration(graph.name)
        self.seen: set[bytes] = set()
        self.world = graph.world(parts)
        self.wires = Wires()
        self.places = Places(graph, graph.world(parts), self.wires)
        self.centres = Centres(graph, self.places)
        self.alone = Alone(graph, self.places, self.centres) if reduced else None
        self.credit_numbers = Numbers()
        self.judged: dict[int, tuple[Cut, list[str], bool]] = {}

    def run(self) -> Exploration:
        """Visit every state; stop early after a violation, or after the limit of states."""
        bare, channels = (self.places.bare,) * len(self.places.tasks), len(self.places.channels)
        start = State(
            bare, (0,) * channels, ((),) * channels, self.centres.number(self.world), Left(**self.graph.bounds)
        )
        stack: list[tuple[State, list[Happening], Story]] = []
        self._visit(start, (), None, stack)
        while stack and self.found.states < self.states_max:
            state, events, story = stack.pop()
            for event in events:
                self.found.transitions += 1
                step = Step(self.graph, self.places, self.centres, state)
                try:
                    after = step.take(event)
                except RefusedError as refused:
                    self._violation(str(refused), (story, event))
                else:
                    self._visit(after, step.cuts, (story, event), stack)
                if self.found.violations:
                    return self.found
        self.found.complete = not stack
        self.found.exercised = dict(sorted((+self.places.scene.counts).items()))
        return self.found

    # -- what can happen -----------------------------------------------------------------------------------------

    def _steps(self, state: State) -> list[Happening]:
        """The events of the world itself."""
        centre = self.centres.met[state.centre]
        if centre.is_over:
            return []
        met, wires = self.places.met, state.wires
        steps: list[Happening] = [("append",)] if centre.has_append else []
        steps += [("restore", task) for task in centre.unrestored]
        steps += [
            ("receive", self.places.channels[channel])
            for channel, queue in enumerate(wires)
            if queue and self._may_receive(channel, queue, met[state.places[self.places.receivers[channel]]])
        ]
        for place in state.places:
            steps += [event for event, gate in met[place].steps if gate < 0 or not wires[gate]]
        if self.graph.late_credit:
            steps += self._steps_of_credit(state)
        return steps

    def _steps_of_credit(self, state: State) -> Iterator[Happening]:
        for channel, waiting in enumerate(state.credits):
            id = self.places.channels[channel]
            if self.places.met[state.places[self.places.senders[channel]]].is_started:
                yield from (("credit", id, position) for position in range(len(waiting)))
            if not waiting and self._is_unheard(state, channel):
                yield ("repeat_credit", id)

    def _is_unheard(self, state: State, channel: int) -> bool:
        """Whether a repetition would be news to the sender. One that is none changes nothing."""
        receiver = state.places[self.places.receivers[channel]]
        granted = self.places.met[receiver].granted.get(channel)
        known = self.places.met[state.places[self.places.senders[channel]]].known.get(channel)
        if granted is None or known is None or (granted[1], granted[0].window) == (known.consumed, known.window):
            return False
        return bool(self.places.act(receiver, ("repeat_credit", self.places.channels[channel])).credited)

    def _may_receive(self, channel: int, queue: int, place: Place) -> bool:
        """Whether to receive the next item. A full task would not process a batch, and that is a part of this step."""
        if channel not in place.reads:
            return False
        return not place.is_full or self.places.is_logged[channel] or self.wires.fronts[queue] != DATA

    def _injected(self, state: State, *, is_quiet: bool) -> list[Happening]:
        """The events that the walk injects."""
        centre, left = self.centres.met[state.centre], state.left
        found: list[Happening] = []
        if centre.is_over:
            return found
        if left.lost_credits:
            for channel, waiting in zip(self.places.channels, state.credits, strict=True):
                found += [("lose_credit", channel, position) for position in range(len(waiting))]
        if left.crashes and centre.may_crash:
            self.found.crash_points += 1
            if centre.is_fresh:
                found.append(("crash",))
        if not centre.has_coordinator:
            return found
        if left.epochs and centre.may_begin and all(self.places.met[p].is_started for p in state.places):
            found.append(("epoch",))
        if left.aborts:
            found += [("abort_epoch", epoch) for epoch in centre.open]
        if is_quiet:
            found.append(("tick",))
        elif left.early_probes:
            found.append(("early_tick",))
        return found

    # -- judgement -----------------------------------------------------------------------------------------------

    def _visit(self, state: State, cuts: Any, story: Story, stack: list[tuple[State, list[Happening], Story]]) -> None:
        met = self.places.met
        parts = [met[place].essence for place in state.places]
        parts += [self.wires.essences[queue] for queue in state.wires]
        if self.graph.late_credit:
            parts.append(self.credit_numbers.of(self._credit_in_transit(state)))
        mark = array("I", (*parts, self.centres.met[state.centre].essence, *state.left)).tobytes()
        if mark in self.seen:
            return
        self.seen.add(mark)
        self.found.states += 1
        for cut in cuts:
            self._judge_cut(state, cut, story)
        centre = self.centres.met[state.centre]
        if centre.is_over:
            self.found.ends += 1
            if not centre.is_finished:
                self._violation(f"the run failed: {centre.failure}", story)
            return
        steps = self._steps(state)
        if len(steps) > 1 and self.alone is not None:
            steps = self.alone.steps(state) or steps
        if not steps and self._is_stuck(state):
            self._violation("nothing can happen any more, and the run is not finished", story)
            return
        stack.append((state, steps + self._injected(state, is_quiet=not steps), story))

    def _credit_in_transit(self, state: State) -> tuple[Any, ...]:
        """How far what was sent, and what is in transit, is ahead of what the senders know."""
        found: list[tuple[Any, ...]] = []
        for channel, waiting in enumerate(state.credits):
            granted = self.places.met[state.places[self.places.receivers[channel]]].granted.get(channel)
            known = self.places.met[state.places[self.places.senders[channel]]].known.get(channel, NO_CREDIT)
            sent = waiting if granted is None else (granted[0], *waiting)
            found.append(tuple((c.number - known.number, c.consumed - known.consumed, c.window) for c in sent))
        return tuple(found)

    def _is_stuck(self, state: State) -> bool:
        if not self.centres.met[state.centre].has_coordinator or not state.left.ticks:
            return True  # otherwise probes would find for ever that records wait in a loop
        after = Step(self.graph, self.places, self.centres, state).take(("tick",))
        return not self._steps(after) and not self.centres.met[after.centre].is_over

    def _judge_cut(self, state: State, cut: Cut, story: Story) -> None:
        self.found.cuts += 1
        if id(cut) not in self.judged:
            wrong = [str(violation) for violation in check_cut(cut, self.places.scene.deployment)]
            is_final = self.centres.met[state.centre].final == cut.epoch
            misplaced = self.graph.wrong_in(cut) or (self.graph.unfinished_in(cut) if is_final else "")
            wrong += [f"epoch {cut.epoch}: {misplaced}"] if misplaced else []
            has_log = any(record.log for s in cut.snapshots.values() for record in s.inputs)
            self.judged[id(cut)] = (cut, wrong, has_log)
        _, wrong, has_log = self.judged[id(cut)]
        self.found.cuts_with_log += has_log
        for violation in wrong:
            self._violation(violation, story)

    def _violation(self, what: str, story: Story) -> None:
        self.found.violations.append(f"{self.graph.name}: {what}\n{told(story)}")


def told(story: Story) -> str:
    """The events of a story, one a line."""
    events: list[Happening] = []
    while story is not None:
        story, event = story
        events.append(event)
    return "\n".join(f"  {number:3} {' '.join(map(str, event))}" for number, event in enumerate(reversed(events), 1))

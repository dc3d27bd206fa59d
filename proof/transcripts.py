"""Transcripts: short runs in which one thing happens, printed event by event, always in the same order.

They show how the parts of the protocol follow on one another. `python -m proof transcript NAME` prints one, and the
files in tests/simulation/transcripts/ have all of them: a test compares.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from backedge import Collect, Flow, Items
from backedge.engine.io.later_output import LaterOutput
from backedge.engine.simulation.checker.record import (
    Aborted,
    Barriered,
    Captured,
    Committed,
    Completed,
    EndSent,
    Event,
    Finished,
    Restored,
    Sent,
    Started,
    Took,
)
from backedge.engine.simulation.world.world import Happening, World
from backedge.engine.simulation.world.world_options import Parts, WorldOptions
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Entry, Manifest
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.snapshot_options import SnapshotOptions

STEPS_MAX = 1_000
TICK_STEPS = 8
"""One event in this number is that time passes."""
Tried = tuple[int, int]
"""A number, and how often it was tried."""


class Told(World):
    """A world that keeps what happens in it as lines, and lets it happen in a fixed order: what waited longest is next.

    `held` are kinds of events, with their task or channel, that do not happen until a script lets them.
    """

    def __init__(self, **snapshots: Any) -> None:
        self.lines: list[str] = []
        self.held: set[Happening] = set()
        self._last: defaultdict[Happening, int] = defaultdict(int)
        options = SnapshotOptions(Mode.ALIGNED, **{"interval_ms": 20, "timeout_ms": 10**6, "keep": 2, **snapshots})
        super().__init__(
            tries().plan(), {"numbers": [1, 2, 3]}, WorldOptions(snapshots=options, records_max=1), Parts()
        )

    def run(self, script: Callable[[Told], Iterator[None]]) -> str:
        """Run to the end, with what a script does between the events, and return the lines."""
        turns = script(self)
        for step in range(1, STEPS_MAX):
            if self.is_over:
                return "".join(f"{line}\n" for line in self.lines)
            next(turns, None)
            events = [event for event in self.enabled() if event[:2] not in self.held] if step % TICK_STEPS else []
            event = min(events, key=lambda each: self._last[each[:2]]) if events else ("tick",)
            self._last[event[:2]] = step
            self.apply(event)
        raise RuntimeError(f"the run has not ended after {STEPS_MAX} events:\n" + "\n".join(self.lines))

    def does(self, told: str, *event: Any) -> None:
        """Have something happen that no schedule would choose."""
        self.lines.append(f"-- {told}")
        if event:
            self.apply(event)

    def note(self, event: Event) -> None:
        super().note(event)
        if (line := line_of(event)) is not None:
            self.lines.append(line)

    def create(self, number: int, entry: Entry, files: Mapping[TaskId, Any], deployment: Deployment) -> bool:
        place = len(self.lines)
        created = super().create(number, entry, files, deployment)
        told = f"{number}: {_entry(entry)}{self._in_flight(entry)}" if created else f"{number} is not {_entry(entry)}"
        self.lines.insert(place, f"chain {told}")
        return created

    def _in_flight(self, entry: Entry) -> str:
        """Which batches a cut that is complete has logged."""
        cut = self.record.cuts.get(entry.epoch) if isinstance(entry, Manifest) else None
        records = [] if cut is None else [record for of in cut.snapshots.values() for record in of.inputs if record.log]
        return "".join(f"; in flight: {len(r.log)} of {_sender(r.channel)} to {r.channel.receiver}" for r in records)

    def replace(self, later: LaterOutput) -> None:
        super().replace(later)
        self.lines.append(f"what was published after cut {later.epoch} is removed")


def tries() -> Flow:
    """Numbers that are tried until they have been tried twice. The head of the loop counts in its state."""

    def begin(number: int) -> Tried:
        return number, 0

    def number_of(tried: Tried) -> int:
        return tried[0]

    def count(tries: int, tried: Tried) -> tuple[int, Tried]:
        return tries + 1, (tried[0], tries + 1)

    def is_enough(tried: Tried) -> bool:
        return tried[1] == 2

    flow = Flow("tries")
    again = flow.loop("again", max_rounds=9)
    numbers = flow.read(Items(list[int]()), name="numbers").map(begin, name="begin")
    tried = numbers.merge(again).key_by(number_of).stateful_map(count, initial=0, name="try")
    done, rest = tried.rebalance().split(is_enough, name="judge")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow


def line_of(event: Event) -> str | None:
    """An event as a line; None if it says nothing that others do not say."""
    match event:
        case Started(attempt, None):
            return f"attempt {attempt} begins from nothing"
        case Started(attempt, epoch):
            return f"attempt {attempt} begins from cut {epoch}"
        case Restored(_, task, restore):
            logs = () if restore is None else restore.logs
            batches = sum(len(log.payloads) for log in logs)
            return f"  {task} is restored" + (f", with {batches} logged batches" if batches else "")
        case Sent(_, task, channel, seq):
            return f"  {task} sends batch {seq} to {channel.receiver}"
        case Took(_, task, channel, seq):
            return f"  {task} takes batch {seq} of {_sender(channel)}"
        case Barriered(_, task, channel, epoch, mode):
            return f"  {task} sends {'probe' if mode.is_probe else 'barrier'} {epoch} to {channel.receiver}"
        case EndSent(_, task, channel):
            return f"  {task} sends END to {channel.receiver}"
        case Captured(_, task, None):
            return f"  {task} captures its last state"
        case Captured(_, task, epoch):
            return f"  {task} captures epoch {epoch}"
        case Completed(_, epoch):
            return f"cut {epoch} is complete"
        case Aborted(_, epoch):
            return f"  a task learns that epoch {epoch} is given up"
        case Committed(_, task, names) if names:
            return f"  {task} publishes {', '.join(names)}"
        case Finished():
            return "the run is finished"
        case _:
            return None


def _sender(channel: ChannelId) -> str:
    return "a restored log" if channel.restored else str(channel.sender)


def _entry(entry: Entry) -> str:
    if isinstance(entry, AttemptStart):
        sizes = "".join(f", with {count} tasks of {name}" for name, count in entry.sizes if count > 1)
        replaces = "" if entry.replaces is None else f", and replaces what was published after cut {entry.replaces}"
        start = "nothing" if entry.restored is None else f"cut {entry.restored}"
        return f"attempt {entry.attempt} from {start}{sizes}{replaces}"
    states = {task: [file.epoch for file in files] for task, files in entry.states.items() if len(files) > 1}
    files = "".join(f"; state of {task} in the files of {', '.join(map(str, of))}" for task, of in states.items())
    return f"cut {entry.epoch} of attempt {entry.attempt}{files}"


# -- what happens in the runs --------------------------------------------------------------------------------------


def _takeover(run: Told) -> Iterator[None]:
    while not (run.record.cuts and run.pending is not None):
        yield
    run.does("a supervisor that is about to note its second cut is taken for dead", "stop_coordinator")
    while len(run.record.cuts) < 2:
        yield
    run.does("the former supervisor wakes up, and goes on with what it knows", "wake_coordinator", False)


def _rescale(run: Told) -> Iterator[None]:
    while not run.record.cuts:
        yield
    run.does("the run is asked for two tasks of try")
    run.ask(Request("a client's", RequestKind.RESCALE, None, Mode.ALIGNED, (("try", 2),)))


def _replaced_output(run: Told) -> Iterator[None]:
    while not any("publishes" in line for line in run.lines):
        yield
    first = min(run.record.cuts)
    run.does(f"another run begins from cut {first}, and replaces what was published after it", "replace", first, False)


def _overtaking(run: Told) -> Iterator[None]:
    run.does("judge takes nothing")
    run.held.add(("take", TaskId("judge", 0)))
    while not run.record.cuts:
        yield
    run.does("judge goes on")
    run.held.clear()


def _deltas(run: Told) -> Iterator[None]:
    while len(run.record.cuts) < 3:
        yield
    run.does("try/0 dies", "crash", (TaskId("try", 0),))
    run.apply(("notice",))


SCRIPTS: dict[str, tuple[Callable[[Told], Iterator[None]], dict[str, int]]] = {
    "takeover": (_takeover, {}),
    "rescale": (_rescale, {}),
    "replaced_output": (_replaced_output, {}),
    "overtaking": (_overtaking, {"patience_ms": 0}),
    "deltas": (_deltas, {"files_max": 4, "interval_ms": 10}),
}
"""The name of each transcript, what is done to its run, and how the run takes cuts."""


def transcript(name: str) -> str:
    script, snapshots = SCRIPTS[name]
    return Told(**snapshots).run(script)

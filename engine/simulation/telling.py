"""Describes a simulated run in sentences, for the user of a flow: its steps, and its turning points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from backedge.engine.cut_view import CutView
from backedge.engine.simulation.checker.record import Aborted, Completed, Event, Finished, Started
from backedge.engine.simulation.world.lossy_lines import LinedWorld
from backedge.engine.simulation.world.world import Happening
from backedge.graphs.ids import Epoch, TaskId
from backedge.graphs.plan import Plan
from backedge.recovery.cut.cut import Cut
from backedge.recovery.restore.outline import outline_of
from backedge.recovery.restore.restore_task import SnapshotsInMemory

_TURNS = {
    "decline": "{0} declines {1}",
    "go_back": "another run takes over, from cut {0}",
    "hang_append": "the next entry of the job's chain is delayed, and no reply arrives",
    "lose_append_reply": "the next entry of the job's chain is written, but the reply is lost",
    "fail_in_vain": "the run fails for good before a task of it has run, and another one continues",
    "fail_append": "the disk is full: the next entry of the job's chain cannot be written",
    "fail_write": "the disk is full: {0} cannot write its snapshot of {1}",
    "kill_coordinator": "the coordinator dies",
    "line": "{0} for or of {1} is {2} in transit",
    "lose_report": "a report to the coordinator is lost",
    "replace": "another run takes over, from cut {0}, and removes what was published after it",
    "savepoint": "a savepoint is requested",
    "stop_coordinator": "the coordinator is stopped, and taken for dead",
    "stop": "a stop with a savepoint is requested",
    "unreadable": "{0} cannot be read for a moment",
    "unrestorable": "a function of the user's raises where a rescale divides state",
    "transport": "the network {0}s a batch of {1}",
    "wake_coordinator": "the coordinator that was taken for dead goes on",
}
"""What changes the course of a run, and the sentence for it."""

_STEPS = {
    **_TURNS,
    "abort": "{0} learns that an epoch was given up",
    "answer": "a call of {0} is answered",
    "answered": "a call of {0} is answered, and its answer is kept",
    "append": "the next entry of the job's chain is written",
    "call": "{0} calls outside, or sends an answer that was kept",
    "compact": "files of a cut are put into one",
    "compacted": "the coordinator hears of a file that replaces others",
    "credit": "{0} may send more",
    "encode": "{0} encodes a part of its snapshot of {1}",
    "exhaust": "{0} has read everything",
    "fail_compaction": "files of a cut cannot be put into one",
    "land": "a delayed entry of the chain arrives",
    "lose_compaction": "a process dies after it has put files of a cut into one",
    "lose_credit": "a message is lost, by which {0} may send more",
    "outlived": "a call is answered whose attempt is over",
    "part": "{0} processes a part of a batch of {1}",
    "patience": "{0} waits no longer for the barriers of a cut",
    "read_chain": "the job's chain is read again",
    "remove": "dead files and output are removed",
    "found": "it is discovered: {0}",
    "notice": "the death is noticed",
    "order": "{0} gets an order of the coordinator",
    "produce": "{0} reads a batch",
    "receive": "{0} delivers its next item",
    "report": "a report reaches the coordinator",
    "restore": "{0} restores its state",
    "take": "{0} processes a batch of {1}",
    "tick": "10 ms pass",
    "timer": "a timer of {0} fires",
    "together": "{0} processes batches of {1} as one",
    "turn": "{0} has a turn, as on a cluster",
    "window": "a receiver changes how much {0} may send",
    "withdraw": "a manifest is removed that the chain does not name",
    "woken": "it takes a step in the store",
    "write": "{0} writes its snapshot of {1}",
    "write_answers": "the answers that {0} has are kept",
    "zombie": "a task presumed dead goes on: {1}",
}
_DEATHS = frozenset({"crash", "kill_coordinator", "stop_coordinator"})


class ToldWorld(LinedWorld):
    """A world that records the turning points of the run in the story of its schedule: attempts, cuts, the end."""

    story: list[Happening]

    def note(self, event: Event) -> None:
        """Keep the trace, and the turns in the story too."""
        super().note(event)
        is_turn = isinstance(event, Started | Completed | Aborted | Finished)
        # Every task is told of an abort; the story mentions it once.
        if is_turn and event.attempt >= self.claimed and self.story[-1:] != [event]:
            self.story.append(event)


def tell_steps(story: Sequence[Happening], plan: Plan, cuts: Mapping[Epoch, Cut]) -> list[str]:
    """Every step of a stretch of the story, a line each."""
    return [_step(happening, plan, cuts) for happening in story]


def tell_turns(
    story: Iterable[Happening], plan: Plan, cuts: Mapping[Epoch, Cut], turns_max: int | None = None
) -> list[str]:
    """What the run comes to: faults, attempts, cuts with what is in the loops, the end.

    `turns_max`: only the last ones, and of those before them only deaths and attempts.
    """
    turns = [h for h in story if isinstance(h, Event) or h[0] in _TURNS or h[0] in _DEATHS]
    early = 0 if turns_max is None else max(0, len(turns) - turns_max)
    kept = [h for h in turns[:early] if isinstance(h, Started) or h[0] in _DEATHS]
    return [_step(h, plan, cuts) for h in kept + turns[early:]]


def _step(happening: Happening, plan: Plan, cuts: Mapping[Epoch, Cut]) -> str:
    match happening:
        case Started(attempt, epoch):
            if epoch is None:
                return f"attempt {attempt} begins from nothing"
            return f"attempt {attempt} begins from cut {epoch}{_in_loops(', which replays', cuts[epoch], plan)}"
        case Completed(_, epoch):
            return f"cut {epoch} is complete{_in_loops(', with records in flight:', cuts[epoch], plan)}"
        case Aborted(_, epoch):
            return f"epoch {epoch} is given up"
        case Finished():
            return "the run is finished"
        case ("crash", tasks):
            return f"{' and '.join(map(str, tasks))} {'dies' if len(tasks) == 1 else 'die'}"
        case (name, *rest):
            return _STEPS[name].format(*map(_named, rest))
        case _:
            raise TypeError(f"{happening} is no part of a story")


def _named(what: Any) -> str:
    if isinstance(what, TaskId):
        return str(what)
    if isinstance(what, int):
        return f"epoch {what}"
    if what is None:
        return "its last state"
    return " ".join(map(str, cast(Happening, what))) if type(what) is tuple else str(what)


def records_in_loops(cut: Cut, plan: Plan) -> Counter[str]:
    """How many records a cut holds of each loop that is not empty."""
    view = CutView(outline_of(cut), SnapshotsInMemory(cut.snapshots), plan, {}, {})
    loops = {edge.loop for edge in plan.edges if edge.loop is not None}
    return +Counter({loop: len(view.in_loop(loop)) for loop in sorted(loops)})


def _in_loops(words: str, cut: Cut, plan: Plan) -> str:
    found = [f"{count} in loop {loop!r}" for loop, count in records_in_loops(cut, plan).items()]
    return f"{words} {', '.join(found)}" if found else ""

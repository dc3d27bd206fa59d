"""Walks every schedule of calls whose answers are kept: one task that calls, its process, its cuts and its journal.

The journal outlives attempts, so the shortcuts of `explorer.py` do not hold: at every point the process dies, survives
the end of its attempt, or is left behind and goes on, and the run goes back to an older cut. Everything else is left
out: a capture is one step, and so is a restore. Each state is visited once.

- Records come in any order. Equal ones have no other names, so they come in one.
- A captured epoch may become complete at any time in its attempt. Earlier ones are abandoned by that.
- A call that outlives its attempt ends, and the task looks at its answer later. A question that comes before joins it.
- Answers are written in one group. The task hears of it later.
- A process that is lost is dead, or it goes on: then each answer that it has, or gets, is written before any later
  restore, or never. Nothing else that it does counts, and no attempt sees this but at a restore.
- A segment that no restore reads is removed at once. Later would make no difference.
- In the last attempt nothing is captured. Nothing would read it.

Checked: an answer is sent to the record that asked its question, and once in each history. No call begins whose answer
was sent, is known to the process, or is durable: written by the current attempt or read by a restore, in a segment that
every cut reads. When nothing is left to do, each record has its answer, and no answer is spare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from types import MappingProxyType
from typing import Any, NamedTuple

from backedge.engine.operators.runtime import KeptAnswer
from backedge.engine.simulation.world.world_options import Parts
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.answers import Question
from proof.explored_callers import Caller, Cut, Event, Process, Rules, restored
from proof.explorer import Exploration, Story, told

FORGOTTEN = "answers that are kept, and questions forgotten"
ANSWER_WALKS: Mapping[str, Mapping[str, int]] = {
    "answers that are kept": {"equal_records": 2, "epochs": 3, "restarts": 2, "go_backs": 1},
    "answers that are kept, back and forth": {"equal_records": 2, "epochs": 2, "restarts": 3, "go_backs": 2},
    "answers that are kept, another question": {"equal_records": 2, "others": 1, "epochs": 2, "restarts": 1},
    FORGOTTEN: {"equal_records": 2, "epochs": 2, "restarts": 2, "go_backs": 1},
}
"""What is walked, and how often each of it may happen."""
RETENTION = 2
FAULTS = ("epochs", "restarts", "go_backs")
EPOCHS, RESTARTS, GO_BACKS = range(3)


class Scene(NamedTuple):
    """One state. What it consists of has numbers, by which states are compared.

    - live: the process of the attempt. late: what processes that were left behind may still write.
    - journal: what is durable. paid: the questions for which no call may begin.
    - cuts: those that may be restored. captured: the epochs of this attempt that are not complete.
    - next_epoch: of this attempt. highest: the latest complete cut. continues: what the next attempt restores, unless
      it goes back. left: how often each of `FAULTS` may still happen.
    """

    live: int
    late: int
    journal: int
    paid: int
    left: tuple[int, ...]
    cuts: tuple[int, ...] = ()
    captured: tuple[int, ...] = ()
    next_epoch: int = 0
    highest: int = 0
    continues: int = 0


class Act(NamedTuple):
    """A step of a task by itself: the process after it, and the questions whose answers it sends."""

    event: Event
    after: int
    sent: frozenset[Question]
    begun: Question | None
    joins: bool
    wrong: str


class Step(NamedTuple):
    """A step of the walk. `begun`: the question whose call begins. did: what is counted."""

    event: Event
    after: Scene
    wrong: str = ""
    begun: Question | None = None
    did: str = ""


class Walk:
    """Visits every state of a walk, until something is wrong.

    - numbers, things: what states consist of, and the number of each.
    - acts: what each process may do by itself. changed: each restore and each capture of a process.
    """

    def __init__(self, name: str, bounds: Mapping[str, int], rules: Rules) -> None:
        self.rules = rules
        self.segments = rules.segments()
        self.found = Exploration(name)
        self.counts = Counter(calls=0, calls_joined=0, calls_again=0, answers_read=0, answers_spare=0)
        self.numbers: dict[Any, int] = {}
        self.things: list[Any] = []
        self.acts: dict[int, list[Act]] = {}
        self.changed: dict[Any, int] = {}
        self.beginning, none = self._number(Cut()), self._number(frozenset())
        left = tuple(bounds.get(what, 0) for what in FAULTS)
        self.start = Scene(self._restored(self.beginning, none, 0, None), none, none, none, left, next_epoch=1)

    def run(self) -> Exploration:
        found, seen = self.found, {self.start}
        stack: list[tuple[Scene, frozenset[Question], Story]] = [(self.start, frozenset(), None)]
        while stack:
            scene, called, story = stack.pop()
            found.states += 1
            for event, after, wrong, begun, did in self._steps(scene):
                found.transitions += 1
                if wrong:
                    found.violations.append(f"{found.graph}: {wrong}\n{told((story, event))}")
                    return found
                if after in seen:
                    continue
                seen.add(after)
                if begun is not None:
                    did = "calls_again" if begun in called else "calls"
                self.counts[did] += did != ""
                stack.append((after, called if begun is None else called | {begun}, (story, event)))
        found.complete = True
        found.exercised = {what: count for what, count in self.counts.items() if what}
        return found

    def _number(self, thing: Any) -> int:
        number = self.numbers.setdefault(thing, len(self.things))
        if number == len(self.things):
            self.things.append(thing)
        return number

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _steps(self, scene: Scene) -> Iterator[Step]:
        live: Process = self.things[scene.live]
        paid: frozenset[Question] = self.things[scene.paid]
        acts = self._acts_of(scene.live)
        for event, number, sent, begun, joins, wrong in acts:
            if begun in paid:
                wrong = f"question {begun} is asked again, which was answered"
            after = scene._replace(live=number, paid=scene.paid if sent <= paid else self._number(paid | sent))
            yield Step(event, after, wrong, begun, _done(event, joins))
        if live.unwritten:
            now_paid = paid.union(kept.known.question for kept in live.unwritten)
            journal = self._journal(scene.journal, live.unwritten, scene.cuts)
            after = scene._replace(live=self._number(live.written()), journal=journal, paid=self._number(now_paid))
            yield Step(("write",), after)
        elif not acts:
            self.found.ends += 1
            yield Step(("end",), scene, self._wrong_at_end(live))
        if scene.left[RESTARTS]:
            yield from self._captures(scene)
            yield from self._completions(scene)
            yield from self._restarts(scene)

    def _acts_of(self, number: int) -> list[Act]:
        """What a task and its calls can do, but for writing: looked up, because many states have the same process."""
        if number not in self.acts:
            process: Process = self.things[number]
            self.acts[number] = acts = list[Act]()
            for event in list(Caller(process, self.rules).events()):
                caller = Caller(process, self.rules)
                caller.act(event)
                after = caller.frozen()
                sent = frozenset(question for _, question in after.sent - process.sent)
                acts.append(Act(event, self._number(after), sent, caller.begun, caller.joins, caller.wrong))
        return self.acts[number]

    def _wrong_at_end(self, live: Process) -> str:
        if len(live.sent) < len(self.rules.records):
            return "nothing can happen any more, and a record has no answer"
        return "all records have their answers, and one is spare" if live.durable else ""

    def _journal(self, journal: int, written: Iterable[KeptAnswer], cuts: Sequence[int]) -> int:
        """The journal with these answers, and without the segments that are removed."""
        oldest = self.things[cuts[0] if cuts else self.beginning].epoch
        entries = self.things[journal].union(written)
        return self._number(frozenset(one for one in entries if not self.segments.are_removed(one.segment, oldest)))

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def _captures(self, scene: Scene) -> Iterator[Step]:
        if not scene.left[EPOCHS]:
            return
        epoch = Epoch(scene.next_epoch)
        if (scene.live, epoch) not in self.changed:
            caller = Caller(self.things[scene.live], self.rules)
            caller.questions.on_capture(epoch)
            self.changed[scene.live, epoch] = self._number(caller.frozen())
        number = self.changed[scene.live, epoch]
        live: Process = self.things[number]
        cut = self._number(Cut(epoch, live.values, live.first, live.sent))
        captured, left = (*scene.captured, cut), _less(scene.left, EPOCHS)
        after = scene._replace(live=number, captured=captured, next_epoch=epoch + 1, left=left)
        yield Step(("capture", str(epoch)), after)

    def _completions(self, scene: Scene) -> Iterator[Step]:
        for place, number in enumerate(scene.captured):
            self.found.cuts += 1
            epoch, cuts = self.things[number].epoch, (*scene.cuts, number)[-RETENTION:]
            after = scene._replace(
                journal=self._journal(scene.journal, (), cuts),
                cuts=cuts,
                captured=scene.captured[place + 1 :],
                highest=epoch,
                continues=epoch,
            )
            yield Step(("complete", str(epoch)), after)

    # -- restarts ------------------------------------------------------------------------------------------------------

    def _restarts(self, scene: Scene) -> Iterator[Step]:
        late: frozenset[KeptAnswer] = self.things[scene.late]
        subsets = list(chain.from_iterable(combinations(sorted(late), count) for count in range(len(late) + 1)))
        for cut in scene.cuts or (self.beginning,):
            epoch, left = self.things[cut].epoch, _less(scene.left, RESTARTS)
            if epoch != scene.continues:
                left = _less(left, GO_BACKS)
            if left[GO_BACKS] < 0:
                continue
            self.found.crash_points += 1
            for written in subsets:
                when = (*(f"late {kept.known.question}" for kept in written), f"restores {epoch}")
                yield Step(("is lost", *when), self._restart(scene, written, cut, left, survives=False))
                yield Step(("survives", *when), self._restart(scene, written, cut, left, survives=True))

    def _restart(
        self, scene: Scene, written: Iterable[KeptAnswer], cut: int, left: tuple[int, ...], *, survives: bool
    ) -> Scene:
        """The next attempt. Processes that were left behind have written these answers before it restores the cut."""
        live: Process = self.things[scene.live]
        paid: frozenset[Question] = self.things[scene.paid]
        journal = self._journal(scene.journal, written, scene.cuts)
        late: frozenset[KeptAnswer] = self.things[scene.late].difference(written)
        if survives:
            journal, paid = self._journal(journal, live.unwritten, scene.cuts), paid | live.heard
        else:
            late |= self._in_the_end(scene.live).unwritten
        paid = paid.union(kept.known.question for kept in self.things[journal] if kept.segment >= scene.highest)
        restored = self._restored(cut, journal, scene.highest, live if survives else None)
        none = self._number(frozenset())
        if not left[RESTARTS]:
            return Scene(restored, none, none, self._number(paid), left)
        epochs = scene.highest + 1, scene.highest, self.things[cut].epoch
        return Scene(restored, self._number(late), journal, self._number(paid), left, scene.cuts, (), *epochs)

    def _in_the_end(self, number: int) -> Process:
        """A process that goes on until its calls have ended."""
        ends = (act.after for act in self._acts_of(number) if act.event[0] in ("ends", "looks"))
        after = next(ends, None)
        return self.things[number] if after is None else self._in_the_end(after)

    def _restored(self, cut: int, journal: int, begun: int, before: Process | None) -> int:
        calls = None if before is None else (before.in_flight, before.arrived)
        key = cut, journal, begun, calls
        if key not in self.changed:
            entries = sorted(self.things[journal])
            process, read = restored(self.things[cut], entries, Epoch(begun), before, self.rules)
            self.changed[key] = self._number(process)
            self.counts["answers_read"] += read
        return self.changed[key]


def _less(left: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*left[:place], left[place] - 1, *left[place + 1 :])


def _done(event: Event, joins: bool) -> str:
    return "calls_joined" if joins else "answers_spare" if event[0] == "looks" else ""


def explore_answers(
    name: str, parts: Parts | None = None, bounds: Mapping[str, int] = MappingProxyType({})
) -> Exploration:
    """Visit every state of a walk; stop at the first violation. `bounds` replace its own."""
    bounds = {**ANSWER_WALKS[name], **bounds}
    rules = Rules("a" * bounds["equal_records"] + "b" * bounds.get("others", 0), forgets=name == FORGOTTEN)
    return Walk(name, bounds, rules if parts is None else rules.with_parts(parts)).run()

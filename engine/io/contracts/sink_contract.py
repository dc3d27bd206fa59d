"""What a run relies on in a sink, checked: each record that a complete cut counts as written is published once.

Runs are drawn from seeds, each with an empty sink. Their attempts write, take cuts and commit as the tasks of a run do
(`engine/operators/sink.py`), every task with a sink of its own, as in another process. Calls are repeated, made by two
tasks at once, and left without an answer; processes die at a step in a call, or between two; a task that was taken for
dead sleeps at a step, and goes on when others have taken over; removals come late. What is published is compared with a
model (`sink_model.py`) after each cut, and at the end.
"""

from __future__ import annotations

import pickle
import secrets
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from os.path import basename
from random import Random
from typing import Any, TypeVar

from backedge.engine.batches.differences import differences
from backedge.engine.io.contracts.contract_error import broken, in_another_process
from backedge.engine.io.contracts.sink_model import SINK, SinkModel
from backedge.engine.io.contracts.steps import Died, KnownSteps, Site, Steps
from backedge.engine.io.files.kept_in_store import KeptInStore
from backedge.engine.operators.services import close_writer, commit_all
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.io import Sink, SinkPlace, SinkWriter
from backedge.graphs.task_errors import describe, show
from backedge.recovery.protocol.orders import Sweep
from backedge.recovery.stores.folder_store import FolderStore

T = TypeVar("T")

_OTHER = "other"
_ATTEMPTS = 4
_ACTS_MAX = 9
_TASKS_MAX = 3
_FAULTS = {"prepare": 0.2, "commit": 0.4, "withdraw": 0.4}
"""How likely something happens in a call of these kinds."""
_BLOCKED_S = 0.2
"""How long a task sleeps at most while others cannot go on. It decides what is tried, and never what is right."""
_HANG_S = 300.0


def numbered(number: int) -> dict[str, Any]:
    return {"n": number}


def check_sink(
    new_sink: Callable[[], Sink[Any]],
    published: Callable[[Any], Iterable[Any]],
    *,
    record: Callable[[int], Any] = numbered,
    seeds: Iterable[int] = range(30),
) -> Counter[str]:
    """Check that a sink publishes each record once, whatever dies, sleeps, is repeated or comes late.

    Raises `ConnectorContractError` for the first schedule in which it does not, and returns how often each fault has
    happened.

    - new_sink: makes the sink, with an empty place to write to. Called for each seed.
    - published: the records that such a sink has published, in any order.
    - record: makes the records that are written, each another one.
    """
    known, happened = KnownSteps(), Counter[str]()
    for seed in (None, *seeds):
        its = known if seed is None else known.copy()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            # A process that dies closes nothing.
            warnings.simplefilter("ignore", ResourceWarning)
            _Schedule(new_sink(), published, record, seed, folder, its, happened).run()
    return happened


class _Schedule:
    """One run. Without a seed, nothing goes wrong."""

    def __init__(
        self,
        sink: Sink[Any],
        published: Callable[[Any], Iterable[Any]],
        record: Callable[[int], Any],
        seed: int | None,
        folder: str,
        known: KnownSteps,
        happened: Counter[str],
    ) -> None:
        self.sink = sink
        self._sent = in_another_process(sink)
        self._published = published
        self._record = record
        self._records = 0
        self._run = secrets.token_hex(8)
        self._store = FolderStore(folder)
        self._store.prepare(is_signed=True)
        self._opened: list[SinkWriter] = []
        self.others: list[str] = []
        self.sweeps: list[Sweep] = []
        self.seed = seed
        self.known = known
        self.happened = happened
        self.model = SinkModel()
        self.story: list[str] = []

    def run(self) -> None:
        try:
            self._run_all(Random(self.seed))
        finally:
            # A process that dies leaves no connection behind.
            for writer in self._opened:
                with suppress(Exception):
                    close_writer(writer)

    def _run_all(self, chance: Random) -> None:
        begin = self.place(Attempt(1))
        self.sink.validate_output(begin, True)
        self.sink.claim(begin)
        other = self.writer(self.place(Attempt(1), operator=_OTHER))
        records = self.records(2)
        other.write(copied(records))
        self.others.append(f"{_OTHER}.0.attempt-1.epoch-1")
        self.expect(other.prepare(self.others[0]), "prepare says that nothing was written, and there were records")
        for _ in range(_ATTEMPTS):
            _Attempt(self, chance, is_calm=self.seed is None).run()
        _Attempt(self, chance, is_calm=True).run()
        try:
            commit_all(other, self.others)
        except Exception as error:
            raise self.broken(f"another sink cannot commit what it has prepared: {describe(error)}") from error
        close_writer(other)
        self.judge("at the end, with what another sink has written to the same place", records)
        self.in_a_process().roll_back(begin, self.model.sweep((), is_over=True))
        self.judge("after what was left was removed", records)

    def place(self, attempt: Attempt, task: int = 0, operator: str = SINK) -> SinkPlace:
        kept = KeptInStore(operator, self._store.below(operator), lambda sink, transaction, records: None)
        return SinkPlace(operator, "contract", self._run, attempt, task, kept)

    def in_a_process(self) -> Sink[Any]:
        return pickle.loads(self._sent)

    def writer(self, place: SinkPlace) -> SinkWriter:
        return self.opened(self.in_a_process().open_writer(place))

    def opened(self, writer: SinkWriter) -> SinkWriter:
        self._opened.append(writer)
        return writer

    def records(self, count: int) -> list[Any]:
        first, self._records = self._records, self._records + count
        return [self._record(number) for number in range(first, self._records)]

    def judge(self, when: str, others: Iterable[Any] = ()) -> None:
        """What is published is what complete cuts list, but for transactions that wait for later ones."""
        found, others = list(self._published(self.sink)), list(others)
        if self.sink.guarantee == "at least once":
            found = [pickle.loads(each) for each in {pickle.dumps(record) for record in found}]
        lacking, _ = differences([*self.model.published(at_least=True), *others], found)
        _, surplus = differences([*self.model.published(at_least=False), *others], found)
        faults = [
            f"{fault} {len(records)} records: {', '.join(map(show, records[:3]))}"
            for fault, records in (("lacks", lacking), ("has, too often or of no complete cut,", surplus))
            if records
        ]
        if faults:
            raise self.broken(f"{when}, the sink ({self.sink.guarantee}) {', and '.join(faults)}")

    def expect(self, holds: bool, fault: str) -> None:
        if not holds:
            raise self.broken(fault)

    def broken(self, fault: str) -> Exception:
        return broken(fault, -1 if self.seed is None else self.seed, self.story)


def copied(records: list[Any]) -> list[Any]:
    """What a writer is given, and may change."""
    return pickle.loads(pickle.dumps(records))


class _Task:
    """A task of a sink, as `SinkOperator`: what it has written since the last cut, and what its cuts list."""

    def __init__(self, writer: SinkWriter) -> None:
        self.writer = writer
        self.open: list[Any] = []
        self.listed: list[str] = []


class _Superseded(Exception):
    """Another attempt has taken over."""


class _Attempt:
    """One attempt. It dies, is superseded while it sleeps, or ends; a calm one ends."""

    def __init__(self, schedule: _Schedule, chance: Random, *, is_calm: bool = False) -> None:
        self._schedule = schedule
        self._model = schedule.model
        self._chance = chance
        self._is_calm = is_calm
        self._number = self._model.claim()
        self._tasks: list[_Task] = []
        self._complete: set[str] = set()
        # Whether what it needs is held by one that sleeps.
        self.is_hindered = False
        # The attempt that has taken over while this one slept.
        self._successor: Future[None] | None = None

    def run(self) -> None:
        try:
            self._restore()
            for _ in range(self._chance.randrange(_ACTS_MAX)):
                self._act()
            if self._is_calm or self._chance.random() < 0.3:
                self._end()
        except Died:
            self._tell("the process dies")
            if self._chance.random() < 0.5:
                for task in self._tasks:
                    close_writer(task.writer)
        except _Superseded:
            for _ in range(self._chance.randrange(4)):
                with suppress(Died, Exception):
                    self._act()
        self._schedule.judge(f"after attempt {self._number}")

    @property
    def _is_superseded(self) -> bool:
        return self._model.attempt != self._number

    def _tell(self, step: str) -> None:
        self._schedule.story.append(f"attempt {self._number}: {step}")

    # -- the steps of an attempt -----------------------------------------------------------------------------------

    def _restore(self) -> None:
        schedule, model = self._schedule, self._model
        sink = schedule.in_a_process()
        place = schedule.place(self._number)
        if len(model.cuts) > 1 and self._chance.random() < 0.2 and sink.can_withdraw(place):
            model.go_back()
        self._tell(f"goes on from the cut of epoch {model.last.epoch}, which lists {model.last.listed}")
        if model.is_replacing:
            self._call("withdraw", sink.withdraw, place, model.later())
            model.withdrawn()
        self._sweep(model.sweep(schedule.others))
        for index in range(1 if sink.one_task else self._chance.randint(1, _TASKS_MAX)):
            its, place = schedule.in_a_process(), schedule.place(self._number, index)
            self._tasks.append(_Task(schedule.opened(self._call("open_writer", its.open_writer, place))))
        if self._is_calm:
            self._check_unknown()
        self._complete = set(model.last.listed)
        for names in model.last.tasks:
            self._chance.choice(self._tasks).listed += names
        for task in self._tasks:
            self._commit(task)

    def _act(self) -> None:
        task = self._chance.choice(self._tasks)
        match self._chance.choice(["write", "write", "write", "cut", "cut", "commit", "sweep"]):
            case "write":
                records = self._schedule.records(self._chance.randint(1, 3))
                self._tell(f"writes {show(records)}")
                self._call("write", task.writer.write, copied(records))
                task.open += records
            case "cut":
                self._cut(self._model.next_epoch())
            case "commit":
                self._commit(task)
            case _:
                self._sweep(self._chance.choice([self._model.sweep(self._schedule.others), *self._schedule.sweeps]))

    def _cut(self, epoch: Epoch, *, is_last: bool = False) -> None:
        for index, task in enumerate(self._tasks):
            self._prepare(task, f"{SINK}.{index}.attempt-{self._number}.epoch-{0 if is_last else epoch}")
        if not is_last and self._chance.random() < 0.25:
            self._tell("the cut is given up")
            return
        if not self._model.complete(epoch, self._number, [task.listed for task in self._tasks], is_last=is_last):
            return
        self._tell(f"the cut of epoch {epoch} is complete and lists {self._model.last.listed}")
        self._complete = set(self._model.last.listed)
        for task in self._tasks:
            if is_last or self._chance.random() < 0.8:
                self._commit(task)

    def _prepare(self, task: _Task, name: str) -> None:
        self._tell(f"prepares {name}")
        found = self._call("prepare", task.writer.prepare, name)
        self._schedule.expect(
            bool(found) == bool(task.open), f"prepare returns {found} for a transaction of {len(task.open)} records"
        )
        if task.open:
            self._model.contents[name], task.open = task.open, []
            task.listed.append(name)
            if self._chance.random() < 0.2:
                self._call("prepare", task.writer.prepare, name)

    def _commit(self, task: _Task) -> None:
        """Commit what the last complete cut lists of a task: perhaps again, by another one, or both at once."""
        names = [name for name in task.listed if name in self._complete]
        if not names:
            return
        way = self._chance.choice(
            ["once", "once", "by another task first", "by two tasks at once", "without an answer"]
        )
        self._tell(f"commits {names} {way}")
        self._schedule.happened[f"commits {way}"] += 1
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(self._commit_by_another, names) if "task" in way else None
            if other is not None and "first" in way:
                other.exception(_HANG_S)
            waiting = self._call("commit", commit_all, task.writer, names)
        if other is not None and (error := other.exception()) is not None and not self._is_superseded:
            raise self._schedule.broken(f"a commit by another task failed: {describe(error)}") from error
        if way == "without an answer" and not self._is_calm:
            raise Died
        task.listed = [name for name in task.listed if name not in names or name in waiting]
        self._model.committed.update(name for name in names if name not in waiting)
        self._schedule.judge(f"after attempt {self._number} has committed {names}")

    def _commit_by_another(self, names: list[str]) -> None:
        writer = self._schedule.writer(self._schedule.place(self._number, _TASKS_MAX))
        commit_all(writer, names)
        close_writer(writer)

    def _check_unknown(self) -> None:
        writer = self._schedule.writer(self._schedule.place(self._number, _TASKS_MAX))
        is_refused = True
        with suppress(Exception):
            commit_all(writer, [f"{SINK}.0.attempt-{self._number}.epoch-999999"])
            is_refused = False
        self._schedule.expect(is_refused, "a transaction that was never prepared is committed without an error")
        close_writer(writer)

    def _sweep(self, sweep: Sweep) -> None:
        self._schedule.sweeps.append(sweep)
        self._tell(f"removes what was dead for attempt {sweep.attempt} at the cut of epoch {sweep.last}")
        sink, place = self._schedule.in_a_process(), self._schedule.place(sweep.attempt)
        self._call("roll_back", sink.roll_back, place, sweep)

    def _end(self) -> None:
        self._cut(self._model.next_epoch())
        self._cut(self._model.next_epoch(), is_last=True)
        self._sweep(self._model.sweep(self._schedule.others))
        for task in self._tasks:
            self._call("close", close_writer, task.writer)
            self._model.committed.update(task.listed)

    # -- what happens in a call --------------------------------------------------------------------------------------

    def _call(self, kind: str, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call of the sink, in which the process may die or sleep."""
        schedule, chance = self._schedule, self._chance
        fault, at = None, None
        if not (self._is_calm or self._is_superseded):
            fault = chance.choice(["dies", "sleeps"]) if chance.random() < _FAULTS.get(kind, 0.05) else None
            at = schedule.known.draw(kind, chance, to_sleep=fault == "sleeps") if fault is not None else None

        def happens(site: Site) -> None:
            schedule.happened[f"{kind}: a process {fault}"] += 1
            self._tell(f"{kind}: the process {fault} at line {site[1]} of {basename(site[0])}")
            if fault == "dies":
                raise Died
            self._sleep(kind, site)

        steps = Steps(at, happens)
        is_dead = is_over = False
        result: Any = None
        try:
            with steps:
                result = call(*arguments)
        except Died:
            is_dead = True
        except Exception as error:
            is_dead = self.is_hindered or (steps.has_happened and fault == "dies")
            is_over = self._is_superseded
            if not (is_dead or is_over):
                raise schedule.broken(f"{kind} failed although nothing was wrong: {describe(error)}") from error
        # From here on, nothing holds the frames of a process that has died: its connections are closed.
        if self._successor is not None:
            successor, self._successor = self._successor, None
            successor.result(_HANG_S)
        if is_dead:
            raise Died
        if is_over or (steps.has_happened and fault == "sleeps"):
            raise _Superseded
        schedule.known.learn(kind, steps.counts)
        return result

    def _sleep(self, kind: str, site: Site) -> None:
        """Let the next attempt run to its end; unless it needs what this one holds, which then goes on beside it."""
        successor = _Attempt(self._schedule, Random(self._chance.random()), is_calm=True)
        pool = ThreadPoolExecutor(1)
        self._successor = pool.submit(successor.run)
        pool.shutdown(wait=False)
        try:
            self._successor.exception(_BLOCKED_S)
        except TimeoutError:
            successor.is_hindered = True
            self._schedule.known.lock(kind, site)
            self._schedule.happened[f"{kind}: locked"] += 1
            self._tell("holds what the next attempt waits for, and goes on")

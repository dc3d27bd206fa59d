"""Planned faults, for tests and demonstrations: WHO@WHEN, each once.

WHO is `head`, `body`, `source`, `sink`, the name of an operator, a task such as `count/1`, or `random`. WHEN is

- `epoch=3`: after the capture of epoch 3 and before its manifest, so that an earlier cut is restored. If no earlier cut
  is complete, because probes have used up numbers, it waits for the first epoch that follows one. `epoch=1` is before
  any cut;
- `records=100000`: when the task has processed exactly this many records in this run, earlier attempts included. The
  work of a process in the quarter of a second before another fault struck it is not counted;
- `loop=3`: as soon as a cut that holds records in a loop is complete, from epoch 3 on. That cut is then restored;
- `every=2s`: repeatedly, this long after all tasks have started to run; only for `random`. If the flow has several
  pipelines, it happens in each of them, and the other faults in the first one with such a task.

Neither driver nor core knows of faults. For `epoch` and `records`, an observer of the captures (`EpochFaults`) and a
runtime that counts records raise `FaultDue`, which ends the turns of the actor: it reports that the fault is due, and
waits. For the others, the supervisor knows. The supervisor then ends the process with SIGKILL, so a planned fault is
known to have happened.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, cast

from msgspec import Struct

from backedge.engine.batches.batch import Batch
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.sending import Emitted
from backedge.graphs.deployment import Channel, Deployment, Task
from backedge.graphs.ids import Epoch, TaskId
from backedge.graphs.public import public

_FORM = re.compile(r"(?P<who>[^@]+)@(?P<when>epoch|records|loop|every)=(?P<amount>\d+(?:\.\d+)?)(?P<unit>s|ms)?")
ROLES = ("head", "body", "source", "sink")


@public
class KillSpecError(ValueError):
    """A planned fault that is malformed, or that matches no task of the run.

    Fix: write `WHO@WHEN=N`, such as `head@epoch=3`, with a name that `backedge graph` shows.
    """


class Kill(Struct, frozen=True):
    """One planned fault. `amount` is a number of epochs (also for `loop`), records or milliseconds.

    >>> Kill.parse("head@epoch=3")
    Kill(who='head', when='epoch', amount=3)
    """

    who: str
    when: str
    amount: int

    @staticmethod
    def parse(text: str) -> Kill:
        found = _FORM.fullmatch(text.strip())
        form = "write WHO@WHEN, such as head@epoch=3, body@records=100000, head@loop=2 or random@every=2s"
        if found is None:
            raise KillSpecError(f"--kill {text!r}: {form}")
        who, when, amount, unit = found["who"], found["when"], float(found["amount"]), found["unit"]
        if (when == "every") != (who == "random") or (unit is not None) != (when == "every"):
            raise KillSpecError(
                f"--kill {text!r}: every=SECONDS requires random; epoch, records and loop require a task: {form}"
            )
        if when == "every":
            amount *= 1000 if unit == "s" else 1
        if amount < 1:
            raise KillSpecError(f"--kill {text!r}: give at least 1")
        return Kill(who, when, int(amount))

    def __str__(self) -> str:
        amount = f"{self.amount / 1000:g}s" if self.when == "every" else str(self.amount)
        return f"{self.who}@{self.when}={amount}"

    def concerns(self, task: Task) -> bool:
        """Whether this fault concerns the actor of that task."""
        if self.who in ROLES:
            return role_of(task) == self.who
        return self.who in (str(task.id), *task.operators)


class Faults(Struct, frozen=True):
    """Deliberate faults of a run, for tests and demonstrations.

    `kills` are planned faults in their short form. `broken_rule` names a protocol rule that the tasks break: see
    `engine/on_ray/actor/broken_rule.py`.

    >>> Faults(kills=["head@epoch=3"]).planned
    (Kill(who='head', when='epoch', amount=3),)
    >>> Faults(kills="head@epoch=3")
    Traceback (most recent call last):
    backedge.KillSpecError: kills='head@epoch=3': give a list, as in kills=["head@epoch=3"]
    """

    kills: Sequence[str] = ()
    broken_rule: str | None = None

    def __post_init__(self) -> None:
        given = cast(object, self.kills)
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise KillSpecError(f'kills={given!r}: give a list, as in kills=["head@epoch=3"]')
        for kill in cast(Sequence[object], given):
            if not isinstance(kill, str):
                raise KillSpecError(f'kills={given!r}: give texts, as in kills=["head@epoch=3"]')
            Kill.parse(kill)

    @property
    def planned(self) -> tuple[Kill, ...]:
        """The kills, parsed."""
        return tuple(map(Kill.parse, self.kills))


NO_FAULTS = Faults()


class FaultDue(Exception):
    """A planned fault is due in a task, which does nothing any more.

    `records`: how many it has processed in this attempt, if the fault counts them.
    """

    def __init__(self, kill: Kill, task: TaskId, records: int | None = None) -> None:
        super().__init__(kill, task, records)
        self.kill = kill
        self.task = task
        self.records = records


class EpochFaults:
    """The faults of an actor that wait for an epoch. `has_cut`: there is a cut to restore."""

    def __init__(self, kills: Iterable[Kill], has_cut: bool) -> None:
        self._kills = [kill for kill in kills if kill.when == "epoch"]
        self.has_cut = has_cut

    def check(self, task: Task, epoch: Epoch) -> None:
        """Raise `FaultDue` if a fault is due at a task that has captured this epoch."""
        for kill in self._kills:
            # Probes use up numbers: for an epoch from 2 on there must be a cut to restore.
            if epoch >= kill.amount and (self.has_cut or kill.amount == 1) and kill.concerns(task):
                raise FaultDue(kill, task.id)


def next_by_records(kills: Iterable[Kill], task: Task, processed: int) -> tuple[Kill, int] | None:
    """The first of these faults that counts the records of a task, and how many it may process until then."""
    counting = [kill for kill in kills if kill.when == "records" and kill.concerns(task)]
    if not counting:
        return None
    first = min(counting, key=lambda kill: kill.amount)
    return first, max(1, first.amount - processed)


class CountdownRuntime(TaskRuntime):
    """Runs user code on a given number of records, then raises `FaultDue`.

    It raises before any output of those records is sent, and before anything behind them takes effect: the rest of
    their batch must not be in any cut.
    """

    def __init__(self, kill: Kill, records: int, task: Task, *arguments: Any, **options: Any) -> None:
        super().__init__(task, *arguments, **options)
        self._due = FaultDue(kill, task.id, records)
        self._left = records

    def process(self, channel: Channel, batch: Batch, now_ms: int) -> Emitted:
        """Run the chain on the batch, or on as many of its records as remain."""
        left = self._left
        if len(batch) < left:
            self._left -= len(batch)
            return super().process(channel, batch, now_ms)
        super().process(channel, batch.part(0, left), now_ms)
        raise self._due

    def produce(self, records_max: int, now_ms: int) -> Emitted:
        """Read on, but not beyond the record at which the fault is due."""
        before = self.records_read
        emitted = super().produce(min(records_max, self._left), now_ms)
        self._left -= self.records_read - before
        if not self._left:
            raise self._due
        return emitted


IN_VAIN = 3


class Recurring:
    """The times at which repeated faults are due.

    The pause counts from the moment when all tasks run. If it counted from the previous fault, a run that takes longer
    than the pause to recover would never make progress.
    """

    def __init__(self, kills: Sequence[Kill]) -> None:
        self._kills = [kill for kill in kills if kill.when == "every"]
        self._due_ms: dict[Kill, int] = {}
        # How many happened since the last complete cut; None once that has been reported.
        self._in_a_row: int | None = 0

    def on_cut(self) -> None:
        """A cut is complete, so the run makes progress."""
        if self._in_a_row is not None:
            self._in_a_row = 0

    def on_kill(self) -> bool:
        """A fault happens. Returns True once, when consecutive faults have left no time for a cut."""
        if self._in_a_row is None:
            return False
        self._in_a_row += 1
        is_to_report = self._in_a_row == IN_VAIN
        if is_to_report:
            self._in_a_row = None
        return is_to_report

    def on_running(self, now_ms: int) -> None:
        """All tasks run, for the first time or again."""
        self._due_ms = {kill: now_ms + kill.amount for kill in self._kills}

    def due(self, now_ms: int) -> list[Kill]:
        """The faults that are due; each is due again after another pause."""
        due = [kill for kill, due_ms in self._due_ms.items() if now_ms >= due_ms]
        self._due_ms.update((kill, now_ms + kill.amount) for kill in due)
        return due


def role_of(task: Task) -> str:
    """The role of a task in its graph.

    A task that is both head and body, because its loop has no other task, is a head.
    """
    if task.is_source:
        return "source"
    if task.is_head:
        return "head"
    return "body" if task.outputs else "sink"


def planned_for(kills: Sequence[Kill], deployments: Sequence[Deployment]) -> list[tuple[Kill, ...]]:
    """The planned faults of each pipeline: one that happens once is for the first pipeline with such a task."""
    found: list[list[Kill]] = [[] for _ in deployments]
    for kill in kills:
        concerned = [
            listed
            for listed, deployment in zip(found, deployments, strict=True)
            if any(map(kill.concerns, deployment.tasks.values()))
        ]
        for listed in found if kill.who == "random" else concerned[:1]:
            listed.append(kill)
    return [tuple(listed) for listed in found]


def check_kills(kills: tuple[Kill, ...], deployment: Deployment) -> None:
    """Raise unless every planned fault matches a task of this run."""
    for kill in kills:
        if kill.who != "random" and not any(kill.concerns(task) for task in deployment.tasks.values()):
            tasks = ", ".join(f"{task.id} ({role_of(task)})" for task in deployment.tasks.values())
            raise KillSpecError(f"--kill {kill}: no task has that name or role; there are {tasks}")

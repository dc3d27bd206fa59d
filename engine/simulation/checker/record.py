"""What a simulated run passes to the checker: its trace, its complete cuts, and the output of its sinks.

The trace is a list of events in the order in which they happened. An attempt begins with `Started` and is over when the
chain starts the next one: until then a supervisor that was taken for dead leads it and may complete its cuts. What an
attempt does after its end is not in the trace: if it takes effect anyway, the damage shows.

Order within one task: `Took` precedes the `Ran("batch")` of the same batch; a batch that was set aside has its `Took`
then and its `Ran` later. The `Sent` events after one or several `Ran`, up to the task's next event of another kind, are
the output of the user code, except round markers. `Captured` precedes the barriers that it sends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.plan import Plan
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Numbered
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.protocol.versions import Name


class Started(NamedTuple):
    """An attempt begins, from that cut or from nothing."""

    attempt: Attempt
    restored: Epoch | None


class Restored(NamedTuple):
    """A task took its part of the cut, or began empty."""

    attempt: Attempt
    task: TaskId
    restore: TaskRestore | None


class Sent(NamedTuple):
    """A data item or round marker was put into a channel. Items passed by reference are encoded at that moment."""

    attempt: Attempt
    task: TaskId
    channel: ChannelId
    seq: int
    payload: bytes


class Took(NamedTuple):
    """A data item left the queue of a channel: to be processed, given as a marker, or set aside."""

    attempt: Attempt
    task: TaskId
    channel: ChannelId
    seq: int


class Ran(NamedTuple):
    """User code runs. `what` names the entry point:

    - "produce": `detail` is the number of records asked for.
    - "batch": `channel` and `payload`, the batch as it was before user code saw it, or the rest of it after parts; or
      several batches, as one, that were taken together.
    - "part": `channel` and `payload`, the next records of the batch at the front of its channel, which has more.
    - "round_end": `detail` is the path. "release_round", "release_result", "end": no details.
    - "timer": all timers that are due at `now_ms`.
    - "answer": `payload` is the pickled record that was asked about, as it was before the call. "set_aside": the same,
      but there is no call.
    """

    attempt: Attempt
    task: TaskId
    what: str
    channel: ChannelId | None = None
    payload: bytes | None = None
    detail: Any = None
    now_ms: int = 0


class Barriered(NamedTuple):
    """A barrier was put into a channel."""

    attempt: Attempt
    task: TaskId
    channel: ChannelId
    epoch: Epoch
    mode: Mode


class EndSent(NamedTuple):
    """END was put into a channel."""

    attempt: Attempt
    task: TaskId
    channel: ChannelId


class Captured(NamedTuple):
    """A task captured its state; `epoch` is None for its last state. Probes capture nothing and have no such event."""

    attempt: Attempt
    task: TaskId
    epoch: Epoch | None


class Completed(NamedTuple):
    """The manifest of this epoch is durable."""

    attempt: Attempt
    epoch: Epoch


class Aborted(NamedTuple):
    """The coordinator gave up this epoch."""

    attempt: Attempt
    epoch: Epoch


class Committed(NamedTuple):
    """A sink published these transactions, at a complete cut or at a restore."""

    attempt: Attempt
    task: TaskId
    names: tuple[str, ...]


class Finished(NamedTuple):
    """The coordinator has reported the end of the run."""

    attempt: Attempt


Event = (
    Started | Restored | Sent | Took | Ran | Barriered | EndSent | Captured | Completed | Aborted | Committed | Finished
)

Transactions = Mapping[str, tuple[str, list[Any]]]
"""Transaction name -> sink operator and records."""


@dataclass(frozen=True)
class Conserved:
    """A quantity that records carry and operators keep, in integers.

    `of_record(record)` is what a record carries, `of_state(operator, key, value)` what a keyed value keeps.
    """

    of_record: Callable[[Any], int]
    of_state: Callable[[str, Any, Any], int]


@dataclass
class Record:
    """A finished or stopped run. `prepared` are the transactions that exist but are not published.

    `replaced` are those that were removed by a run that went back to a cut before them.
    `chain` is the chain of the job, and `asked` the older cut that a supervisor was asked to restore, by claimant.
    `in_vain` are the claimants that failed for good before a task of theirs had run.
    `pipeline` names the pipeline that was run, if the job has several.
    `versions` are those that each attempt may read: the restored ones, and what it has published, by name and number.
    """

    plan: Plan
    inputs: Mapping[str, Sequence[Any]]
    policy: str
    deployments: dict[Attempt, Deployment] = field(default_factory=dict[Attempt, Deployment])
    trace: list[Event] = field(default_factory=list[Event])
    cuts: dict[Epoch, Cut] = field(default_factory=dict[Epoch, Cut])
    committed: Transactions = field(default_factory=dict[str, tuple[str, list[Any]]])
    prepared: Transactions = field(default_factory=dict[str, tuple[str, list[Any]]])
    replaced: Transactions = field(default_factory=dict[str, tuple[str, list[Any]]])
    finished: bool = False
    conserved: Conserved | None = None
    chain: Sequence[Numbered] = ()
    asked: dict[str, Epoch] = field(default_factory=dict[str, Epoch])
    in_vain: set[str] = field(default_factory=set[str])
    pipeline: str | None = None
    versions: dict[Attempt, dict[Name, Any]] = field(default_factory=dict[Attempt, dict[Name, Any]])

    def written(self, transaction: str) -> tuple[str, list[Any]] | None:
        """The sink and the records of a transaction, whatever became of it."""
        return self.committed.get(transaction) or self.prepared.get(transaction) or self.replaced.get(transaction)

    @property
    def cuts_with_log(self) -> set[Epoch]:
        """The cuts that hold records in flight."""
        of_cuts = {epoch: cut.snapshots.values() for epoch, cut in self.cuts.items()}
        return {epoch for epoch, snapshots in of_cuts.items() if any(r.log for s in snapshots for r in s.inputs)}

    def counts(self) -> dict[str, int]:
        """How many cuts and restores there were, and how many attempts with another parallelism than the one before."""
        with_log = self.cuts_with_log
        restores = [e.restored for e in self.trace if isinstance(e, Started) and e.restored is not None]
        widths = [dict(deployment.parallelism) for deployment in self.deployments.values()]
        return {
            "cuts": len(self.cuts),
            "cuts_with_log": len(with_log),
            "restores": len(restores),
            "restores_with_log": sum(epoch in with_log for epoch in restores),
            "rescaled": sum(before != after for before, after in pairwise(widths)),
        }


@dataclass(frozen=True)
class Violation:
    """Something that no run may do: the broken statement, the place, and the figures in words."""

    statement: str
    story: str
    epoch: Epoch | None = None
    channel: ChannelId | None = None
    task: TaskId | None = None

    def __str__(self) -> str:
        where = [f"epoch {self.epoch}"] if self.epoch is not None else []
        where += [f"channel {self.channel}"] if self.channel is not None else []
        where += [f"task {self.task}"] if self.task is not None else []
        return f"{self.statement}: {self.story}" + (f" ({', '.join(where)})" if where else "")

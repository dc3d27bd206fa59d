"""The parts of a cut: pure data, by operator (not chain), channel and task.

A cut is the set of all task snapshots of one epoch. Its manifest is the record that it is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.keyed_parts import KeyedPart


class Transaction(Struct, frozen=True):
    """Output that a sink has prepared but not committed. `name` is unique among all attempts of a job.

    `records` is counted by the writer; the operator's own count is in `OperatorState`.
    """

    name: str
    epoch: Epoch
    attempt: Attempt
    records: int = 0


class Version(Struct, frozen=True):
    """A value that an operator has published as the version `number` of `of` (rule 17).

    `data` has its bytes until the first capture that holds it is written. From then on it is in a file.
    """

    of: str
    number: int
    data: Any = None
    file: str = ""
    size: int = 0
    digest: str = ""


class OperatorState(Struct, frozen=True):
    """The encoded state of one operator in one task, in the parts that rescaling moves.

    - keyed: what is kept by key, values and timers.
    - deltas: what changed since, oldest first. A key has the entry of the last delta that holds it.
    - splits: source split -> encoded position.
    - pending: encoded inputs that wait for an answer (map_async) or for their round (head of an iteration), one per
      record.
    - whole: the rest, which belongs to this task (random state, the turn of a rebalance, what a class captures).
    - whole_can_move: rescaling may drop `whole`, or the operator's class can split and merge it.
    - records: sent by a source, or written by a sink, since the job began. Evidence only: a restore does not need it.
      At another parallelism the first task takes the sum.
    - versions: the versions that the task has published and keeps.
    """

    keyed: Iterable[KeyedPart] = ()
    splits: Mapping[str, bytes] = {}
    pending: tuple[bytes, ...] = ()
    whole: bytes | None = None
    whole_can_move: bool = True
    transactions: tuple[Transaction, ...] = ()
    records: int = 0
    deltas: tuple[Iterable[KeyedPart], ...] = ()
    versions: tuple[Version, ...] = ()


def layers(state: OperatorState) -> tuple[Iterable[KeyedPart], ...]:
    """What a state keeps by key, oldest first: what was written whole, then what changed since."""
    return (state.keyed, *state.deltas)


class LogEntry(NamedTuple):
    """One batch of a loop log, encoded as it was sent, with the channel's digest before and after it.

    While the log is open, a payload may be a handle (`channels.Stored`); in a snapshot it is bytes. `skip` is the
    number of records at its start that were processed before the capture; only the first batch of a log can have one.
    Payload and digests always cover the whole batch.
    """

    seq: int
    payload: bytes
    digest_before: int
    digest_after: int
    skip: int = 0


class InputRecord(Struct, frozen=True):
    """An input channel at the capture: the consumed batches, and those in the log."""

    channel: ChannelId
    is_back: bool
    consumed: int
    digest: int
    log: tuple[LogEntry, ...] = ()
    ended: bool = False


class OutputRecord(Struct, frozen=True):
    """An output channel at the capture: the number of batches sent, and their digest."""

    channel: ChannelId
    sent: int
    digest: int


class TaskSnapshot(Struct, frozen=True):
    """One task at one epoch. `rounds` is the state of rule 11; a task that has `ended` only sends END again.

    `overtook`: the task captured past its queues, so its regular channels are logged, too. `base`: what all
    operators keep by key holds only what changed since that cut; None if they hold everything.
    """

    task: TaskId
    epoch: Epoch
    attempt: Attempt
    operators: Mapping[str, OperatorState]
    inputs: tuple[InputRecord, ...]
    outputs: tuple[OutputRecord, ...]
    ended: bool = False
    rounds: Any = None
    overtook: bool = False
    base: Epoch | None = None


def stacked(snapshots: Sequence[TaskSnapshot]) -> TaskSnapshot:
    """The whole snapshot of a task: the last of these, its keyed state on top of that of the ones before it."""
    last, before = snapshots[-1], snapshots[:-1]
    if not before:
        return last
    operators = {
        name: replace(
            state,
            keyed=before[0].operators[name].keyed,
            deltas=(*(earlier.operators[name].keyed for earlier in before[1:]), state.keyed),
        )
        for name, state in last.operators.items()
    }
    return replace(last, operators=operators, base=None)


class Cut(Struct, frozen=True):
    """All snapshots of one epoch, with the parallelism at which they were taken."""

    epoch: Epoch
    attempt: Attempt
    graph_hash: str
    policy: str
    between_rounds: bool
    snapshots: Mapping[TaskId, TaskSnapshot]
    parallelism: Mapping[str, int]

"""What a cut consists of: pure data, filed under unchained operators, channels and tasks.

A cut is the set of all task snapshots of one epoch. Its manifest is the record that it is complete.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from graphs.ids import Attempt, ChannelId, Epoch, TaskId


@dataclass(frozen=True, slots=True)
class Transaction:
    """Output that a sink has prepared and not yet committed. `name` is unique among all attempts of a job.

    `records` is how many it holds, counted by what wrote it; the operator's own count is in `OperatorState`.
    """

    name: str
    epoch: Epoch
    attempt: Attempt
    records: int = 0


@dataclass(frozen=True, slots=True)
class OperatorState:
    """The state of one operator in one task, encoded, in the parts that another parallelism would move.

    - groups: key group -> encoded keyed state of that group (values, timers).
    - splits: source split -> encoded position.
    - pending: encoded inputs that wait for an answer (map_async) or their round (an iteration's head), one a record.
    - whole: the rest, which belongs to this very task (random state, turn of a rebalance, a class's own capture).
    - whole_can_move: another parallelism may leave `whole` behind, or the operator's class splits and merges it.
    - records: how many a source has sent, or a sink has written, since the job began. It is evidence: no restore needs
      it. Under another parallelism the first task takes the sum.
    """

    groups: Mapping[int, bytes] = field(default_factory=dict[int, bytes])
    splits: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    pending: tuple[bytes, ...] = ()
    whole: bytes | None = None
    whole_can_move: bool = True
    transactions: tuple[Transaction, ...] = ()
    records: int = 0


class LogEntry(NamedTuple):
    """One batch of a loop log, encoded as it travelled, with the channel's digest before and after it.

    While a log is being gathered its payloads may be elsewhere (`channels.Stored`); in a snapshot they are bytes.
    `skip` is how many records at its start the state holds already: only the first batch of a log can have been
    processed in part. Payload and digests are those of the whole batch.
    """

    seq: int
    payload: bytes
    digest_before: int
    digest_after: int
    skip: int = 0


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input channel at the capture: what was consumed, and what the log holds beyond it."""

    channel: ChannelId
    is_back: bool
    consumed: int
    digest: int
    log: tuple[LogEntry, ...] = ()
    ended: bool = False


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """An output channel at the capture: how much was sent, and the digest of all of it."""

    channel: ChannelId
    sent: int
    digest: int


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """One task at one epoch. `rounds` is the state of rule 11; `ended` tasks only send END again.

    `overtook`: the task captured past its queues, so its regular channels are logged too.
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


@dataclass(frozen=True, slots=True)
class Cut:
    """All snapshots of one epoch: the parallelism they were taken with, and the epoch's place in the lineage."""

    epoch: Epoch
    attempt: Attempt
    graph_hash: str
    policy: str
    between_rounds: bool
    snapshots: Mapping[TaskId, TaskSnapshot]
    parallelism: Mapping[str, int]

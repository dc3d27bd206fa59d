"""The files of one task in one epoch, as a manifest lists them (`task_tables.py` writes and reads them).

Small facts (whether the task has ended, its operators, the positions of its splits, the counts of its channels) are
stored in the manifest beside the list of files. So are the figures of the logs, so that they can be shown without
reading a log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut import InputRecord, LogEntry, OutputRecord
from backedge.recovery.outline import OperatorOutline, RoundsOutline, TaskOutline
from backedge.recovery.stores.names import attempt_folder, path_of, table_file


class StoredFile(NamedTuple):
    """One file: its name relative to the job's folder, its size in bytes, and the digest of its content.

    `groups`: the first and the last key group of a state file; None for a file of rows without a group.
    """

    name: str
    size: int
    digest: str
    groups: tuple[int, int] | None = None

    def has_some_of(self, wanted: range) -> bool:
        """Whether the file holds key groups of this range, or rows without a group."""
        return self.groups is None or (self.groups[0] < wanted.stop and wanted.start <= self.groups[1])


class StateLayer(NamedTuple):
    """Keyed state that a task wrote for one cut: all of it, or the changes since the cut `base`.

    `attempt` and `filed` name the folder of its files. A compaction is filed under a number of its own and holds the
    combined content of the task's files of the cut `epoch`.
    """

    attempt: Attempt
    filed: Epoch | None
    epoch: Epoch
    base: Epoch | None
    files: tuple[StoredFile, ...]

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)


class OperatorFacts(NamedTuple):
    """Small facts about an operator of a task.

    - whole_can_move, has_whole: whether its state without a key group can be rescaled, and whether it has any.
    - kind: its kind in the plan; None if the kind was not passed to `write_files`.
    - records: number of records that a source sent or a sink wrote.
    - splits: the splits of a source, each with its encoded position.
    """

    name: str
    whole_can_move: bool
    has_whole: bool
    kind: str | None
    records: int
    splits: tuple[tuple[str, bytes], ...]


class ChannelFigures(NamedTuple):
    """One end of a channel: the number of batches sent, or consumed and logged, and their digest."""

    direction: str
    channel: ChannelId
    is_back: bool | None
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    digest: int
    ended: bool | None
    log_count: int | None

    def as_input(self, log: tuple[LogEntry, ...]) -> InputRecord:
        """Convert to the record in the receiver's snapshot."""
        return InputRecord(self.channel, bool(self.is_back), self.count, self.digest, log, bool(self.ended))

    def as_output(self) -> OutputRecord:
        """Convert to the record in the sender's snapshot."""
        return OutputRecord(self.channel, self.count, self.digest)


class LogFigures(NamedTuple):
    """Figures of one loop's log. `size` is in bytes; `records` is None if a batch cannot be counted.

    Records of a log's first batch that were processed before the cut are not counted.
    """

    loop: str
    batches: int
    size: int
    records: int | None


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """The files that one task has written for a cut, with the facts that go into the manifest.

    - filed: the epoch that names the folder; None for the last state of a task.
    - rounds: only for tasks of an iteration.
    - overtook: whether the task captured before it had consumed its queues.
    - is_settled: whether the files are durable already; otherwise they become durable with the manifest.
    - base: the cut relative to which the keyed state in `files` is a delta; None if it is complete.
    - below: if there is a `base`, the layers written before, oldest first. For each key the newest layer counts.
    """

    task: TaskId
    attempt: Attempt
    filed: Epoch | None
    epoch: Epoch
    ended: bool
    operators: tuple[OperatorFacts, ...]
    files: tuple[StoredFile, ...]
    transactions: tuple[str, ...]
    channels: tuple[ChannelFigures, ...]
    logs: tuple[LogFigures, ...]
    state_rows: int
    rounds: RoundsOutline | None = None
    overtook: bool = False
    base: Epoch | None = None
    below: tuple[StateLayer, ...] = ()
    is_settled: bool = field(default=True, compare=False)

    @property
    def layer(self) -> StateLayer:
        """The keyed state in the task's own `files`."""
        keyed = tuple(file for file in self.files if file.groups is not None)
        return StateLayer(self.attempt, self.filed, self.epoch, self.base, keyed)

    @property
    def all_files(self) -> tuple[StoredFile, ...]:
        """The files of the layers below, then the task's own files."""
        return (*(file for layer in self.below for file in layer.files), *self.files)

    @property
    def logged(self) -> dict[ChannelId, int]:
        """Number of logged batches of each input channel whose log is not empty."""
        return {end.channel: end.log_count for end in self.channels if end.log_count}

    @property
    def outline(self) -> TaskOutline:
        """The facts from which a restore is planned."""
        folder, names = attempt_folder(self.attempt, self.filed), {file.name for file in self.files}
        return TaskOutline(
            ended=self.ended,
            operators={
                facts.name: OperatorOutline(
                    whole_can_move=facts.whole_can_move,
                    has_whole=facts.has_whole,
                    has_transactions=path_of(table_file(folder, "transactions", facts.name, self.task)) in names,
                    splits=dict(facts.splits),
                    records=facts.records,
                )
                for facts in self.operators
            },
            logs=self.logged,
            rounds=self.rounds,
            transactions=self.transactions,
        )

    @property
    def log_batches(self) -> int:
        """Number of logged batches."""
        return sum(log.batches for log in self.logs)

    @property
    def log_bytes(self) -> int:
        """Size of the logged batches, in bytes."""
        return sum(log.size for log in self.logs)

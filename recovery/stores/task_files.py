"""The files of one task in one epoch, as a manifest lists them (`task_tables.py` writes and reads them).

Small facts (whether the task has ended, its operators, the positions of its splits, the counts of its channels) are
stored in the manifest beside the list of files. So are the figures of the logs, so that they can be shown without
reading a log.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta, Struct, field

from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.routing import KEY_GROUPS
from backedge.recovery.cut.cut import Version
from backedge.recovery.restore.outline import OperatorOutline, RoundsOutline, TaskOutline
from backedge.recovery.stores.channel_tables import ChannelFigures, ChannelTable
from backedge.recovery.stores.digests import Digest
from backedge.recovery.stores.names import attempt_folder, path_of, table_file
from backedge.recovery.stores.shapes import IS_COUNT, Count, Hex, Index, Text

KeyGroup = Annotated[int, Meta(ge=0, lt=KEY_GROUPS)]
_Attempt = Annotated[Attempt, IS_COUNT]
_Epoch = Annotated[Epoch, IS_COUNT]


class StoredFile(Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its name relative to the job's folder, its size in bytes, and the digest of its content.

    `groups`: the first and the last key group of a state file; None for a file of rows without a group.
    """

    name: Text
    size: Count
    digest: Digest
    groups: tuple[KeyGroup, KeyGroup] | None

    def has_some_of(self, wanted: range) -> bool:
        """Whether the file holds key groups of this range, or rows without a group."""
        return self.groups is None or (self.groups[0] < wanted.stop and wanted.start <= self.groups[1])


class StateLayer(Struct, frozen=True, forbid_unknown_fields=True):
    """Keyed state that a task wrote for one cut: all of it, or the changes since the cut `base`.

    `attempt` and `filed` name the folder of its files. A compaction is filed under a number of its own and holds the
    combined content of the task's files of the cut `epoch`.
    """

    attempt: _Attempt
    filed: _Epoch | None
    epoch: _Epoch
    base: _Epoch | None
    files: tuple[StoredFile, ...]

    def __post_init__(self) -> None:
        if any(file.groups is None for file in self.files):
            raise ValueError("a file of keyed state names no key groups")

    @property
    def size(self) -> int:
        """The bytes of its files."""
        return sum(file.size for file in self.files)


class VersionFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The version `number` of `of`, and the file that holds it."""

    of: Text
    number: Count
    file: StoredFile

    @classmethod
    def of_version(cls, version: Version) -> VersionFile:
        return cls(version.of, version.number, StoredFile(version.file, version.size, version.digest, None))

    def as_version(self) -> Version:
        file = self.file
        return Version(self.of, self.number, None, file.name, file.size, file.digest)


class OperatorFacts(Struct, frozen=True, forbid_unknown_fields=True):
    """Small facts about an operator of a task.

    - whole_can_move, has_whole: whether its state without a key group can be rescaled, and whether it has any.
    - kind: its kind in the plan; None if the kind was not passed to `write_files`.
    - records: number of records that a source sent or a sink wrote.
    - splits: the splits of a source, each with its encoded position.
    - versions: those that the task has published and keeps.
    """

    name: Text
    whole_can_move: bool
    has_whole: bool
    kind: Text | None
    records: Count
    splits: tuple[tuple[Text, Hex], ...]
    versions: tuple[VersionFile, ...] = ()

    @property
    def positions(self) -> dict[str, bytes]:
        """Split -> its encoded position."""
        return {split: bytes.fromhex(position) for split, position in self.splits}


class LogFigures(Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of one loop's log. `size` is in bytes; `records` is None if a batch cannot be counted.

    Records of a log's first batch that were processed before the cut are not counted.
    """

    loop: Text
    batches: Count
    size: Count
    records: Count | None


class TaskFiles(Struct, frozen=True, forbid_unknown_fields=True):
    """The files that one task has written for a cut, with the facts that go into the manifest.

    - filed: the epoch that names the folder; None for the last state of a task.
    - rounds: only for tasks of an iteration.
    - overtook: whether the task captured before it had consumed its queues.
    - base: the cut relative to which the keyed state in `files` is a delta; None if it is complete.
    - below: if there is a `base`, the layers written before, oldest first. For each key the newest layer counts.
    - is_settled: whether the files are durable already; otherwise they become durable with the manifest.
    """

    name: Text = field(name="task")
    index: Index
    attempt: _Attempt
    filed: _Epoch | None
    epoch: _Epoch
    ended: bool
    operators: tuple[OperatorFacts, ...]
    files: tuple[StoredFile, ...]
    transactions: tuple[Text, ...]
    channels: tuple[ChannelTable, ...]
    logs: tuple[LogFigures, ...]
    state_rows: Count
    rounds: RoundsOutline | None
    overtook: bool
    base: _Epoch | None
    below: tuple[StateLayer, ...]
    is_settled: bool = True

    @property
    def task(self) -> TaskId:
        return TaskId(self.name, self.index)

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
    def versions(self) -> tuple[VersionFile, ...]:
        return tuple(version for facts in self.operators for version in facts.versions)

    def versions_of(self, operator: str) -> tuple[VersionFile, ...]:
        return next(facts.versions for facts in self.operators if facts.name == operator)

    @property
    def ends(self) -> Iterator[ChannelFigures]:
        """The task's end of each of its channels."""
        return (end for table in self.channels for end in table.ends)

    @property
    def logged(self) -> dict[ChannelId, int]:
        """Number of logged batches of each input channel whose log is not empty."""
        ends = (end for table in self.channels if table.logged for end in table.ends)
        return {end.channel: end.log_count for end in ends if end.log_count}

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
                    splits=facts.positions,
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
        return sum(log.batches for log in self.logs)

    @property
    def log_bytes(self) -> int:
        """Size of the logged batches, in bytes."""
        return sum(log.size for log in self.logs)

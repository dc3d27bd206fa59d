"""How the snapshot of a task is written to files, and how it is read from them. Empty tables are not written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import InputRecord, LogEntry, OperatorState, TaskSnapshot
from backedge.recovery.cut.keyed_parts import KeyedPart
from backedge.recovery.protocol.rounds import RoundsSnapshot
from backedge.recovery.restore.outline import rounds_outline
from backedge.recovery.stores import record_tables as records
from backedge.recovery.stores import state_table as states
from backedge.recovery.stores.channel_tables import ChannelFigures, tables_of
from backedge.recovery.stores.digests import TaskFileHash, digest_from, digest_of_task_file
from backedge.recovery.stores.file_contents import log_figures, said_of
from backedge.recovery.stores.names import (
    KEYED,
    Parts,
    Table,
    attempt_folder,
    is_of_rows,
    path_of,
    table_file,
    table_folder,
)
from backedge.recovery.stores.parquet_pages import WithBytes
from backedge.recovery.stores.parquet_tables import decode, decode_rows, encode, to_rows
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.task_files import LogFigures, OperatorFacts, StoredFile, TaskFiles, VersionFile

WRITTEN_AT_ONCE_BYTES = 8 << 20


class _Written:
    """Writes the files of a task between encoding them, so that only a few MB of them are in memory."""

    def __init__(self, settling: Settling) -> None:
        self.files: list[StoredFile] = []
        self._settling = settling
        self._waiting: dict[str, bytes] = {}
        self._waiting_bytes = 0

    def add(self, parts: Parts, data: bytes, groups: tuple[int, int] | None = None) -> None:
        """Add a file. Small files are collected: writing several at once costs little more than writing one."""
        name = path_of(parts)
        self.files.append(StoredFile(name, len(data), digest_of_task_file(data), groups))
        self._waiting[name] = data
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= WRITTEN_AT_ONCE_BYTES:
            self.flush()

    def add_part(self, parts: Parts, part: states.Part, repeating: Sequence[str]) -> None:
        """Add a file of rows. If it has many bytes, it is written at once, and they are never in memory together."""
        if part.values is None:
            self.add(parts, encode(part.columns, repeating), part.span)
            return
        name, hashed = path_of(parts), _Hashed(WithBytes(part.columns, repeating, part.values))
        self._settling.write_pieces(name, hashed)
        self.files.append(StoredFile(name, hashed.size, digest_from(hashed.hash), part.span))

    def flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        if waiting:
            self._settling.write(waiting)


class _Hashed:
    """Pieces of a file, with the size and the hash of those that were iterated over last."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces
        self.size = 0
        self.hash = TaskFileHash()

    def __iter__(self) -> Iterator[bytes]:
        self.size, self.hash = 0, TaskFileHash()
        for piece in self._pieces:
            # Here and not later, while the piece is in the processor's cache.
            self.hash.update(piece)
            self.size += len(piece)
            yield piece


def write_files(
    attempt: Attempt,
    filed: Epoch | None,
    snapshot: TaskSnapshot,
    loops: Mapping[str, str],
    kinds: Mapping[str, str],
    settling: Settling,
) -> TaskFiles:
    """Write a snapshot as files.

    `loops` maps each edge in a loop to its loop; the log of any other edge is filed under the edge's name. `kinds` maps
    each operator to its kind.
    """
    folder, task, written = attempt_folder(attempt, filed), snapshot.task, _Written(settling)
    if any(state.deltas for state in snapshot.operators.values()):
        raise ValueError(
            f"the snapshot of task {task} has deltas on top of its state, but a file holds one layer: write each "
            "layer when it is captured and name all files in the manifest, or merge the layers first"
        )
    state_rows = _write_operators(folder, snapshot, written)
    by_loop: dict[str, list[InputRecord]] = {}
    for record in snapshot.inputs:
        if record.log:
            by_loop.setdefault(loops.get(record.channel.edge, record.channel.edge), []).append(record)
    for loop, logged in by_loop.items():
        written.add_part(table_file(folder, "log", loop, task), records.log_part(logged), records.REPEATING_IN_LOG)
    if snapshot.rounds is not None:
        written.add(table_file(folder, "rounds", None, task), encode(records.rounds_table(snapshot.rounds)))
    written.flush()
    return TaskFiles(
        name=task.name,
        index=task.index,
        attempt=attempt,
        filed=filed,
        epoch=snapshot.epoch,
        ended=snapshot.ended,
        operators=tuple(
            OperatorFacts(
                name=name,
                whole_can_move=state.whole_can_move,
                has_whole=state.whole is not None,
                kind=kinds.get(name),
                records=state.records,
                splits=tuple((split, position.hex()) for split, position in state.splits.items()),
                versions=tuple(map(VersionFile.of_version, state.versions)),
            )
            for name, state in snapshot.operators.items()
        ),
        files=tuple(written.files),
        transactions=tuple(t.name for state in snapshot.operators.values() for t in state.transactions),
        channels=tables_of(
            [*map(ChannelFigures.of_input, snapshot.inputs), *map(ChannelFigures.of_output, snapshot.outputs)]
        ),
        logs=tuple(_log_figures(loop, logged) for loop, logged in by_loop.items()),
        state_rows=state_rows,
        rounds=rounds_outline(snapshot.rounds),
        overtook=snapshot.overtook,
        base=snapshot.base,
        below=(),
    )


def _write_operators(folder: Parts, snapshot: TaskSnapshot, written: _Written) -> int:
    """Add the files of all operators; return the number of rows of state."""
    task, rows = snapshot.task, 0
    for name, state in snapshot.operators.items():
        numbers = dict.fromkeys(KEYED, 0)
        for part in states.state_parts(state):
            rows += part.columns.num_rows
            parts = table_file(folder, part.table, name, task, numbers[part.table])
            numbers[part.table] += 1
            repeating = states.REPEATING if part.table == "state" else ()
            written.add_part(parts, part, repeating)
        if state.transactions:
            transactions = encode(records.transactions_table(state.transactions))
            written.add(table_file(folder, "transactions", name, task), transactions)
    return rows


def _log_figures(loop: str, logged: list[InputRecord]) -> LogFigures:
    batches = ((entry.payload, entry.skip) for record in logged for entry in record.log)
    return log_figures(loop, batches, records.records_in_batch)


class TaskReader:
    """Reads a snapshot, or parts of one, from its files. `read` returns the verified bytes of a file."""

    def __init__(self, described: TaskFiles, read: Callable[[StoredFile], bytes]) -> None:
        self._described = described
        self._read = read
        self._folder = attempt_folder(described.attempt, described.filed)
        self._files = {file.name: file for file in described.all_files}
        self._in_folder: dict[str, list[StoredFile]] = {}
        for file in described.all_files:
            self._in_folder.setdefault(file.name.rpartition("/")[0], []).append(file)
        self._unread = set(self._files)
        self._facts = {facts.name: facts for facts in described.operators}
        self._said = said_of(described)

    def snapshot(self) -> TaskSnapshot:
        """Read the whole snapshot. Raises if a file is missing or does not belong to the snapshot."""
        described = self._described
        logs, ends = self.logs(), tuple(described.ends)
        snapshot = TaskSnapshot(
            task=described.task,
            epoch=described.epoch,
            attempt=described.attempt,
            operators={name: self.state(name) for name in self._facts},
            inputs=tuple(end.as_input(logs.get(end.channel, ())) for end in ends if end.direction == "in"),
            outputs=tuple(end.as_output() for end in ends if end.direction == "out"),
            ended=described.ended,
            rounds=self.rounds(),
            overtook=described.overtook,
        )
        if self._unread:
            raise self._contradicts(", ".join(sorted(self._unread)))
        return snapshot

    def state(self, operator: str, groups: range | None = None) -> OperatorState:
        """Read the state of one operator, with all key groups or only those in `groups`."""
        facts = self._facts[operator]
        table = self._table("transactions", operator, records.TRANSACTIONS)
        transactions = () if table is None else records.transactions_in(table)
        self._compare("transactions", operator, [transaction.name for transaction in transactions] or None)
        keyed: list[StoredFile] = []
        pending, whole = (), None
        for file in self._state_files(self._folder, operator, groups):
            if file.groups is None:
                rows = self.state_part(operator, file)
                if pending or whole is not None:
                    raise self._contradicts(f"two files of {operator} without key groups")
                pending, whole = states.rest_of(rows)
            else:
                keyed.append(file)
        below = [
            tuple(self._state_files(attempt_folder(layer.attempt, layer.filed), operator, groups))
            for layer in self._described.below
        ]
        first, *deltas = (_KeyedParts(self, operator, files, groups) for files in (*below, tuple(keyed)))
        self._compare("state", operator, whole is not None or None)
        return OperatorState(
            keyed=first,
            splits=facts.positions,
            pending=pending,
            whole=whole,
            whole_can_move=facts.whole_can_move,
            transactions=transactions,
            records=facts.records,
            deltas=tuple(deltas),
            versions=tuple(version.as_version() for version in facts.versions),
        )

    def state_layers(self, operator: str) -> Iterator[Iterator[Any]]:
        """The rows of an operator's state as tables, layer by layer, oldest first: for readers that decode no entry.

        The last layer is the cut's own; it may also hold rows without a key group.
        """
        below = (attempt_folder(layer.attempt, layer.filed) for layer in self._described.below)
        for folder in (*below, self._folder):
            yield (self.state_part(operator, file) for file in self._state_files(folder, operator, None))

    def _state_files(self, folder_of_task: Parts, operator: str, groups: range | None) -> Iterator[StoredFile]:
        folders = [path_of((*folder_of_task, *table_folder(table, operator))) for table in KEYED]
        for file in (file for folder in folders for file in self._in_folder.get(folder, ())):
            if groups is None or file.has_some_of(groups):
                self._unread.discard(file.name)
                yield file

    def state_part(self, operator: str, file: StoredFile) -> Any:
        """Read the rows of one file of an operator's state."""
        if is_of_rows(file.name):
            self._unread.discard(file.name)
            part = decode_rows(self._read(file), file.name)
        else:
            part = self._decoded(file, states.STATE)
            if odd := next(states.odd_rows(part), None):
                raise self._contradicts(f"{operator}: {odd.what}")
        if not states.has_span(part, file.groups):
            raise self._contradicts(f"key groups of {operator}")
        return part

    def logs(self) -> dict[ChannelId, tuple[LogEntry, ...]]:
        """Read the logs of the input channels that have one."""
        logs: dict[ChannelId, tuple[LogEntry, ...]] = {}
        for figures in self._described.logs:
            log = self._table("log", figures.loop, records.LOG)
            if log is not None:
                logs.update(records.logs_in(log))
        counts = {channel: len(entries) for channel, entries in logs.items()}
        if counts != self._described.logged:
            raise self._contradicts("logs")
        return logs

    def rounds(self) -> RoundsSnapshot | None:
        """Read the round state; None for a task outside of iterations."""
        table = self._table("rounds", None, records.ROUNDS)
        try:
            rounds = None if table is None else records.rounds_in(table)
        except ValueError as error:
            raise self._contradicts("rounds") from error
        if rounds_outline(rounds) != self._described.rounds:
            raise self._contradicts("rounds")
        return rounds

    def rounds_data(self) -> bytes | None:
        """The pickled round state, for readers that unpickle nothing; None for a task outside of iterations."""
        table = self._table("rounds", None, records.ROUNDS)
        return None if table is None else to_rows(table)[0][-1]

    def _table(self, table: Table, of: str | None, schema: Any) -> Any | None:
        name = path_of(table_file(self._folder, table, of, self._described.task))
        return self._decoded(self._files[name], schema) if name in self._files else None

    def _decoded(self, file: StoredFile, schema: Any) -> Any:
        self._unread.discard(file.name)
        return decode(self._read(file), schema, file.name)

    def _compare(self, table: Table, operator: str, held: Any) -> None:
        if self._said.get(table_folder(table, operator)) != held:
            raise self._contradicts(f"{table} of {operator}")

    def _contradicts(self, what: str) -> SnapshotCorruptError:
        described = self._described
        return SnapshotCorruptError(
            f"the manifest of epoch {described.epoch} tells something else of task {described.task} than its files "
            f"hold ({what}): read it with the version that wrote it, or restore another cut"
        )


@dataclass(frozen=True, slots=True)
class _KeyedParts:
    """Keyed state of the wanted key groups in some files. Iteration reads one file at a time and keeps none."""

    reader: TaskReader
    operator: str
    files: tuple[StoredFile, ...]
    wanted: range | None

    def __iter__(self) -> Iterator[KeyedPart]:
        for file in self.files:
            yield from states.parts_of(self.reader.state_part(self.operator, file), self.wanted)


class StoredCut:
    """The files of a cut, read part by part. Implements `backedge.recovery.restore.restore_task.CutFiles`."""

    def __init__(self, tasks: Mapping[TaskId, TaskFiles], read: Callable[[StoredFile], bytes]) -> None:
        self._readers = {task: TaskReader(files, read) for task, files in tasks.items()}

    def state(self, task: TaskId, operator: str, groups: range | None = None) -> OperatorState:
        return self._readers[task].state(operator, groups)

    def logs(self, task: TaskId) -> Mapping[ChannelId, tuple[LogEntry, ...]]:
        return self._readers[task].logs()

    def rounds(self, task: TaskId) -> RoundsSnapshot | None:
        return self._readers[task].rounds()

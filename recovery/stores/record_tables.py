"""Tables of a snapshot besides keyed state: loop logs, transactions, rounds.

- log: one row per batch, in order, with the channel's digest before and after it, so that an auditor can check the log
  row by row. The first `skip` records of the batch were processed before the cut.
- transactions: one row per transaction.
- rounds: one row. `data` is a pickle of plain tuples and dicts, because a cut contains none of our classes.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.cut.cut import InputRecord, LogEntry, Transaction
from backedge.recovery.protocol.messages import Path
from backedge.recovery.protocol.rounds import Phase, RoundsSnapshot
from backedge.recovery.stores.parquet_pages import BytesColumn, is_worth_pages
from backedge.recovery.stores.parquet_tables import arrow_array, from_rows, pa, schema, to_rows
from backedge.recovery.stores.state_table import Part, PlainUnpickler

_ENDS = {
    "edge": "string",
    "sender": "string",
    "sender_index": "int32",
    "receiver": "string",
    "receiver_index": "int32",
    "restored": "bool_",
}
LOG = schema(
    {
        "position": "int64",
        **_ENDS,
        "seq": "int64",
        "digest_before": "int64",
        "digest_after": "int64",
        "skip": "int64",
        "payload": "binary",
    }
)
TRANSACTIONS = schema({"name": "string", "epoch": "int64", "attempt": "int64", "records": "int64"})
ROUNDS = schema({"phase": "string", "current": "string", "data": "binary"})

REPEATING_IN_LOG = ("edge", "sender", "receiver")

_COLUMNS_HEADER_BYTES = 16
"""Length of the header before the Arrow stream in a batch of columns."""
_ENDS_COUNT = len(_ENDS)


def _ends(channel: ChannelId) -> tuple[Any, ...]:
    edge, sender, receiver, restored = channel
    return (edge, *sender, *receiver, restored)


def _channel(ends: tuple[Any, ...]) -> ChannelId:
    edge, sender, sender_index, receiver, receiver_index, restored = ends
    return ChannelId(edge, TaskId(sender, sender_index), TaskId(receiver, receiver_index), restored)


# -- logs ------------------------------------------------------------------------------------------------------


def log_part(records: Sequence[InputRecord]) -> Part:
    """Build the rows of the logged batches, channel by channel."""
    rows: list[tuple[Any, ...]] = []
    for record in records:
        ends = _ends(record.channel)
        rows += [
            (len(rows) + n, *ends, e.seq, e.digest_before, e.digest_after, e.skip) for n, e in enumerate(record.log)
        ]
    payloads = [entry.payload for record in records for entry in record.log]
    place = LOG.get_field_index("payload")
    table, sizes = from_rows(LOG.remove(place), rows), np.fromiter(map(len, payloads), np.int64, len(payloads))
    column = BytesColumn("payload", place, payloads, sizes)
    if is_worth_pages(column):
        return Part(table, None, "log", column)
    return Part(table.append_column(LOG.field(place), arrow_array(payloads, pa.binary())), None, "log")


def logs_in(table: Any) -> dict[ChannelId, tuple[LogEntry, ...]]:
    """Read the logged batches of each channel, in order."""
    logs: dict[ChannelId, list[LogEntry]] = {}
    for _, *rest in sorted(to_rows(table), key=lambda row: row[0]):
        seq, before, after, skip, payload = rest[_ENDS_COUNT:]
        logs.setdefault(_channel(tuple(rest[:_ENDS_COUNT])), []).append(LogEntry(seq, payload, before, after, skip))
    return {channel: tuple(entries) for channel, entries in logs.items()}


def records_in_batch(payload: bytes) -> int | None:
    """Count the records or rows of an encoded batch: 0 for a round marker, None if the encoding is unknown.

    >>> records_in_batch(pickle.dumps((["a", "b"], 0), 5)), records_in_batch(b"?")
    (2, None)
    """
    if payload[:1] == b"M":
        return 0
    try:
        if payload[:1] == b"A":
            return columns_in(payload).num_rows
        batch = PlainUnpickler(io.BytesIO(payload)).load()
    except Exception:  # noqa: BLE001  # bytes of an unknown encoding may raise anything
        return None
    records, _ = cast("tuple[Any, Any]", batch) if _is_pair(batch) else (None, None)
    return len(cast("list[Any]", records)) if type(records) is list else None


def columns_in(payload: bytes) -> Any:
    """The Arrow batch in an encoded batch of columns, which takes no more memory than the payload.

    Raises `ValueError` if it is compressed: ours never are, and a forged one could become a thousand times as large.
    """
    stream = payload[_COLUMNS_HEADER_BYTES:]
    for message in pa.ipc.MessageReader.open_stream(stream):
        if message.type not in ("schema", "dictionary", "record batch"):
            raise ValueError(f"a batch of columns has a message of type {message.type}")
        if message.type != "schema" and _is_compressed(memoryview(message.metadata), message.type == "dictionary"):
            raise ValueError("a batch of columns is compressed")
        if message.type == "record batch":
            return pa.ipc.open_stream(stream).read_next_batch()
    raise ValueError("a batch of columns has no rows and no end")


def _is_compressed(metadata: memoryview, is_dictionary: bool) -> bool:
    """Whether the metadata of a message, a flatbuffer, says that the buffers behind it are compressed."""
    (message,) = _OFFSET.unpack_from(metadata, 0)
    batch = _field_of(metadata, message, _HEADER)
    if batch is not None and is_dictionary:
        batch = _field_of(metadata, batch, _DATA)
    return batch is None or _field_of(metadata, batch, _COMPRESSION) is not None


def _field_of(metadata: memoryview, table: int, number: int) -> int | None:
    """Where a field of a table leads to that is a table itself; None if the table lacks it."""
    place = table - _SIGNED_OFFSET.unpack_from(metadata, table)[0]
    (size,), entry = _SHORT.unpack_from(metadata, place), 4 + 2 * number
    (offset,) = _SHORT.unpack_from(metadata, place + entry) if entry < size else (0,)
    return table + offset + _OFFSET.unpack_from(metadata, table + offset)[0] if offset else None


_OFFSET, _SIGNED_OFFSET, _SHORT = struct.Struct("<I"), struct.Struct("<i"), struct.Struct("<H")
_HEADER, _DATA, _COMPRESSION = 2, 1, 3
"""The numbers of these fields in Arrow's tables Message, DictionaryBatch and RecordBatch."""


def _is_pair(value: Any) -> bool:
    return type(value) is tuple and len(cast("tuple[Any, ...]", value)) == 2


# -- transactions, rounds ----------------------------------------------------------------------------------------


def transactions_table(transactions: Iterable[Transaction]) -> Any:
    return from_rows(TRANSACTIONS, [(t.name, t.epoch, t.attempt, t.records) for t in transactions])


def transactions_in(table: Any) -> tuple[Transaction, ...]:
    """Read the transactions, in the order in which they were prepared."""
    return tuple(
        Transaction(name, Epoch(epoch), Attempt(attempt), records) for name, epoch, attempt, records in to_rows(table)
    )


def rounds_table(rounds: RoundsSnapshot) -> Any:
    plain = (
        rounds.current,
        rounds.phase.value,
        rounds.leaving,
        {_ends(channel): path for channel, path in rounds.given.items()},
        {_ends(channel): batches for channel, batches in rounds.aside.items()},
        {tuple(task): value for task, value in rounds.contributions.items()},
        {tuple(task): value for task, value in rounds.enclosing.items()},
        rounds.is_head,
        {_ends(channel): skip for channel, skip in rounds.skips.items()},
    )
    return from_rows(ROUNDS, [(rounds.phase.value, _shown_path(rounds.current), pickle.dumps(plain, 5))])


def rounds_in(table: Any, load: Callable[[bytes], Any] = pickle.loads) -> RoundsSnapshot:
    """Read the round state. Its data is unpickled, so the bytes must have been verified before.

    Raises `ValueError` if the columns beside the pickle show something else.
    """
    ((shown_phase, shown_current, data),) = to_rows(table)
    current, phase, leaving, given, aside, contributions, enclosing, is_head, skips = load(data)
    if (shown_phase, shown_current) != (phase, _shown_path(current)):
        raise ValueError("a row of rounds differs from its pickle")
    return RoundsSnapshot(
        current,
        Phase(phase),
        leaving,
        {_channel(ends): path for ends, path in given.items()},
        {_channel(ends): batches for ends, batches in aside.items()},
        {TaskId(*task): value for task, value in contributions.items()},
        {TaskId(*task): value for task, value in enclosing.items()},
        is_head,
        {_channel(ends): skip for ends, skip in skips.items()},
    )


def _shown_path(path: Path) -> str:
    return ".".join(map(str, path))

"""What a snapshot holds besides keyed state, as rows: loop logs, transactions, rounds.

- log: a row a batch, in order, with the channel's digest before and after it: an auditor checks links row by row.
  `skip` records at the start of the batch were processed before the cut.
- transactions: a row each.
- rounds: one row; `data` is a pickle of plain tuples and dicts, for no class of ours is in a cut.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from typing import Any, cast

from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery.cut import InputRecord, LogEntry, Transaction
from recovery.rounds import Phase, RoundsSnapshot
from recovery.stores.parquet_tables import from_rows, pa, schema, to_rows
from recovery.stores.state_table import PlainUnpickler

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
"""What stands in front of the Arrow stream of a batch of columns."""
_ENDS_COUNT = len(_ENDS)


def _ends(channel: ChannelId) -> tuple[Any, ...]:
    edge, sender, receiver, restored = channel
    return (edge, *sender, *receiver, restored)


def _channel(ends: tuple[Any, ...]) -> ChannelId:
    edge, sender, sender_index, receiver, receiver_index, restored = ends
    return ChannelId(edge, TaskId(sender, sender_index), TaskId(receiver, receiver_index), restored)


# -- logs ------------------------------------------------------------------------------------------------------


def log_table(records: Iterable[InputRecord]) -> Any:
    """The logged batches of some channels, channel by channel."""
    rows: list[tuple[Any, ...]] = []
    for record in records:
        ends = _ends(record.channel)
        rows += [
            (len(rows) + n, *ends, e.seq, e.digest_before, e.digest_after, e.skip, e.payload)
            for n, e in enumerate(record.log)
        ]
    return from_rows(LOG, rows)


def logs_in(table: Any) -> dict[ChannelId, tuple[LogEntry, ...]]:
    """Channel -> its logged batches, in order."""
    logs: dict[ChannelId, list[LogEntry]] = {}
    for _, *rest in sorted(to_rows(table), key=lambda row: row[0]):
        seq, before, after, skip, payload = rest[_ENDS_COUNT:]
        logs.setdefault(_channel(tuple(rest[:_ENDS_COUNT])), []).append(LogEntry(seq, payload, before, after, skip))
    return {channel: tuple(entries) for channel, entries in logs.items()}


def records_in_batch(payload: bytes) -> int | None:
    """How many records or rows an encoded batch holds; a round marker holds none. None where its encoding is unknown.

    >>> records_in_batch(pickle.dumps((["a", "b"], 0), 5)), records_in_batch(b"?")
    (2, None)
    """
    if payload[:1] == b"M":
        return 0
    try:
        if payload[:1] == b"A":
            return pa.ipc.open_stream(payload[_COLUMNS_HEADER_BYTES:]).read_next_batch().num_rows
        batch = PlainUnpickler(io.BytesIO(payload)).load()
    except Exception:  # noqa: BLE001  # another encoding may look like anything
        return None
    records, _ = cast("tuple[Any, Any]", batch) if _is_pair(batch) else (None, None)
    return len(cast("list[Any]", records)) if type(records) is list else None


def _is_pair(value: Any) -> bool:
    return type(value) is tuple and len(cast("tuple[Any, ...]", value)) == 2


# -- transactions, rounds ----------------------------------------------------------------------------------------


def transactions_table(transactions: Iterable[Transaction]) -> Any:
    """What a sink has prepared and not yet committed."""
    return from_rows(TRANSACTIONS, [(t.name, t.epoch, t.attempt, t.records) for t in transactions])


def transactions_in(table: Any) -> tuple[Transaction, ...]:
    """The transactions, in the order in which they were prepared."""
    return tuple(
        Transaction(name, Epoch(epoch), Attempt(attempt), records) for name, epoch, attempt, records in to_rows(table)
    )


def rounds_table(rounds: RoundsSnapshot) -> Any:
    """The state of rounds in one task."""
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
    current = ".".join(map(str, rounds.current))
    return from_rows(ROUNDS, [(rounds.phase.value, current, pickle.dumps(plain, 5))])


def rounds_in(table: Any) -> RoundsSnapshot:
    """The state of rounds, from bytes that have been verified."""
    ((_, _, data),) = to_rows(table)
    current, phase, leaving, given, aside, contributions, enclosing, is_head, skips = pickle.loads(data)
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

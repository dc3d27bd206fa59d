"""Handmade snapshots with something of everything in them, and what it takes to make a cut of them."""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from backedge.engine.state.keyed_state import encode_entries
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import RESTORED_SENDER, Attempt, ChannelId, Epoch, TaskId
from backedge.graphs.plan import Plan
from backedge.recovery.cut.cut import InputRecord, LogEntry, OperatorState, OutputRecord, TaskSnapshot, Transaction
from backedge.recovery.cut.keyed_parts import KeyedPart, entries_in
from backedge.recovery.protocol.messages import Marker, Mode, encode_marker
from backedge.recovery.protocol.orders import AttemptStart, Entry, Manifest
from backedge.recovery.protocol.rounds import Phase, RoundsSnapshot
from backedge.recovery.protocol.supervisor import Supervisor
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.task_files import TaskFiles

SOURCE, RANK, SINK = TaskId("orders", 0), TaskId("rank", 0), TaskId("done", 0)
AGAIN = "rank.out->rank.in"
IN = ChannelId("orders.out->rank.in", SOURCE, RANK)
BACK = ChannelId(AGAIN, RANK, RANK)
OUT = ChannelId("rank.done->done.in", RANK, SINK)
LOOPS = {AGAIN: "again"}
KINDS = {"orders": "source", "cleaned": "map", "rank": "process", "counts": "stateful_map", "sums": "process"}
KINDS |= {"done": "sink"}
DEPLOYMENT = Deployment(Plan("job", {}, (), "abc"), {}, {}, (), {"rank": 1})
LARGE = 1 << 70


def held(
    values: Mapping[Any, Any], timers: Sequence[tuple[Any, int, int]] = (), gone: Sequence[Any] = ()
) -> tuple[KeyedPart, ...]:
    return encode_entries("held", dict(values), timers, gone)


def decoded(parts: Iterable[KeyedPart]) -> list[tuple[Any, ...]]:
    """What encoded state means: values in the order of their keys, then timers in the order in which they fire."""
    entries = [
        (group, entry) for part in parts for group, entry in zip(part.groups.tolist(), entries_in(part), strict=True)
    ]
    values = [(group, *entry) for group, entry in entries if len(entry) == 2]
    return sorted(values, key=repr) + [(group, *entry) for group, entry in entries if len(entry) != 2]


def log_of(*payloads: bytes, first: int = 1, before: int = 0) -> tuple[LogEntry, ...]:
    entries: list[LogEntry] = []
    for seq, payload in enumerate(payloads, start=first):
        after = zlib.crc32(payload, before)
        entries.append(LogEntry(seq, payload, before, after))
        before = after
    return tuple(entries)


def batch_of(*records: Any) -> bytes:
    return pickle.dumps((list(records), 0), 5)


def source(epoch: int, attempt: int = 1) -> TaskSnapshot:
    splits = {"a.jsonl": pickle.dumps(7, 5), "b.jsonl": pickle.dumps((3, 4), 5), "ä/ö": pickle.dumps(LARGE, 5)}
    states = {"orders": OperatorState(splits=splits, records=10), "cleaned": OperatorState()}
    return TaskSnapshot(SOURCE, Epoch(epoch), Attempt(attempt), states, (), (OutputRecord(IN, 3, 0xDEADBEEF),))


def rank(epoch: int, attempt: int = 1) -> TaskSnapshot:
    values = {"a": 1, "b": 2.5, "c": "text", "ä": [1], 7: "seven", LARGE: 1, (1, "x"): None, True: {"k": {1, 2}}}
    state = OperatorState(
        keyed=held(values, [("a", 100, 0), ("a", 90, 1), (3, 50, 2)]),
        pending=(pickle.dumps(({"n": 1}, 0), 5), pickle.dumps(("waits", 2), 5)),
        whole=pickle.dumps({"random": (3, (1, 2), None)}, 5),
        whole_can_move=False,
    )
    again = log_of(
        batch_of("x", "y"), encode_marker(Marker((0,), ((RANK, 5),))), batch_of({"id": 1}), first=4, before=9
    )
    restored = BACK._replace(sender=RESTORED_SENDER, restored=True)
    rounds = RoundsSnapshot(
        (2, 0), Phase.RETURN, (2,), {BACK: (2, 0)}, {IN: (b"M1", batch_of(1))}, {RANK: {"sum": 5}}, {SOURCE: 1}, True
    )
    return TaskSnapshot(
        task=RANK,
        epoch=Epoch(epoch),
        attempt=Attempt(attempt),
        operators={"rank": state, "counts": OperatorState(keyed=held({n: n * n for n in range(-500, 500)}))},
        inputs=(
            InputRecord(IN, False, 3, 0xDEADBEEF, ended=True),
            InputRecord(restored, True, 0, 0, log_of(batch_of("old"))),
            InputRecord(BACK, True, 3, 9, again),
        ),
        outputs=(OutputRecord(BACK, 6, 12), OutputRecord(OUT, 1, 1)),
        rounds=rounds,
    )


def sink(epoch: int, attempt: int = 1, *, ended: bool = False) -> TaskSnapshot:
    transactions = (
        Transaction("done.0.late", Epoch(3), Attempt(1), 4),
        Transaction("done.0.early", Epoch(1), Attempt(1), 3),
    )
    states = {"done": OperatorState(transactions=transactions, records=7)}
    inputs = (InputRecord(OUT, False, 1, 1, ended=ended),)
    return TaskSnapshot(SINK, Epoch(epoch), Attempt(attempt), states, inputs, (), ended)


def snapshots_of(epoch: int, attempt: int = 1, *, ended: bool = False) -> dict[TaskId, TaskSnapshot]:
    """A cut of three tasks. With `ended`, the sink's is its last state."""
    parts = (source(epoch, attempt), rank(epoch, attempt), sink(epoch, attempt, ended=ended))
    return {part.task: part for part in parts}


def write(
    store: CutStore, snapshots: Mapping[TaskId, TaskSnapshot], left_bytes_max: int = 0
) -> dict[TaskId, TaskFiles]:
    """What the tasks do: write their parts, and make them durable or leave that to the coordinator."""
    options: dict[str, Any] = {"loops": LOOPS, "kinds": KINDS, "left_bytes_max": left_bytes_max}
    return {
        task: store.write_task(part.attempt, None if part.ended else part.epoch, part, **options)
        for task, part in snapshots.items()
    }


def manifest_for(files: Mapping[TaskId, TaskFiles], epoch: int, attempt: int = 1, name: str | None = None) -> Manifest:
    transactions = {task: described.transactions for task, described in files.items() if described.transactions}
    filed = {task: described.filed for task, described in files.items()}
    return Manifest(Epoch(epoch), Attempt(attempt), Mode.ALIGNED, filed, transactions, name)


def begin(store: CutStore, attempt: int = 1, restored: int | None = None) -> None:
    epoch = None if restored is None else Epoch(restored)
    append(store, AttemptStart(Attempt(attempt), epoch))


def begun(root: Path, key: bytes | None = None) -> CutStore:
    """The store of a job whose first attempt is claimed."""
    store = CutStore(str(root), "job", key)
    begin(store)
    return store


def complete(
    store: CutStore, epoch: int, attempt: int = 1, *, ended: bool = False, name: str | None = None
) -> Manifest:
    files = write(store, snapshots_of(epoch, attempt, ended=ended))
    entry = manifest_for(files, epoch, attempt, name)
    append(store, entry, files)
    return entry


def append(store: CutStore, entry: Entry, files: Mapping[TaskId, TaskFiles] | None = None) -> None:
    number = max((number for number, _ in store.numbered()), default=0) + 1
    # Not an assertion: under -O the entry would not be created.
    if not store.create(number, entry, files, DEPLOYMENT):
        raise LookupError(f"entry {number} is taken")


def sweep(store: CutStore, attempt: int) -> None:
    """What the supervisor of an attempt has removed that it finds."""
    supervisor = Supervisor("sweeper")
    supervisor.read(store.numbered())
    store.sweep(replace(supervisor.sweep(), attempt=Attempt(attempt)))


def meaning(snapshot: TaskSnapshot) -> TaskSnapshot:
    operators: dict[str, Any] = {
        name: replace(state, keyed=decoded(state.keyed))  # type: ignore[arg-type]
        for name, state in snapshot.operators.items()
    }
    return replace(snapshot, operators=operators)

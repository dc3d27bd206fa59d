"""What a capture has encoded waits on disk if it is large, and nothing of it is lost there."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest

from backedge.engine.state import spilled_pickles
from backedge.engine.state.keyed_state import Entries, StateEncoder
from backedge.graphs.routing import key_group
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.cut.keyed_parts import Pickles, entries_of
from backedge.recovery.stores import state_table
from backedge.recovery.stores.parquet_tables import decode, encode
from backedge.recovery.stores.state_table import PICKLED, REPEATING, STATE, Part, parts_of, pickled_row, state_parts
from tests.gates import HANG_S

NUMBERS = {number: number for number in range(2_000)}
VALUES = {f"key {number}": [number] for number in range(2_000)} | NUMBERS
OPAQUE = {number - 1_000: (number, b"x" * (number % 7)) for number in range(2_000)}
BYTES = {number - 1_000: b"x" * (number % 7) for number in range(2_000)}
SOME_BYTES = {number: value if number % 3 else None for number, value in BYTES.items()}
MIXED = {number: OPAQUE[number] if number % 5 else SOME_BYTES[number] for number in OPAQUE}
TIMERS = [(f"key {number}", number, 0) for number in range(500)]
SHARE_MB, PIECE_BYTES = 100, 10_000


def encoder(values: dict[Any, Any] = VALUES, timers: list[Any] = TIMERS) -> StateEncoder:
    made = StateEncoder("op", Entries(values), timers)
    while made.encode_some(700) == 700:
        continue
    return made


def spilled(made: StateEncoder) -> int:
    return made._pickles.bytes_spilled


@pytest.fixture(params=[VALUES, OPAQUE], ids=["values", "opaque"])
def values(request: pytest.FixtureRequest) -> dict[Any, Any]:
    return request.param


@pytest.fixture
def in_memory(values: dict[Any, Any]) -> list[tuple[Any, ...]]:
    made = encoder(values)
    assert not spilled(made)
    return entries_of(made.parts())


def test_pickles_that_waited_on_disk_are_those_that_did_not(
    monkeypatch: pytest.MonkeyPatch, values: dict[Any, Any], in_memory: list[tuple[Any, ...]]
):
    monkeypatch.setattr(spilled_pickles, "KEPT_BYTES_MAX", PIECE_BYTES)
    made = encoder(values)
    assert spilled(made) > PIECE_BYTES
    assert entries_of(made.parts()) == in_memory
    assert entries_of(made.parts()) == in_memory, "a snapshot that could not be written is written again"
    assert len(in_memory) == len(values) + len(TIMERS)


def test_a_full_disk_leaves_the_rest_in_memory(
    monkeypatch: pytest.MonkeyPatch, values: dict[Any, Any], in_memory: list[tuple[Any, ...]]
):
    monkeypatch.setattr(spilled_pickles, "KEPT_BYTES_MAX", PIECE_BYTES)
    accepted: list[int] = []
    pwrite = os.pwrite

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        if len(accepted) == 300:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        accepted.append(pwrite(descriptor, data[:50], offset))
        return accepted[-1]

    monkeypatch.setattr(os, "pwrite", write)
    made = encoder(values)
    assert len(accepted) == 300
    assert spilled(made) < sum(accepted)
    assert entries_of(made.parts()) == in_memory


def test_a_file_that_cannot_be_made_leaves_all_in_memory_and_nothing_on_stderr(
    monkeypatch: pytest.MonkeyPatch, values: dict[Any, Any], in_memory: list[tuple[Any, ...]]
):
    def refuse(**options: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    told: list[Any] = []
    monkeypatch.setattr(spilled_pickles, "KEPT_BYTES_MAX", PIECE_BYTES)
    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    made = encoder(values)
    assert entries_of(made.parts()) == in_memory
    assert spilled(made) == 0
    assert told == []


def test_bytes_are_not_pickled_beside_other_values_either():
    """So a large graph, beside values that change, delays no round of its task."""
    large = b"x" * (1 << 20)
    values = {number: large if number % 2 else (number,) for number in range(40)}
    parts = encoder(values, []).parts()
    assert sum(len(part.stretch) for part in parts if isinstance(part, Pickles)) < 20 * 100
    assert dict(entries_of(parts)) == values


@pytest.mark.parametrize("make", [bytes, bytearray], ids=["bytes", "pickled"])
def test_large_values_are_filed_beside_others_as_long_as_each_fits(monkeypatch: pytest.MonkeyPatch, make: Any):
    """The largest number of bytes of an array counts for each value, and not for one with those that follow it."""
    monkeypatch.setattr(state_table, "_CHUNK_BYTES", 1_000)
    monkeypatch.setattr(state_table, "_ARRAY_BYTES_MAX", 2_047)
    keys = [key for key in range(2_000) if key_group(key) == 0]
    for sizes in ([900, 1_300, 800], [1_900, 1_900, 10, 1_900], [0, 1_900, 0], [500] * 9):
        values = {key: make(size) for key, size in zip(keys, sizes, strict=False)}
        assert dict(from_file(state_parts(OperatorState(encoder(values, []).parts())))) == values
    with pytest.raises(OSError, match=r"a value has 2,\d\d\d bytes, and a table holds at most 2,047 of one"):
        list(state_parts(OperatorState(encoder({keys[0]: make(2_100), keys[1]: make(5)}, []).parts())))


def from_file(parts: Iterable[Part]) -> list[tuple[Any, ...]]:
    tables = (decode(encode(part.rows, REPEATING), STATE, "part") for part in parts)
    return [entry for table in tables for entry in entries_of(parts_of(table))]


def test_a_file_that_has_lost_something_fails_the_snapshot(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(spilled_pickles, "KEPT_BYTES_MAX", 0)
    (part,) = encoder({"a": [1]}, []).parts()
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: b"tw")
    with pytest.raises(OSError, match=r"lost \d+ bytes at 0"):
        entries_of([part])


@pytest.mark.parametrize("kept", [PIECE_BYTES, 1 << 20])
@pytest.mark.parametrize("values", [OPAQUE, BYTES, SOME_BYTES, MIXED, VALUES], ids=range(5))
def test_what_columns_show_beside_a_pickle_is_what_it_holds(
    monkeypatch: pytest.MonkeyPatch, values: dict[Any, Any], kept: int
):
    monkeypatch.setattr(spilled_pickles, "KEPT_BYTES_MAX", kept)
    monkeypatch.setattr(state_table, "PART_BYTES", 20_000)
    parts = list(state_parts(OperatorState(encoder(values).parts())))
    assert len(parts) > 3
    rows = [row for part in parts for row in part.rows.to_pylist() if row["data"] is not None]
    assert rows and all(tuple(row[n] for n in PICKLED) == pickled_row(row["key_group"], row["data"]) for row in rows)
    found = from_file(parts)
    assert dict(entry for entry in found if len(entry) == 2) == values
    assert Counter(entry for entry in found if len(entry) == 3) == Counter(TIMERS) and len(found) == len(values) + 500


def test_bytes_have_a_column_of_their_own_and_are_neither_pickled_nor_compressed_in_vain():
    values = {number: os.urandom(1_000) if number % 2 else None for number in range(3_000)}
    (part,) = state_parts(OperatorState(encoder(values, []).parts()))
    rows = {row["key_int"]: row for row in part.rows.to_pylist()}
    assert {key: row["value_bytes"] for key, row in rows.items()} == values
    assert {key for key, row in rows.items() if row["data"] is None} == {number for number in values if number % 2}
    metadata = parquet.ParquetFile(io.BytesIO(encode(part.rows, REPEATING))).metadata.row_group(0)
    codecs = {metadata.column(n).path_in_schema: metadata.column(n).compression for n in range(metadata.num_columns)}
    assert codecs == {**dict.fromkeys(STATE.names, "SNAPPY"), "value_bytes": "UNCOMPRESSED"}


PEAK = """
import os, sys
from backedge.engine.state.capture import Capture, OperatorCapture
from backedge.engine.state import spilled_pickles
from backedge.engine.state.keyed_state import KeyedState
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.stores.cut_store import CutStore

def peak_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) / 1024

store = CutStore(sys.argv[1], "job")
without_mb = peak_mb()
state = KeyedState("op")
state.values = {number: os.urandom(1_000) for number in range(int(sys.argv[2]) * 1_000)}
capture = Capture({"op": OperatorCapture(values=state.capture())})
while not capture.encode_some(2_000):
    pass
store.write_task(Attempt(1), Epoch(1), TaskSnapshot(TaskId("op", 0), Epoch(1), Attempt(1), capture.states, (), ()))
print(peak_mb() - without_mb)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_capture_needs_no_second_copy_of_a_large_state(tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), str(SHARE_MB)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=True,
    )
    assert SHARE_MB < float(ran.stdout) < 1.5 * SHARE_MB + 150

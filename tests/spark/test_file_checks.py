"""Invalid rows in a file: keys in the wrong group, duplicates, unknown kinds, missing values."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

import pytest

from backedge.graphs.ids import TaskId
from backedge.graphs.routing import key_group
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.spark.audit.file_checks import Span, TooLargeError, faults_in
from backedge.recovery.spark.audit.file_verification import check_file, listed_in
from backedge.recovery.spark.audit.manifest_checks import CutDocuments
from backedge.recovery.stores import record_tables as records
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.parquet_tables import encode, from_rows
from backedge.recovery.stores.state_table import STATE, state_parts
from tests.every import every
from tests.stores.snapshots import held

Row = dict[str, Any]
VALUES = {"a": 1, "b": 2.5, "ä": [1], 7: 1, 8: 2, 9: "nine", 1 << 70: 1, (1, "x"): None, None: 0, 0.5: {"k": 1}}
VALUES |= {10: b"ten", "b10": b"\x00"}


def rows_of_state() -> list[Row]:
    groups = held(VALUES, [("a", 100, 0), ("a", 90, 1), (3, 50, 2)])
    (part,) = state_parts(OperatorState(keyed=groups))
    return part.rows.to_pylist()


def span_of(rows: list[Row]) -> Span:
    groups = [row["key_group"] for row in rows if row["key_group"] is not None]
    return (min(groups), max(groups)) if groups else None


def judged(rows: list[Row], span: Span = None) -> list[tuple[int, str]]:
    table = from_rows(STATE, [tuple(row.values()) for row in rows])
    return faults_in("state", io.BytesIO(encode(table)), span or span_of(rows))


def of_key(rows: list[Row], **key: Any) -> Row:
    ((name, value),) = key.items()
    return next(row for row in rows if row[name] == value and row["kind"] == "value")


def pickled(rows: list[Row]) -> Row:
    return next(row for row in rows if row["kind"] == "value" and row["key_int"] is None and row["key_str"] is None)


def regroup(row: Row) -> None:
    row["key_group"] = (row["key_group"] + 1) % 128


def entry(key: Any, value: Any) -> Row:
    """A row of state as it would be if this were another key of it."""
    return dict.fromkeys(STATE.names) | {
        "kind": "value",
        "key_group": key_group(key),
        "data": pickle.dumps((key, value), 5),
    }


FORGERIES: dict[str, tuple[Callable[[list[Row]], Any], str]] = {
    "a number in another group": (lambda rows: regroup(of_key(rows, key_int=7)), "wrong group"),
    "a text in another group": (lambda rows: regroup(of_key(rows, key_str="a")), "wrong group"),
    "another key in another group": (lambda rows: regroup(pickled(rows)), "wrong group"),
    "a number with bytes in another group": (lambda rows: regroup(of_key(rows, key_int=10)), "wrong group"),
    "bytes and a number": (lambda rows: of_key(rows, key_int=10).update(value_int=1), "no value, or several"),
    "no bytes": (lambda rows: of_key(rows, key_str="b10").update(value_bytes=None), "no value, or several"),
    "a key without a group": (lambda rows: of_key(rows, key_int=7).update(key_group=None), "key without a group"),
    "a number twice": (lambda rows: rows.append(dict(of_key(rows, key_int=7))), "duplicate key; first: 7"),
    "a text twice": (lambda rows: rows.append(dict(of_key(rows, key_str="a"))), "duplicate key; first: 'a'"),
    "another key twice": (lambda rows: rows.append(dict(pickled(rows))), "duplicate key"),
    "a number as a float": (lambda rows: rows.append(entry(7.0, 1)), "duplicate key; first: 7"),
    "an unknown kind": (lambda rows: rows[0].update(kind="other"), "unknown kind of state"),
    "no kind": (lambda rows: rows[0].update(kind=None), "column kind"),
    "a key unlike its pickle": (
        lambda rows: of_key(rows, key_str="ä").update(key_str="zz"),
        "differs from its pickle",
    ),
    "a value beside its pickle": (
        lambda rows: of_key(rows, key_str="ä").update(value_int=5),
        "value beside its pickle",
    ),
    "two keys": (lambda rows: of_key(rows, key_int=7).update(key_str="a"), "row with two keys"),
    "a key that is gone, without its pickle": (lambda rows: of_key(rows, key_int=7).update(kind="gone"), "its kind"),
    "a value that is called a timer": (lambda rows: of_key(rows, key_str="ä").update(kind="timer"), "differs from its"),
    "a second entry behind the first": (
        lambda rows: pickled(rows).update(data=pickled(rows)["data"] + pickle.dumps((7, 1))),
        "is not all of it",
    ),
    "many entries in one": (
        lambda rows: rows.append(entry("columns", 1) | {"data": pickle.dumps(("columns", "i", "i", b"", b""), 5)}),
        "differs from its pickle",
    ),
    "a key that is a list": (lambda rows: rows.append(entry(1, 1) | {"data": pickle.dumps(([1], 1), 5)}), "cannot be"),
    "a number and a float that is as large": (
        lambda rows: rows.extend((entry(1 << 62, 1) | {"key_int": 1 << 62}, entry(float(1 << 62), 1))),
        "duplicate key",
    ),
    "no key": (lambda rows: of_key(rows, key_int=7).update(key_int=None), "without a key"),
}


def test_what_was_written_has_no_fault():
    assert judged(rows_of_state()) == []


class Size(Enum):
    SMALL = 1


class Colour(Enum):
    RED = 1


def test_keys_that_differ_by_their_type_alone_are_no_duplicates():
    day, id = date(2024, 1, 1), UUID(int=7)
    keys = [1, Size.SMALL, Colour.RED, (1, 2), (Size.SMALL, 2), (Colour.RED, 2), day, str(day), id, str(id)]
    assert judged([entry(key, 1) | columns_of(key) for key in keys]) == []
    found = judged([entry(key, value) for key in (Size.SMALL, (Size.SMALL, day)) for value in (1, 2)])
    assert [told.partition(";")[0] for _, told in found] == ["2 duplicate keys"]


def columns_of(key: Any) -> Row:
    name = {int: "key_int", str: "key_str"}.get(type(key))
    return {} if name is None else {name: key}


@every("forgery", FORGERIES)
def test_a_row_that_cannot_be_is_told_with_its_key(forgery: str):
    forge, story = FORGERIES[forgery]
    rows = rows_of_state()
    forge(rows)
    found = judged(rows)
    assert {statement for statement, _ in found} == {5}
    assert any(story in told for _, told in found), found


def test_rows_of_no_key_group_have_a_file_of_their_own():
    state = OperatorState(pending=(pickle.dumps("waits", 5),), whole=pickle.dumps({"n": 1}, 5))
    (part,) = state_parts(state)
    assert judged(part.rows.to_pylist()) == []
    rows = [*rows_of_state(), *part.rows.to_pylist()]
    assert judged(rows) == [(5, f"1 file with key groups that the manifest does not name; first: {span_of(rows)}")]


@pytest.mark.parametrize("shift", [(0, -1), (1, 0), (-1, 0), (0, 1)])
def test_a_file_holds_the_key_groups_that_the_manifest_names(shift: tuple[int, int]):
    rows = [row for row in rows_of_state() if row["key_group"] not in {0, 127}]
    first, last = span_of(rows) or (0, 0)
    story = f"1 file with key groups that the manifest does not name; first: {(first, last)}"
    assert judged(rows, (first + shift[0], last + shift[1])) == [(5, story)]


def test_a_key_that_cannot_be_read_is_left_to_the_invariants():
    rows = rows_of_state()
    pickled(rows)["data"] = b"\x82\x01."
    assert judged(rows) == []


def test_a_pickle_that_asks_for_more_than_it_holds_is_not_loaded():
    rows = rows_of_state()
    of_key(rows, key_str="ä")["data"] = b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b"."
    assert judged(rows) == [(5, "1 row whose pickle is broken, or is not all of it; first: 'ä'")]
    of_key(rows, key_str="ä")["data"] = b"\x82\x01."
    assert judged(rows) == [(5, "1 row that differs from its pickle; first: 'ä'")]


class Listing(NamedTuple):
    """A cut that lists files, and says nothing of their rows."""

    manifest: Row

    @property
    def tasks(self) -> dict[TaskId, Row]:
        return {TaskId(task["task"], task["index"]): task for task in self.manifest["tasks"]}

    @property
    def said(self) -> dict[TaskId, Row]:
        return {id: {} for id in self.tasks}


def test_a_file_that_two_cuts_list_differently_is_checked_as_each_of_them_says():
    sound = {"name": "a", "size": 5, "digest": "blake3:00", "groups": [0, 9]}
    wrong = [sound | {"size": 6}, sound | {"digest": "blake3:11"}, sound | {"groups": [0, 8]}]
    constant = {"name": "constants/c", "size": 1, "digest": "sha256:22"}
    manifests = [
        {
            "tasks": [{"task": "a", "index": 0, "below": [{"files": [file]}], "files": [], "operators": []}],
            "constants": {"prices": constant},
        }
        for file in (*wrong, sound, sound)
    ]
    listed = listed_in(cast("list[CutDocuments]", [Listing(manifest) for manifest in manifests]))
    assert listed[1] == ("constants/c", 1, "sha256:22", None, None, None)
    assert [(size, digest[-2:], last) for _, size, digest, _, last, _ in (listed[0], *listed[2:])] == [
        (6, "00", 9),
        (5, "11", 9),
        (5, "00", 8),
        (5, "00", 9),
    ]


def test_a_count_that_is_missing_is_told():
    table = from_rows(records.TRANSACTIONS, [("done.0", 1, 1, None), ("done.1", 1, 1, 2)])
    assert faults_in("transactions", io.BytesIO(encode(table))) == [
        (6, "1 row without a value in column records of table transactions")
    ]


@pytest.mark.slow
def test_a_payload_that_is_too_large_is_not_read():
    large = b"x" * ((64 << 20) + 1)
    few = [(n, "e", "a", 0, "b", 0, False, n, 0, 0, 0, payload) for n, payload in enumerate((large, b"y"))]
    many = [*few, *((n, "e", "a", 0, "b", 0, False, n, 0, 0, 0, b"y") for n in range(2, 50))]
    for rows in (few[:1], many):
        with pytest.raises(TooLargeError, match=r"67,108,8\d\d.*\bpayload\b"):
            faults_in("log", io.BytesIO(encode(from_rows(records.LOG, rows))))


def test_a_forged_size_does_not_keep_the_audit_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reads: list[int] = []
    read = FolderStore.read

    def counted(store: FolderStore, name: str, start: int = 0, length: int | None = None) -> bytes:
        reads.append(start)
        if len(reads) > 1:
            pytest.fail("a file of 3 bytes is read again")
        return read(store, name, start, length)

    monkeypatch.setattr(FolderStore, "read", counted)
    name = "epoch=1/attempt=1/table=rounds/rank.0.parquet"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_bytes(b"abc")
    assert "has 3 bytes" in str(check_file(str(tmp_path), name, 1 << 62, "blake3:" + "0" * 64))
    assert reads == [0]

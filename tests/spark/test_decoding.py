"""Plain values become JSON; nothing that a pickle names is called, and what is not plain is not made up."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import pickle
import struct
import sys
from typing import Any

import pyarrow as pa
import pytest

from recovery.messages import Marker, encode_marker
from recovery.spark.decoding import Pair, Record, json_of, pair_of, pairs, records, records_of
from tests.stores.snapshots import RANK


def columns(table: Any, hops: int = 0) -> bytes:
    """A batch of columns as it travels."""
    return struct.pack("<c7xQ", b"A", hops) + table.schema.serialize().to_pybytes() + table.serialize().to_pybytes()


def batch(*items: Any, hops: Any = 0) -> bytes:
    return pickle.dumps((list(items), hops), 5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (7, "7"),
        (-(1 << 200), str(-(1 << 200))),
        (2.5, "2.5"),
        (math.nan, '"NaN"'),
        (math.inf, '"Infinity"'),
        (-math.inf, '"-Infinity"'),
        ("ä\n", '"ä\\n"'),
        ("\ud800", '"\\ud800"'),
        (b"x", '{"base64":"eA=="}'),
        ((1, [2, (3,)]), "[1,[2,[3]]]"),
        ({3, 1, 2}, "[1,2,3]"),
        (frozenset({"b", "a"}), '["a","b"]'),
        ({"a": {"b": None}}, '{"a":{"b":null}}'),
        ({1: 2, (1, "x"): 3, None: 4}, '{"1":2,"[1,\\"x\\"]":3,"null":4}'),
    ],
)
def test_plain_values_are_json(value: Any, text: str):
    assert json_of(value) == text


class Mine:
    """Tells whether it was ever made of a pickle."""

    made = 0

    def __reduce__(self) -> Any:
        return (Mine._make, ())

    @staticmethod
    def _make() -> Mine:
        Mine.made += 1
        return Mine()


@pytest.mark.parametrize("value", [1j, object(), Mine(), [{"deep": Mine()}], {1: 0, "1": 0}, {Mine(): 1}])
def test_what_is_not_plain_is_none(value: Any):
    assert json_of(value) is None


def test_nothing_that_a_pickle_names_is_called_or_imported():
    payload = batch({"n": 1}, Mine(), {"m": Mine()}, datetime.date(2026, 1, 1))
    sys.modules.pop("antigravity", None)
    foreign = b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00cantigravity\nfly\n)R."
    assert records_of(payload) == [Record('{"n":1}', 0), Record(None, 0), Record(None, 0), Record(None, 0)]
    assert pair_of("whole", foreign) == Pair(None, None)
    assert Mine.made == 0
    assert "antigravity" not in sys.modules


def test_a_value_that_holds_itself_is_none():
    endless: list[Any] = []
    endless.append(endless)
    doubled: list[Any] = []
    for _ in range(60):
        doubled = [doubled, doubled]
    assert json_of(endless) is None
    assert pair_of("pending", pickle.dumps(doubled)) == Pair(None, None)


@pytest.mark.parametrize(
    ("kind", "value", "pair"),
    [
        ("value", ("a", [1]), Pair('"a"', "[1]")),
        ("value", (Mine(), 1), Pair(None, "1")),
        ("value", (1, 2, 3), Pair(None, None)),
        ("timer", ("a", 100, 2), Pair('"a"', "100")),
        ("timer", ("a", 100), Pair(None, None)),
        ("pending", ({"n": 1}, 0), Pair(None, '[{"n":1},0]')),
        ("whole", {"turn": 3}, Pair(None, '{"turn":3}')),
    ],
)
def test_a_row_of_state_is_a_key_and_a_value(kind: str, value: Any, pair: Pair):
    assert pair_of(kind, pickle.dumps(value, 5)) == pair


def test_records_have_the_hops_of_their_batch_or_their_own():
    assert records_of(batch("a", "b", hops=3)) == [Record('"a"', 3), Record('"b"', 3)]
    assert records_of(batch("a", "b", hops=[1, 2])) == [Record('"a"', 1), Record('"b"', 2)]
    assert records_of(batch("a", hops="x")) == [Record('"a"', None)]


def test_columns_are_records_too():
    table = pa.record_batch(
        {
            "n": [1, None],
            "when": [datetime.date(2026, 1, 2), None],
            "at": [datetime.datetime(2026, 1, 2, 3, 4, 5), None],
            "cost": [decimal.Decimal("1.50"), None],
            "deep": [[{"x": 1.5}], []],
        }
    )
    first, second = records_of(columns(table, hops=4))
    assert (first.hops, second.hops) == (4, 4)
    assert json.loads(first.record or "") == {
        "n": 1,
        "when": "2026-01-02",
        "at": "2026-01-02 03:04:05",
        "cost": "1.50",
        "deep": [{"x": 1.5}],
    }
    assert json.loads(second.record or "") == {"n": None, "when": None, "at": None, "cost": None, "deep": []}


def test_a_round_marker_has_no_records():
    assert records_of(encode_marker(Marker((0,), ((RANK, 5),)))) == []


@pytest.mark.parametrize("payload", [b"", b"?", b"A", b"A" * 40, pickle.dumps(7), pickle.dumps((1, 2, 3)), b"\x80\x05"])
def test_a_batch_that_cannot_be_read_is_one_row_that_says_so(payload: bytes):
    assert records_of(payload) == [Record(None, None)]


def test_arrays_of_rows_keep_their_places():
    kinds = pa.array(["value", "value", "timer"])
    datas = pa.array([pickle.dumps(("a", 1)), None, pickle.dumps(("b", 2, 0))], pa.binary())
    assert pairs(kinds, datas).to_pylist() == [{"key": '"a"', "value": "1"}, None, {"key": '"b"', "value": "2"}]
    many = records(pa.array([batch(1, 2), b"M"], pa.binary()))
    assert many.to_pylist() == [[{"record": "1", "hops": 0}, {"record": "2", "hops": 0}], []]

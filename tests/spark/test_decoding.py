"""Values and objects become JSON in bounded memory, and nothing that a pickle names is called or imported."""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import fractions
import json
import math
import pickle
import struct
import sys
import tracemalloc
import uuid
import zoneinfo
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from backedge.recovery.protocol.messages import Marker, encode_marker
from backedge.recovery.spark.audit.channel_checks import digests
from backedge.recovery.spark.cut_tables import plain_pickles
from backedge.recovery.spark.cut_tables.decoding import (
    Budget,
    Pair,
    Record,
    identity_in,
    json_of,
    pair_of,
    pairs,
    records,
    records_of,
)
from backedge.recovery.spark.cut_tables.plain_pickles import UnreadablePickleError
from backedge.recovery.stores.record_tables import records_in_batch
from tests.columns.given import slow
from tests.every import every
from tests.stores.snapshots import RANK


def columns(table: Any, hops: int = 0) -> bytes:
    """A batch of columns as it travels."""
    return struct.pack("<c7xQ", b"A", hops) + table.schema.serialize().to_pybytes() + table.serialize().to_pybytes()


def stream_of(table: Any, compression: str | None = None) -> bytes:
    """The same with all that a stream may have: dictionaries, and compressed buffers."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as stream:
        stream.write_batch(table)
    return b"A" + bytes(15) + sink.getvalue().to_pybytes()


def batch(*items: Any, hops: Any = 0) -> bytes:
    return pickle.dumps((list(items), hops), 5)


@every(
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


@every("value", [1j, object(), Mine(), [{"deep": Mine()}], {1: 0, "1": 0}, {Mine(): 1}])
def test_what_is_not_plain_is_none(value: Any):
    assert json_of(value) is None


def test_nothing_that_a_pickle_names_is_called_or_imported():
    mine = f'{{"class":"{Mine.__module__}.Mine._make"}}'
    sys.modules.pop("antigravity", None)
    foreign = b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00cantigravity\nfly\n)R."
    found = [record.record for record in records_of(batch({"n": 1}, Mine(), {"m": Mine()}))]
    assert found == ['{"n":1}', mine, f'{{"m":{mine}}}']
    assert pair_of("whole", foreign) == Pair(None, '{"class":"antigravity.fly"}')
    assert Mine.made == 0
    assert "antigravity" not in sys.modules


@dataclass
class Order:
    id: int
    parts: list[Any]


@dataclass(frozen=True, slots=True)
class Frozen:
    id: int
    name: str | None


@dataclass(slots=True)
class Slotted:
    id: int
    args: str


class Point(NamedTuple):
    x: int
    y: int


class Color(enum.Enum):
    RED = "red"


class Money(int):
    pass


class Shelf(dict[str, int]):
    pass


HERE = __name__
IN_AN_HOUR = datetime.timezone(datetime.timedelta(hours=1))


@every(
    ("value", "told"),
    [
        (
            Order(7, [Point(1, 2)]),
            {"class": f"{HERE}.Order", "id": 7, "parts": [{"class": f"{HERE}.Point", "args": [1, 2]}]},
        ),
        (Frozen(7, None), {"class": f"{HERE}.Frozen", "state": [7, None]}),
        (Slotted(7, "a"), {"class": f"{HERE}.Slotted", "fields": {"id": 7, "args": "a"}}),
        (Color.RED, {"class": f"{HERE}.Color", "args": ["red"]}),
        (Color, {"global": f"{HERE}.Color"}),
        (Money(5), {"class": f"{HERE}.Money", "args": [5]}),
        (Shelf(a=1), {"class": f"{HERE}.Shelf", "items": [["a", 1]]}),
        ({Color.RED: 1}, {f'{{"class":"{HERE}.Color","args":["red"]}}': 1}),
        (ValueError("no"), {"class": "builtins.ValueError", "args": ["no"]}),
        (1 + 2j, {"class": "builtins.complex", "args": [1.0, 2.0]}),
        (datetime.date(2026, 1, 2), "2026-01-02"),
        (datetime.datetime(2026, 1, 2, 3, 4, 5), "2026-01-02 03:04:05"),
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "2026-01-02 00:00:00+00:00"),
        (
            datetime.datetime(2026, 1, 2, tzinfo=IN_AN_HOUR),
            "2026-01-02 00:00:00+01:00",
        ),
        (datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("UTC")), "2026-01-02 00:00:00[UTC]"),
        (datetime.time(3, 4), "03:04:00"),
        (datetime.timedelta(days=1, seconds=2), "1 day, 0:00:02"),
        (decimal.Decimal("1.50"), "1.50"),
        (fractions.Fraction(1, 3), "1/3"),
        (uuid.UUID(int=7), "00000000-0000-0000-0000-000000000007"),
        (collections.deque([1, 2], 5), [1, 2]),
        (collections.OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (collections.defaultdict(int, a=1), {"a": 1}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (np.int64(-7), -7),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.float64("nan"), "NaN"),
        (np.arange(4), [0, 1, 2, 3]),
        (np.arange(4, dtype=">i2").reshape(2, 2).T, [[0, 2], [1, 3]]),
        (bytearray(b"x"), {"base64": "eA=="}),
        ((1, {2, 3}), [1, [2, 3]]),
    ],
)
def test_objects_are_told_by_class_and_fields_and_no_class_is_imported(value: Any, told: Any):
    pair = pair_of("value", pickle.dumps(("key", value), 5))
    assert pair.key == '"key"'
    assert json.loads(pair.value or "null") == told
    assert [json.loads(record.record or "null") for record in records_of(batch(value))] == [told]


ONE_GIGABYTE = 1 << 30
BOMBS = {
    "a bytearray of a gigabyte in nine bytes": b"\x96" + ONE_GIGABYTE.to_bytes(8, "little"),
    "bytes of a gigabyte": b"B" + ONE_GIGABYTE.to_bytes(4, "little"),
    "bytes of an exabyte": b"\x8e" + (1 << 60).to_bytes(8, "little") + b".",
    "a place far off in the memo": b"Nr" + ((1 << 31) - 1).to_bytes(4, "little") + b".",
    "the same as text": b"Np999999999\n.",
    "a persistent id": b"Ppath\n.",
    "a registered extension": b"\x82\x01.",
    "a name without an end": b"cos\nsystem",
    "a longer name than any": b"c" + b"a" * 1_000 + b"\nb\n.",
    "nothing": b"",
    "no end": b"N",
    "an empty stack": b".",
    "state set on what is named": b"cbuiltins\nobject\n}b.",
    "a call of what a call returned": b"cos\nsystem\n)R)R.",
}


@every("data", BOMBS.values())
def test_a_pickle_that_takes_more_than_its_size_is_not_read(data: bytes):
    tracemalloc.start()
    try:
        assert pair_of("whole", data) == Pair(None, None)
        assert records_of(data) == [Record(None, None)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def doubled(value: Any, times: int) -> Any:
    for _ in range(times):
        value = [value, value]
    return value


@pytest.mark.parametrize("value", [doubled("x" * 1_000, 15), doubled(b"x" * 1_000, 15), doubled(1 << 4_000, 15)])
def test_json_is_bounded_by_the_size_of_the_pickle(value: Any):
    assert pair_of("pending", pickle.dumps(value, 5)) == Pair(None, None)
    assert json_of(doubled("x", 5), Budget(100)) is not None


def test_the_records_of_a_batch_share_their_bound():
    found = records_of(batch(*[doubled("x" * 1_000, 4)] * 1_000))
    read = [record for record in found if record.record is not None]
    assert len(found) == 1_000
    assert 0 < len(read) < 100


@pytest.mark.parametrize(
    "value",
    [
        pa.nulls(2_000_000),
        pa.FixedSizeListArray.from_arrays(pa.nulls(2_000_000), 1_000_000),
        pa.ListViewArray.from_arrays([0] * 1_000, [1_000] * 1_000, pa.array([1] * 1_000)),
        pa.array(["x" * 10_000] * 2, pa.string_view()),
        pa.StructArray.from_arrays([pa.array([b"x" * 10_000], pa.binary_view())], ["b"]),
    ],
    ids=["nulls", "lists of nulls", "lists that overlap", "views", "views of bytes"],
)
def test_columns_of_many_values_in_few_bytes_are_not_read(value: Any):
    assert records_of(columns(pa.record_batch({"n": value}))) == [Record(None, None)]


def test_a_dictionary_that_repeats_a_text_is_not_read():
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int8()), pa.array(["x" * 10_000]))
    assert records_of(stream_of(pa.record_batch({"s": column}))) == [Record(None, None)]
    assert records_of(stream_of(pa.record_batch({"s": ["x"]}))) == [Record('{"s":"x"}', 0)]


def test_columns_whose_offsets_lead_astray_are_not_read():
    text = "x" * 4_321
    right = columns(pa.record_batch({"s": [text, text]}))
    assert records_of(right) == [Record(f'{{"s":"{text}"}}', 0)] * 2
    offsets, wrong = (struct.pack("<3i", 0, len(text), end) for end in (2 * len(text), 1 << 20))
    assert right.count(offsets) == 1
    assert records_of(right.replace(offsets, wrong)) == [Record(None, None)]


def test_a_pickle_of_many_opcodes_is_not_read(monkeypatch: pytest.MonkeyPatch):
    data = pickle.dumps([[] for _ in range(100)], 5)
    assert pair_of("whole", data).value == f"[{','.join(['[]'] * 100)}]"
    monkeypatch.setattr(plain_pickles, "OPCODES_MAX", 100)
    assert pair_of("whole", data) == Pair(None, None)


def test_a_value_that_holds_itself_is_none():
    endless: list[Any] = []
    endless.append(endless)
    doubled: list[Any] = []
    for _ in range(60):
        doubled = [doubled, doubled]
    assert json_of(endless) is None
    assert pair_of("pending", pickle.dumps(doubled)) == Pair(None, None)


@every(
    ("kind", "value", "pair"),
    [
        ("value", ("a", [1]), Pair('"a"', "[1]")),
        ("value", (len, 1), Pair('{"global":"builtins.len"}', "1")),
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


@every("payload", [b"", b"?", b"A", b"A" * 40, pickle.dumps(7), pickle.dumps((1, 2, 3)), b"\x80\x05"])
def test_a_batch_that_cannot_be_read_is_one_row_that_says_so(payload: bytes):
    assert records_of(payload) == [Record(None, None)]


def test_arrays_of_rows_keep_their_places():
    kinds = pa.array(["value", "value", "timer"])
    datas = pa.array([pickle.dumps(("a", 1)), None, pickle.dumps(("b", 2, 0))], pa.binary())
    assert pairs(kinds, datas).to_pylist() == [{"key": '"a"', "value": "1"}, None, {"key": '"b"', "value": "2"}]
    many = records(pa.array([batch(1, 2), b"M"], pa.binary()), pa.array([0, 0]))
    assert many.to_pylist() == [[{"record": "1", "hops": 0}, {"record": "2", "hops": 0}], []]


DEEP = b")" + b"\x85" * 30_000
"""A tuple in a tuple in a tuple. To hash it, Python calls itself in C without a limit."""


@pytest.mark.parametrize(
    "data",
    [
        slow(b"\x80\x05}" + DEEP + b"K\x01s."),
        slow(b"\x80\x05]}" + DEEP + b"K\x01saK\x00\x86."),
        b"\x80\x05\x8f(" + DEEP + b"\x90.",
        slow(b"\x80\x05})" + b"\x94\x85" * 30_000 + b"K\x01s."),
        slow(b"\x80\x05})" + b"\x85Nb" * 30_000 + b"K\x01s."),
    ],
    ids=["key", "batch", "set", "by the memo", "built in between"],
)
def test_a_tuple_that_is_nested_too_deep_is_not_hashed(data: bytes):
    with pytest.raises(UnreadablePickleError, match="nested"):
        plain_pickles.load(data)
    assert digests(pa.array([data]), pa.array([0])).field("records").to_pylist() == [None]


def test_many_tuples_beside_each_other_are_not_deep():
    batch = [(number, (str(number), None)) for number in range(plain_pickles.NESTED_TUPLES_MAX)]
    assert plain_pickles.load(pickle.dumps(batch, 5)) == batch


def test_a_time_that_python_cannot_hold_makes_its_batch_unreadable():
    rows = pa.record_batch({"until": pa.array([(1 << 63) - 1], pa.timestamp("us"))})
    payload = b"A" + bytes(15) + rows.schema.serialize().to_pybytes() + rows.serialize().to_pybytes()
    assert records_of(payload) == [Record(None, None)]


@pytest.mark.parametrize("as_dictionary", [False, True])
def test_a_compressed_batch_of_columns_is_not_decoded(as_dictionary: bool):
    column = pa.array([b"\0" * (16 << 20)], pa.large_binary())
    rows = pa.record_batch({"b": column.dictionary_encode() if as_dictionary else column})
    payload = stream_of(rows, "zstd")
    assert len(payload) < 64 << 10
    usual, counted = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(counted)
    try:
        assert records_of(payload) == [Record(None, None)]
        assert records_in_batch(payload) is None
        assert counted.max_memory() < 1 << 20, "nothing was decompressed"
        pa.ipc.open_stream(payload[16:]).read_all()
        assert counted.max_memory() > 16 << 20, "what is decompressed is counted"
    finally:
        pa.set_memory_pool(usual)


def test_a_key_that_repeats_itself_without_end_has_no_identity():
    key: Any = 1
    for _ in range(60):
        key = (key, key)
    assert identity_in("gone", 0, pickle.dumps((key,))) is None

"""A key finds the same task as a record's value and as a column's, in every process and every run."""

from __future__ import annotations

import math
import random
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from backedge import UnkeyableError, tasks_of_keys
from backedge.graphs.routing import (
    KEY_GROUPS,
    groups_of_task,
    key_group,
    key_groups,
    small_tasks_of_keys,
    small_tasks_of_tuples,
    task_of_group,
)
from tests.every import every

KEYS: list[Any] = [
    *(0, 1, -1, 7, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**64, -(2**70), 10**30),
    *(True, False, None, "", "a", "alice", "größe", "名前", "\ud800", b"", b"a", b"\xff\x00\xff"),
    *(0.0, -0.0, 0.5, -2.25, 1e300, 2.0**62, 2.0**63, -(2.0**64), 2.0**70, math.inf, -math.inf, 5e-324),
    *((), ("a",), ("a", 1), (1, "a"), (("a", 1), None), (None, None)),
]
"""Where representations differ: signs, the limits of words, what has no number, what is nested."""

KNOWN_GROUPS = {0: 0, 1: 79, "alice": 51, b"alice": 51, None: 95, 0.5: 94, ("a", 1): 85}
"""Written down once. A change here moves every key of every state that was ever kept."""


def random_keys(seed: int) -> list[Any]:
    rng = random.Random(seed)
    return [
        rng.choice((rng.getrandbits(70) - 2**69, rng.gauss(0, 1e6), float(rng.getrandbits(40)))) for _ in range(300)
    ]


def test_groups_are_those_that_were_written_down():
    assert {key: key_group(key) for key in KNOWN_GROUPS} == KNOWN_GROUPS


def has_the_groups_of_its_records(column: Any) -> None:
    """As objects of Python, and as scalars of NumPy."""
    assert key_groups(column).tolist() == [key_group(key) for key in column.tolist()]
    assert key_groups(column).tolist() == [key_group(key) for key in column]


@pytest.mark.parametrize("keys", [KEYS, random_keys(1), random_keys(2)])
def test_column_of_objects_has_the_groups_of_its_records(keys: list[Any]):
    column = np.fromiter(keys, object, len(keys))
    has_the_groups_of_its_records(column)
    assert key_groups(keys).tolist() == key_groups(column).tolist()


@every("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"])
def test_column_of_integers_has_the_groups_of_its_records(kind: str):
    limits = np.iinfo("uint8" if kind == "bool" else kind)
    has_the_groups_of_its_records(
        np.array([0, 1, limits.max, limits.min, limits.max // 2], dtype=limits.dtype).astype(kind)
    )


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_column_of_floats_has_the_groups_of_its_records(kind: str):
    with np.errstate(over="ignore"):
        values = [key for key in KEYS if isinstance(key, float)] + [math.nan, 3.0, -7.0]
        column = np.array([*values, *(float(key) for key in random_keys(3))]).astype(kind)
    has_the_groups_of_its_records(column)


def test_column_of_text_and_of_bytes_has_the_groups_of_its_records():
    has_the_groups_of_its_records(np.array(["alice", "bob", "größe", ""]))
    has_the_groups_of_its_records(np.array([b"alice", b"bob"]))


def test_keys_that_are_equal_have_one_group():
    for key in [*KEYS, *random_keys(4)]:
        for other in KEYS:
            if key == other:
                assert key_group(key) == key_group(other), (key, other)
    assert key_group(1) == key_group(1.0) == key_group(True) == key_group(np.int8(1)) == key_group(np.float32(1))
    assert key_group(np.str_("a")) == key_group("a")
    assert key_group((1, "a")) == key_group((1.0, np.str_("a")))
    assert key_group(math.nan) == key_group(-math.nan)


@pytest.mark.parametrize(
    "keys",
    [range(12_800), range(0, 12_800 * 64, 64), [f"user-{n}" for n in range(12_800)], [n / 7 for n in range(12_800)]],
    ids=["integers", "multiples of 64", "names", "fractions"],
)
def test_keys_spread_over_all_groups(keys: Any):
    counts = np.bincount(key_groups(list(keys)), minlength=KEY_GROUPS)
    assert len(counts) == KEY_GROUPS
    assert counts.min() >= 50
    assert counts.max() <= 200


def test_pairs_spread_over_all_groups_and_their_order_counts():
    pairs = [(a, b) for a in range(113) for b in range(113)]
    counts = np.bincount(key_groups(pairs), minlength=KEY_GROUPS)
    assert counts.min() >= 50
    assert sum(key_group((a, b)) == key_group((b, a)) for a, b in pairs) < len(pairs) // 20


@every(
    "key",
    [
        *([1], {"a": 1}, {1}, 1j, object(), ("a", [1]), bytearray(b"a"), time(1), Decimal("nan")),
        # The last two are equal, and so are their hashes.
        *(np.datetime64(1, "D"), np.timedelta64(1, "s"), np.timedelta64(1, "Y"), np.timedelta64(12, "M")),
    ],
)
def test_key_without_a_stable_hash_is_refused(key: Any):
    with pytest.raises(UnkeyableError, match=r"hash.*numbers, text"):
        key_group(key)


class Colour(Enum):
    RED = 1


class Level(IntEnum):
    HIGH = 7


OTHER_KEYS = {
    date(2026, 1, 1): 56,
    datetime(2026, 1, 1, 12): 21,
    datetime(2026, 1, 1, 12, tzinfo=UTC): 21,
    timedelta(seconds=-1): 1,
    UUID(int=5): 68,
    Decimal("0.1"): 57,
    Colour.RED: 67,
    (date(2026, 1, 1), "a"): 19,
}
"""Written down once, as those above."""


def test_groups_of_dates_decimals_uuids_and_enums_are_those_that_were_written_down():
    assert {key: key_group(key) for key in OTHER_KEYS} == OTHER_KEYS
    assert key_groups(np.array([*OTHER_KEYS][:-1], object)).tolist() == [*OTHER_KEYS.values()][:-1]


@every(
    ("one", "other"),
    [
        (Decimal("1.50"), 1.5),
        (Decimal("1e3"), 1000),
        (Decimal("-Infinity"), -math.inf),
        (Decimal("0.1"), Fraction(1, 10)),
        (Decimal("1e400") + Decimal("0.5"), Fraction(Decimal("1e400") + Decimal("0.5"))),
        (Fraction(1, 4), 0.25),
        (Level.HIGH, 7),
        (datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 7, 1, 14, tzinfo=timezone(timedelta(hours=2)))),
        (datetime(2026, 7, 1, fold=1), datetime(2026, 7, 1)),
    ],
)
def test_keys_of_other_types_that_are_equal_share_a_group(one: Any, other: Any):
    assert one == other and key_group(one) == key_group(other)


def test_days_and_times_spread_over_the_groups():
    days = [date(2020, 1, 1) + timedelta(days=n) for n in range(128 * 20)]
    hours = [datetime(2020, 1, 1, tzinfo=UTC) + timedelta(hours=n) for n in range(128 * 20)]
    for keys in (days, hours, [Decimal(n) / 10 for n in range(128 * 20)]):
        assert np.bincount([key_group(key) for key in keys], minlength=KEY_GROUPS).min() > 2


def test_column_without_a_stable_hash_is_refused():
    with pytest.raises(UnkeyableError, match=r"datetime64\[ns\]"):
        key_groups(np.array(["2026-01-01"], dtype="datetime64[ns]"))


def test_empty_column_has_no_groups():
    assert key_groups([]).tolist() == []
    assert key_groups(np.array([], dtype="float64")).tolist() == []


@every("parallelism", [1, 2, 3, 5, 7, 64, 127, 128])
def test_each_group_belongs_to_exactly_one_task(parallelism: int):
    owners = [index for index in range(parallelism) for _ in groups_of_task(index, parallelism)]
    assert owners == [task_of_group(group, parallelism) for group in range(KEY_GROUPS)]
    sizes = [len(groups_of_task(index, parallelism)) for index in range(parallelism)]
    assert max(sizes) - min(sizes) <= 1


@every("parallelism", [1, 2, 3, 255, 256, 300, 70_000])
def test_tasks_of_columns_are_those_of_records_in_as_few_bytes_as_they_need(parallelism: int):
    keys = np.arange(-500, 500)
    expected = [task_of_group(key_group(key), parallelism) for key in keys.tolist()]
    small = small_tasks_of_keys(keys, parallelism)
    assert small.tolist() == tasks_of_keys(keys, parallelism).tolist() == expected
    assert small.itemsize == (1 if parallelism < 256 else 2 if parallelism < 65_536 else 4)
    pairs = [(key, -key) for key in keys.tolist()]
    expected = [task_of_group(key_group(pair), parallelism) for pair in pairs]
    assert small_tasks_of_tuples([keys, -keys], parallelism).tolist() == expected

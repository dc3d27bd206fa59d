"""Records are compared as users would: by equality, whether or not they can be hashed, in any order."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Any

import numpy as np

from backedge.engine.batches.differences import differences
from tests.every import every


@dataclass
class Order:
    id: int
    path: list[int] = field(default_factory=list[int])


@dataclass(frozen=True)
class Frozen:
    path: list[int]


class Plain:
    def __init__(self, value: Any) -> None:
        self.value = value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Color(Enum):
    RED = 1
    BLUE = 2


RECORDS = [
    *(7, "seven", None, 2.5, float("nan"), (1, [2, {3}]), {"id": 1, "path": [1, 2], "nested": {"x": {"y": []}}}),
    *(Order(1, [1]), Frozen([1]), Plain({"a": [1]}), Slotted([1]), Color.RED, len, Order),
    *(np.arange(4), np.float64(2.5) * 3),
    *("nan", Decimal("NaN"), np.float32("nan"), complex(1, math.nan), np.datetime64("NaT", "s"), {math.nan: 1}),
]


@every("record", RECORDS)
def test_a_record_equals_its_copies_and_no_other_record(record: Any):
    copies = [copy.deepcopy(record), pickle.loads(pickle.dumps(record))]
    others = [other for other in RECORDS if other is not record]
    lacking, surplus = differences([record, record], [*copies, *others])
    assert lacking == []
    assert [id(other) for other in surplus] == [id(other) for other in others]


def test_records_that_differ_are_told_apart_and_those_that_are_equal_count_as_one():
    for one, other in (
        *((Order(1), Order(2)), (Plain([1]), Plain([2])), (Plain([1]), Slotted([1])), (Color.RED, Color.BLUE)),
        *((np.arange(4), np.arange(5)), (np.zeros(2, np.int64), np.zeros(2, np.int32))),
        *(([1], (1,)), ({"a": 1}, {"a": 2})),
    ):
        assert differences([one], [other]) == ([one], [other])
    for one, other in (
        *((1, True), (1, 1.0), ({"a": 1, "b": 2}, {"b": 2, "a": 1})),
        *(({1, 2}, frozenset({2, 1})), (Plain([1]), Plain([1]))),
    ):
        assert differences([one], [other]) == ([], [])


def test_what_is_lost_or_doubled_is_named_as_often_as_it_is():
    assert differences(["a", "a", "b", "c"], ["c", "b", "b", "b"]) == (["a", "a"], ["b", "b"])


def test_what_an_object_shares_within_itself_makes_no_difference():
    shared = [1]
    assert differences([Plain((shared, shared))], [Plain(([1], [1]))]) == ([], [])

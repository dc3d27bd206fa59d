"""Equal questions have one digest in every process, whatever they are made of."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from backedge.graphs.questions import digest_of
from tests.every import every

ONE, OTHER = {0, 8}, {8, 0}
"""Equal sets that list their elements in another order, as sets of text do in another process."""


@dataclass
class Talk:
    tags: Any


class Named(NamedTuple):
    tags: Any


class Packed(msgspec.Struct):
    tags: Any


MADE_OF: list[Callable[[Any], Any]] = [
    Talk,
    Named,
    Packed,
    lambda tags: {frozenset(tags): 1},
    lambda tags: Counter(dict.fromkeys(tags, 1)),
    lambda tags: np.array([tags, None], object),
]


@every("make", MADE_OF)
def test_the_order_of_a_set_is_no_part_of_a_question(make: Callable[[Any], Any]):
    assert list(ONE) != list(OTHER)
    assert digest_of((make(ONE), 1)) == digest_of((make(OTHER), 1)) != digest_of((make({0, 9}), 1))


def test_an_array_is_the_same_question_when_it_has_travelled():
    whole = np.arange(6).reshape(2, 3)
    frozen = whole.copy()
    frozen.flags.writeable = False
    part = whole[:, :2]
    assert digest_of((whole, 1)) == digest_of((frozen, 1))
    assert digest_of((part, 1)) == digest_of((pickle.loads(pickle.dumps(part, 5)), 1)) != digest_of((whole, 1))

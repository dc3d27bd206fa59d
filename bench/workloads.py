"""The workloads: the input of a peer, and the user functions that it must call, as ours does.

A peer is a module with `run(workload) -> float`. It starts what it needs, warms up for `warm_up_s`, measures for
`seconds` without its own start, stops everything it has started, and returns one figure in the unit that the workload
names. Workloads are frozen and can be pickled; so can the functions, which are found here by name.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

LoopRecord = tuple[int, int]
"""An id, and the number of hops left."""

IDS = 1 << 30
LOOP_KEYS = 1_000


@dataclass(frozen=True)
class LoopWorkload:
    """Unit: hops a second. A hop is one record that comes back to the head.

    All `records` stand in the loop from the start and make `rounds` hops each, `repetitions` times in a row. With one
    repetition that is the plain workload; to measure for `seconds` there are so many that nobody is done before.
    A record passes `climb` in the head, and in the body `tally`, with the state of its key. A key's state is an int and
    begins at 0. Who `is_done` leaves, the others go back. The key changes from hop to hop.
    """

    records: int = 100_000
    rounds: int = 20
    repetitions: int = 1
    seed: int = 0
    seconds: float = 10.0
    warm_up_s: float = 2.0

    @property
    def hops(self) -> int:
        """The number of hops until the last record is finished."""
        return self.records * self.rounds * self.repetitions

    def start(self) -> list[LoopRecord]:
        """The records as they enter the loop."""
        rng = random.Random(self.seed)
        return [(rng.randrange(IDS), self.rounds * self.repetitions) for _ in range(self.records)]


def climb(record: LoopRecord) -> LoopRecord:
    """The head's function."""
    return record[0], record[1] - 1


def loop_key(record: LoopRecord) -> int:
    """The key of this hop. From one key to the next but 36 it is another task of two half of the time."""
    return (record[0] + 36 * record[1]) % LOOP_KEYS


def tally(seen: int, record: LoopRecord) -> tuple[int, LoopRecord]:
    """What the body does, with the state of the key."""
    return seen + 1, record


def is_done(record: LoopRecord) -> bool:
    """Whether the record leaves: it has made its hops and passed the body once more."""
    return record[1] < 0


HopRecord = tuple[int, float, float]
"""Hops since the warm-up (negative before), when the warm-up ended, and now."""

WARM_UP_HOPS = 2_000


@dataclass(frozen=True)
class HopWorkload:
    """Unit: us a hop. One record goes round through two processes, alone, so a hop is two messages.

    The first `WARM_UP_HOPS` do not count. With `apart` each process stays on a core of its own: `ours.keep_apart`.
    """

    seed: int = 0
    seconds: float = 3.0
    apart: bool = False

    def start(self) -> HopRecord:
        """The record as it enters the loop."""
        return -WARM_UP_HOPS, 0.0, 0.0


def hop(record: HopRecord) -> HopRecord:
    """What the second process does: count, and look at the clock."""
    hops, began_s, _ = record
    now_s = time.perf_counter()
    return hops + 1, began_s if hops >= 0 else now_s, now_s


def us_a_hop(record: HopRecord) -> float:
    """The result of a circulating record."""
    hops, began_s, now_s = record
    return (now_s - began_s) / hops * 1e6


Counted = tuple[str, int]
"""A word, and the number of times it has been seen."""

WORDS = 10_000
TOLD_EVERY = 1_000
WORD_STEP = 7_919


@dataclass(frozen=True)
class CountWorkload:
    """Unit: records a second. Record number p is `make(p)`; two processes read every second one each, without end.

    Records are shuffled by `word_key` to the process that keeps the state of their key, an int that begins at 0, and
    counted there by `count_word`. Of what that gives, what `is_told` chooses is kept: a thousandth.
    """

    words: int = WORDS
    seed: int = 0
    seconds: float = 10.0
    warm_up_s: float = 2.0

    def make(self) -> Callable[[int], str]:
        """The function that gives the record at a position; every word comes as often as any other."""
        rng = random.Random(self.seed)
        words = [f"word-{rng.randrange(IDS)}-{number}" for number in range(self.words)]
        count = len(words)
        return lambda position: words[position * WORD_STEP % count]


def word_key(word: str) -> str:
    """The key of the count."""
    return word


def count_word(seen: int, word: str) -> tuple[int, Counted]:
    """One more."""
    return seen + 1, (word, seen + 1)


def is_told(counted: Counted) -> bool:
    """Whether this count is kept."""
    return counted[1] % TOLD_EVERY == 0


@dataclass(frozen=True)
class CopyWorkload:
    """Unit: ms. A dict of so many keys, ints to ints, is copied by `dict.copy()`; nothing shares the process."""

    keys: int = 1_000_000
    seed: int = 0


@dataclass(frozen=True)
class StartWorkload:
    """Unit: ms. From asking Ray for actors with nothing in them until each has answered its first call."""

    actors: int = 1
    seed: int = 0


def pass_on(record: int) -> int:
    """What a step of the run that starts does with a record: nothing."""
    return record


@dataclass(frozen=True)
class RestoreWorkload:
    """Unit: MB/s. The files of keyed state, for each task: rows whose `data` is a pickled pair of key and value."""

    files: tuple[tuple[str, ...], ...]
    mb: float = 0.0
    """The size of all of them."""


@dataclass(frozen=True)
class OpaqueWorkload:
    """Unit: seconds. A process for each of `tasks` has `opaque_value(key, seed)` for its share of the keys in a dict.
    It pickles the dict into a file below `folder`, and makes the file durable; until the slower of them is through.
    """

    keys: int = 1_000_000
    tasks: int = 2
    seed: int = 0
    folder: str = ""

    @property
    def mb(self) -> float:
        """The size of all values."""
        return self.keys * OPAQUE_BYTES / 1e6


OPAQUE_BYTES = 1_000
_OPAQUE_POOL_BYTES = 16 << 20


def opaque_value(key: int, seed: int) -> bytes:
    """The value of a key: bytes that cannot be compressed, since no two that are near each other have any in common."""
    pool = _opaque_pool(seed)
    start = key * 1_048_583 % (_OPAQUE_POOL_BYTES - OPAQUE_BYTES)
    return pool[start : start + OPAQUE_BYTES]


@cache
def _opaque_pool(seed: int) -> bytes:
    return random.Random(seed).randbytes(_OPAQUE_POOL_BYTES)


@dataclass(frozen=True)
class RoundWorkload:
    """Unit: us a round. Two actors each have an array of `values` numbers; in a round each gets the other's."""

    values: int = 4
    seed: int = 0
    seconds: float = 3.0
    warm_up_rounds: int = 500


@dataclass(frozen=True)
class VersionsWorkload:
    """Unit: ms a round. In each, a learner adds 1 to `values` floats and publishes them, and every worker sums them.

    The last `keep` stay readable.
    """

    values: int = 2_500_000
    workers: int = 4
    keep: int = 4
    seconds: float = 5.0
    warm_up_rounds: int = 150


@dataclass(frozen=True)
class RankWorkload:
    """Unit: millions of edges a second. Read the graph of `folder` with `graph_input.read_graph`, let every page have
    rank 1, and compute `warm_up_rounds` rounds, which are not timed, then `rounds`. `result(name)` is the file for the
    ranks, an array by page.
    """

    folder: str
    pages: int
    edges: int
    rounds: int
    warm_up_rounds: int = 5

    def result(self, name: str) -> str:
        """The file for the ranks of a case."""
        return f"{self.folder}/{name}.npy"


@dataclass(frozen=True)
class SpreadWorkload:
    """Unit: millions of edges a second, each counted once, until no value changes any more.

    The edges of `folder` lead both ways. Without a root, every vertex begins with its own number, and in the end has
    the lowest of its component. With a root, edges have weights (`graph_input.read_weights`); the root begins with 0,
    the others with infinity, and in the end each has the length of the shortest way. The first round is not timed.
    `result(name)` is the file for the values, an array of floats by vertex.
    """

    folder: str
    vertices: int
    edges: int
    root: int | None = None

    def result(self, name: str) -> str:
        """The file for the values of a case."""
        return f"{self.folder}/{name}.npy"


Floats = npt.NDArray[np.float64]


class Model(Protocol):
    """A model that is fitted in rounds by several tasks; `Model(folder, task, tasks)` holds the rows of one task."""

    def __init__(self, folder: str, task: int, tasks: int) -> None: ...

    def part(self, parameters: Floats, round: int) -> Floats:
        """What the rows of this task contribute to a round. Contributions of tasks are added."""
        ...

    @staticmethod
    def moved(parameters: Floats, total: Floats) -> Floats:
        """The parameters after a round, from the sum of all contributions."""
        ...


@dataclass(frozen=True)
class FitWorkload:
    """Unit: ms a round. From the parameters in `first.npy`, fit for `warm_up_rounds` rounds, which are not timed, then
    for `rounds`. Every process computes in one thread. `result(name)` is the file for the parameters at the end.
    """

    folder: str
    model: type[Model]
    rounds: int
    warm_up_rounds: int = 3

    def first(self) -> Floats:
        """The parameters at the start."""
        return np.load(f"{self.folder}/first.npy")

    def result(self, name: str) -> str:
        """The file for the parameters of a case."""
        return f"{self.folder}/{name}.npy"


@dataclass(frozen=True)
class AuditWorkload:
    """Unit: rows a second. The folder of a job with one cut, and how many rows of state and logs there are in it."""

    job: str
    rows: int


@dataclass(frozen=True)
class SumWorkload:
    """Unit: millions of rows a second. `file("keys")` and `file("values")` are arrays of integers, one item a row: add
    the values by key. `check` raises if the sums are wrong.
    """

    folder: str
    rows: int
    keys: int

    def file(self, name: str) -> str:
        """The file of an array."""
        return f"{self.folder}/{name}.npy"

    def check(self, case: str, keys: npt.NDArray[Any], sums: npt.NDArray[Any]) -> None:
        """Raise unless these are the sums of all keys, each once."""
        found = np.zeros(self.keys, np.int64)
        found[keys] = sums
        if len(keys) != len(np.unique(keys)) or not np.array_equal(found, np.load(self.file("sums"))):
            raise ValueError(f"the sums of {case} are wrong")

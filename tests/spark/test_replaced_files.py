"""Files that take the place of others: sound ones are none of the audit's business, and each wrong one is found."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest

from backedge.engine.state.compaction import put_together
from backedge.engine.state.keyed_state import KeyedState, StateEncoder, encode_entries, keyed_entries
from backedge.engine.state.tables.table_state import TableState
from backedge.engine.state.touched_keys import Bases
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.routing import canonical_key
from backedge.graphs.table import Table
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.cut.keyed_parts import KeyedPart
from backedge.recovery.protocol.effects import Report
from backedge.recovery.protocol.orders import Compact, Manifest, StateFile
from backedge.recovery.protocol.state_files import StateFiles
from backedge.recovery.spark.audit.cut_roles import CutRoles
from backedge.recovery.spark.audit.manifest_checks import CutDocuments
from backedge.recovery.spark.audit.replaced_files import replaced_files
from backedge.recovery.spark.cut_tables.cut_tables import cut_tables
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from tests.stores.layered import TASK, Cuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
Spoil = Callable[[dict[Any, Any]], None]


class Colour(IntEnum):
    RED = 5


class Place(NamedTuple):
    row: int
    column: Any


class Thing:
    """Pickled otherwise once it was loaded."""

    def __init__(self) -> None:
        self.made = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.made = state["made"] + 1


KEYS: tuple[Any, ...] = (
    *range(8), Colour.RED, 2.0, np.int64(6), True, -1, (1 << 63) - 1, 1 << 63, 0.5, -0.0, math.nan, math.inf, *"abc",
    "", "a\x1f\"", "ü", "\ud800", np.str_("b"), b"", b"a", None, (), (1,), (1, 2), Place(1, 2), (1.0, True),
    (1, ("x", None)), Place(1, math.nan),
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    0, -1, 1 << 70, 0.5, -0.0, math.nan, math.inf, "", "x", "\ud800", b"", b"ab", None, True, [1, {2, 3}], {"a": (1,)},
    {1: 2}, {1: 1, "1": 2}, (1, 2), np.float32(0.1), np.arange(3), np.str_("x"), Place(1, 2), Colour.RED, len, Thing,
)  # fmt: skip


class Taken(NamedTuple):
    """An open epoch: its base, the cut since which it holds what changed, what that is, and how many entries."""

    epoch: Epoch
    base: Epoch | None
    since: Epoch | None
    groups: Iterable[KeyedPart]
    keys: int


class History:
    """Cuts of a task whose keys change at random: deltas and compactions, while epochs overlap and are given up.

    `spoils` is what the first compaction does to its entries.
    """

    def __init__(self, root: Path, seed: int, values: Sequence[Any] | None = None, spoils: Spoil | None = None) -> None:
        self.random = random.Random(seed)
        self.spoils = spoils
        self.cuts = Cuts(root)
        self.state, self.bases = KeyedState("rank"), Bases()
        self.timers: dict[Any, list[tuple[int, int]]] = {}
        self.files = StateFiles(Attempt(1), self.random.choice([3, 5, 9]), None, {}, self.random.choice([1, 12, 99]))
        self.layers: dict[StateFile, tuple[Epoch | None, Iterable[KeyedPart]]] = {}
        self.keys = self.random.sample(KEYS, self.random.choice([3, 9, len(KEYS)]))
        self.values = values or self.random.choice([VALUES, VALUES, (1, 2), (0.5, math.nan), (b"a", b"b")])
        self.number = 0
        self.last: Epoch | None = None
        self.running: list[tuple[Compact, Epoch]] = []

    def take(self, cuts: int) -> None:
        """Take this number of cuts, up to three of them open at a time."""
        while cuts > 0:
            open_epochs = [self._taken()]
            while self.random.random() < 0.3 and len(open_epochs) < 3:
                open_epochs.append(self._taken())
            while open_epochs:
                cuts -= self._complete_first(open_epochs)
            self._compact_some()

    def _complete_first(self, open_epochs: list[Taken]) -> bool:
        """End the first of these epochs; return whether it was completed and not given up."""
        one = open_epochs.pop(0)
        is_completed = self.random.random() < 0.8
        if is_completed:
            self._complete(one, [later.base for later in open_epochs if later.base is not None])
        return is_completed

    def _compact_some(self) -> None:
        if self.running and self.random.random() < 0.5:
            self._compact(*self.running.pop(0))

    def _change(self, key: Any) -> None:
        match self.random.randint(0, 5):
            case 0:
                self.state.remove(key)
            case 1:
                self.timers[key] = [(self.random.randint(0, 9), 0) for _ in range(self.random.randint(0, 2))]
                self.state.note(key)
            case _:
                value = self.random.choice(self.values)
                self.state.replace(key, Thing() if value is Thing else value)

    def _has_base(self, base: Epoch) -> bool:
        return self.state.has_base(base)

    def _next(self) -> Epoch:
        self.number += 1
        return Epoch(self.number)

    def _taken(self) -> Taken:
        """Some keys change, and their state is captured. Without a base that is all of it, as between two rounds."""
        if self.random.random() < 0.8:
            for key in self.random.sample(self.keys, self.random.randint(0, len(self.keys))):
                self._change(canonical_key(key))
        epoch, base = self._next(), self.last
        if base is not None and not (self.files.may_be_base(base) and self._has_base(base)):
            base = None
        if self.random.random() < 0.1:
            base = None
        return Taken(epoch, base, *self._captured(epoch, base))

    def _complete(self, taken: Taken, open_bases: Sequence[Epoch]) -> None:
        epoch, base, since, groups, keys = taken
        report = Report({}, frozenset(), False, (), since, keys)
        lists = self.files.composed(base, {TASK: epoch}, {TASK: report})
        *below, own = lists[TASK]
        self.layers[own] = since, groups
        self.cuts.complete(epoch, groups, since, tuple(below))
        self.files.on_complete(epoch, lists, open_bases)
        self.last = epoch
        if self.files.due(epoch):
            self.running.append((self.files.compact(TASK, epoch, self._next()), epoch))

    def _captured(self, epoch: Epoch, base: Epoch | None) -> tuple[Epoch | None, Iterable[KeyedPart], int]:
        """Since when it holds what changed, what that is, and how many entries."""
        capture = self.state.capture(epoch, base)
        of = self.timers if capture.keys is None else capture.keys
        timers = [(key, *timer) for key in of for timer in self.timers.get(key, ())]
        encoder = StateEncoder("rank", capture.entries, timers, capture.gone)
        keys = encoder.encode_some(1_000)
        capture.release()
        since = None if base is None else self.bases.since(epoch, base, [self.state])
        return since, encoder.parts(), keys

    def _compact(self, order: Compact, epoch: Epoch) -> None:
        bases, layers = zip(*(self.layers[file] for file in order.files[order.left :]), strict=True)
        states, keys = put_together({"rank": OperatorState(layers[0], deltas=layers[1:])}, is_delta=order.left > 0)
        groups = states["rank"].keyed
        if self.spoils is not None:
            values, timers, gone = keyed_entries(states["rank"])
            self.spoils(values)
            groups, self.spoils = encode_entries("rank", values, timers, gone), None
        self.layers[StateFile(Attempt(1), order.epoch, keys)] = bases[0], groups
        self.cuts.store.on_compacted(self.cuts.write(order.epoch, groups, bases[0], epoch))
        self.files.on_compacted(TASK, order.epoch, keys)


class TableHistory(History):
    """The same for the table of a process class."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        kinds = self.random.choice([["int64"], ["string"], ["string", "int64"]])
        columns = {"small": "float32", "large": "float64", "count": "uint64", "is": "bool"}
        self.table = TableState("rank", Table({f"part{n}": kind for n, kind in enumerate(kinds)}, columns))
        self.names = [kind == "string" for kind in kinds]

    def _change(self, key: Any) -> None:
        number = self.random.randint(-25, 25)
        parts = [np.array([str(number)], object) if is_text else np.array([number]) for is_text in self.names]
        numbers = self.random.choices([0.1, -0.0, math.nan, math.inf, -math.inf, 1e30], k=2)
        count = self.random.choice([0, 7, (1 << 64) - 1])
        rows, more = self.table.rows(*parts), {"count": np.array([count], np.uint64), "is": [count == 7]}
        self.table.set(rows, small=np.array(numbers[:1], np.float32), large=np.array(numbers[1:]), **more)

    def _has_base(self, base: Epoch) -> bool:
        return self.table.has_base(base)

    def _captured(self, epoch: Epoch, base: Epoch | None) -> tuple[Epoch | None, Iterable[KeyedPart], int]:
        capture = self.table.capture(epoch, base)
        since = None if base is None else self.bases.since(epoch, base, [self.table])
        groups = capture.parts()
        capture.release()
        return since, groups, capture.keys


def long_one(seed: int) -> Any:
    """The seed of a history that is left to the long tests."""
    return pytest.param(seed, marks=pytest.mark.long)


def judged(spark: SparkSession, root: Path) -> list[tuple[int, int, int]]:
    """The cuts that have lost keys or have some otherwise, with how many of each."""
    folder = JobFolder.open(str(root))
    recorded = [(link, link.entry) for link in folder.links() if isinstance(link.entry, Manifest)]
    cuts = {
        int(entry.epoch): CutDocuments(link, entry, folder.manifest(entry.epoch), {}, {}) for link, entry in recorded
    }
    previous = {later: earlier for earlier, later in pairwise(cuts)}
    roles = CutRoles(cut_tables(spark, folder, list(cuts)), tuple(cuts), {}, previous, {}, {}, {})
    found = replaced_files(spark, roles, cuts)
    return [] if found is None else sorted((row.epoch, row.lost, row.wrong) for row in found.collect())


@pytest.mark.parametrize("seed", [3, *map(long_one, (0, 1, 2, 4, 5, 6, 7))])
@pytest.mark.parametrize("make", [History, TableHistory])
def test_sound_files_that_take_the_place_of_others_are_no_fault(
    spark: SparkSession, tmp_path: Path, make: type[History], seed: int
):
    make(tmp_path, seed).take(20)
    assert judged(spark, tmp_path) == []


class InTurn(History):
    """Up to three cuts are open, and a new one may begin whenever one completes: they have different bases."""

    def take(self, cuts: int) -> None:
        opened: list[Taken] = []
        while cuts > 0:
            while len(opened) < 3 and (not opened or self.random.random() < 0.6):
                opened.append(self._taken())
            cuts -= self._complete_first(opened)
            self._compact_some()


def of(timers: Sequence[tuple[Any, int, int]] = (), **values: Any) -> Iterable[KeyedPart]:
    return encode_entries("rank", values, timers)


def test_what_continues_an_older_cut_than_the_one_before_is_a_fault_only_if_it_has_keys_or_timers_otherwise(
    spark: SparkSession, tmp_path: Path
):
    cuts, twice = Cuts(tmp_path), [("t", 5, 0)] * 2
    cuts.complete(1, of(twice, a=1, b=1, t=1))
    cuts.complete(2, of(a=2, c=2), base=1)
    cuts.complete(3, of(a=2, c=2), base=1)  # `a` has changed since 1, not since 2
    cuts.complete(4, of(b=4), base=2)
    compactions = {
        9: of(twice, a=2, b=1, c=2, t=1),
        11: of(twice, a=2, b=1, t=1),
        13: of([("t", 7, 0)] * 2, a=2, b=1, c=2, t=1),
    }
    for filed, groups in compactions.items():
        cuts.store.on_compacted(cuts.write(filed, groups, None, epoch=2))
        cuts.complete(filed + 1, of(b=4), base=2, below=(StateFile(Attempt(1), Epoch(filed), 4),))
    assert cuts.values(3) == {"a": 2, "b": 1, "c": 2, "t": 1}
    assert cuts.values(4) == cuts.values(10) == {"a": 2, "b": 4, "c": 2, "t": 1}
    found = judged(spark, tmp_path)
    assert found == [(12, 1, 0), (14, 0, 2)], "one has lost a key; the next one has it again, and timers otherwise"


@pytest.mark.parametrize("seed", [0, long_one(1)])
def test_sound_files_of_cuts_that_overlap_in_turn_are_no_fault(spark: SparkSession, tmp_path: Path, seed: int):
    InTurn(tmp_path, seed).take(20)
    assert judged(spark, tmp_path) == []


def test_equal_keys_of_different_types_are_one_key(spark: SparkSession, tmp_path: Path):
    text = "a\x1f\u2028/\\"
    below: dict[Any, int] = {"": 1, np.bytes_(b"x"): 1, text: 1, (1, np.str_("")): 1}
    above: dict[Any, int] = {np.str_(""): 2, b"x": 2, np.str_(text): 2, (1.0, ""): 2}
    cuts = Cuts(tmp_path)
    cuts.complete(1, of(z=1))
    cuts.complete(2, encode_entries("rank", below, ()), base=1)
    cuts.complete(3, encode_entries("rank", above, ()), base=1)
    assert judged(spark, tmp_path) == []
    cuts.complete(4, encode_entries("rank", dict.fromkeys(below, 3), ()), base=3)
    state = cut_tables(spark, JobFolder.open(str(tmp_path)), [4], ["state"])["state"]
    assert sorted(row.value for row in state.select("value").collect()) == ["1", "3", "3", "3", "3"]


def set_another_value(values: dict[Any, Any]) -> None:
    values[next(iter(values))] = "another"


def leave_a_key_out(values: dict[Any, Any]) -> None:
    values.popitem()


def add_a_key(values: dict[Any, Any]) -> None:
    values["another"] = 1


@pytest.mark.parametrize("seed", [3, *map(long_one, (9, 40, 48))])
@pytest.mark.parametrize(
    ("spoils", "expected"), [(set_another_value, (0, 1)), (leave_a_key_out, (1, 0)), (add_a_key, (0, 1))]
)
def test_a_compaction_with_one_wrong_key_or_value_is_found_and_nothing_else(
    spark: SparkSession, tmp_path: Path, seed: int, spoils: Spoil, expected: tuple[int, int]
):
    history = History(tmp_path, seed, VALUES[:10], spoils)
    history.take(20)
    assert history.spoils is None, "choose a seed with a compaction"
    assert [tuple(figures) for _, *figures in judged(spark, tmp_path)] == [expected]

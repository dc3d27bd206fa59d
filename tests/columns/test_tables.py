"""Tables of process classes: rows by key, captured while they change, restored by key group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from backedge import BadOptionError, Collect, CutView, Flow, Items, Process, Table, simulate
from backedge.engine.state.compaction import put_together
from backedge.engine.state.tables.restored_tables import rows_of
from backedge.engine.state.tables.row_index import IntegerIndex
from backedge.engine.state.tables.table_state import BLOCK_ROWS, TableCapture, TableState
from backedge.engine.state.touched_keys import Bases
from backedge.graphs.ids import Epoch
from backedge.graphs.routing import groups_of_keys, groups_of_task, key_group, key_groups
from backedge.graphs.task_errors import MisuseError, UserFunctionError
from backedge.recovery.cut.cut import OperatorState, layers
from backedge.recovery.cut.keyed_parts import KeyedPart
from backedge.recovery.stores.state_table import parts_of, state_parts
from tests.columns.given import columns, flow_of, sent, slow
from tests.every import every
from tests.runtime.tasks import Tasks

Arrays = dict[str, Any]
SUMS = Table(key={"id": "int64"}, columns={"sum": "int64"})
SEEDS = [0, *map(slow, range(1, 4))]


def table_of(ids: Any, sums: Any, declared: Table = SUMS, **options: Any) -> TableState:
    table = TableState("sums", declared, **options)
    table.set(table.rows(ids), sum=sums)
    return table


def state_of(capture: TableCapture, below: OperatorState | None = None) -> OperatorState:
    """The captured rows, on top of those of the captures before."""
    groups = capture.parts()
    capture.release()
    return OperatorState(groups) if below is None else OperatorState(below.keyed, deltas=(*below.deltas, groups))


def stored(state: OperatorState) -> OperatorState:
    """The same after it has been in files."""
    first, *deltas = (tuple(from_file(parts)) for parts in layers(state))
    return OperatorState(first, deltas=tuple(deltas))


def from_file(parts: Iterable[KeyedPart]) -> Iterator[KeyedPart]:
    (part,) = state_parts(OperatorState(parts))
    return parts_of(part.rows)


def sums_in(state: OperatorState, declared: Table = SUMS) -> dict[Any, int]:
    """Key -> sum, as a restored table has them."""
    table = TableState("sums", declared)
    table.restore(rows_of(state))
    return sums_of(table)


def sums_of(table: TableState) -> dict[Any, int]:
    *keys, sums = (column.tolist() for column in table.scan().values())
    return dict(zip(keys[0] if len(keys) == 1 else zip(*keys, strict=True), sums, strict=True))


# -- finding rows ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kinds", [("int64",), ("string",), ("int64", "string"), ("string", "int64", "int64")])
def test_the_index_finds_each_key_among_many_and_no_other(kinds: tuple[str, ...]):
    random = np.random.default_rng(1)
    parts = [random.integers(-40, 40, 3_000) for _ in kinds]
    made = [np.array(list(map(str, p)), object) if k == "string" else p for p, k in zip(parts, kinds, strict=True)]
    table = TableState("t", Table(key={f"k{n}": kind for n, kind in enumerate(kinds)}, columns={"sum": "int64"}))
    expected: dict[Any, int] = {}
    for start in range(0, 3_000, 500):
        batch = [column[start : start + 500] for column in made]
        keys = list(zip(*(column.tolist() for column in batch), strict=True))
        known = table.find(*batch) >= 0
        assert known.tolist() == [key in expected for key in keys]
        table.combine(np.add, table.rows(*batch), sum=np.arange(500))
        for key, value in zip(keys, range(500), strict=True):
            expected[key] = expected.get(key, 0) + value
    assert len(table) == len(expected)
    assert sums_of(table) == {key[0] if len(key) == 1 else key: value for key, value in expected.items()}


@pytest.mark.slow
def test_integers_that_hash_to_one_slot_are_kept_apart():
    index = IntegerIndex()
    far = np.array([-(1 << 63), (1 << 63) - 1])
    index.add([far], np.array([1_000, 1_001]))
    numbers = np.arange(300_000)
    ids = numbers[index._slots(numbers) == index._slots(far[:1])]  # pyright: ignore[reportPrivateUsage]
    assert len(ids) > 1_000
    index.add([ids[:1_000]], np.arange(1_000))
    assert index.find([ids]).tolist() == [*range(1_000), *[-1] * (len(ids) - 1_000)]
    assert index.find([far]).tolist() == [1_000, 1_001]


@pytest.mark.slow
def test_integers_are_found_whether_they_are_close_together_or_not_and_when_that_changes():
    index, random = IntegerIndex(), np.random.default_rng(2)
    expected: dict[int, int] = {}
    # Close together on both sides, then some far away, then so many between them that all are close together again.
    for ids in ([5, 7], [-900, 900], [1 << 30], range(1_000, 3_000), random.integers(0, 1 << 22, 700_000)):
        new = [key for key in dict.fromkeys(map(int, ids)) if key not in expected]
        index.add([np.array(new, np.int64)], np.arange(len(expected), len(expected) + len(new)))
        expected |= dict(zip(new, range(len(expected), len(expected) + len(new)), strict=True))
        wanted = [*expected, -(1 << 63), (1 << 63) - 1, 6, -1]
        assert index.find([np.array(wanted, np.int64)]).tolist() == [expected.get(key, -1) for key in wanted]


@pytest.mark.parametrize("first", [-(1 << 63), (1 << 63) - 9])
def test_the_smallest_and_the_largest_integers_are_found_next_to_each_other(first: int):
    index = IntegerIndex()
    ids = np.array([first + place for place in range(9)], np.int64)
    index.add([ids], np.arange(9))
    assert index.find([ids]).tolist() == list(range(9))
    assert index.find([np.array([0, *ids[:1]])]).tolist() == [-1, 0]


def test_composite_keys_have_the_key_group_of_their_tuple():
    parts = [np.array(["a", "b", "ü"], object), np.array([1, -2, 1 << 40])]
    tuples = zip(*(part.tolist() for part in parts), strict=True)
    assert groups_of_keys(parts).tolist() == [key_group(key) for key in tuples]


def test_rows_that_occur_several_times_are_all_combined_and_the_last_one_set():
    table = TableState("t", Table(key={"id": "int64"}, columns={"sum": "int64", "low": "float64"}, initial={"low": 9}))
    rows = table.rows([5, 6, 5])
    table.combine(np.add, rows, sum=[1, 2, 3])
    table.combine(np.minimum, rows, low=[8, 10, 7])
    assert (table.get("sum", rows).tolist(), table.get("low", rows).tolist()) == ([4, 2, 4], [7, 9, 7])
    table.set(rows, sum=[1, 2, 3])
    assert table.get("sum", rows).tolist() == [3, 2, 3]


# -- captures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(10, 4_086, 1, 9_000), (4_096, 8_192), (13_000,), (4_095, 2, 3_000)])
def test_rows_of_a_group_fill_its_last_block_before_new_ones(steps: tuple[int, ...]):
    numbers = np.arange(1_700_000)
    of_two_groups = [numbers[key_groups(numbers) == group][: sum(steps)] for group in (3, 7)]
    table, first = TableState("sums", SUMS), 0
    for step in steps:
        ids = np.concatenate([ids[first : first + step] for ids in of_two_groups])
        rows = table.rows(ids)
        assert len(np.unique(rows)) == len(rows)
        table.combine(np.add, rows, sum=ids)
        first += step
    assert sums_of(table) == {key: key for ids in of_two_groups for key in ids.tolist()}
    groups = Counter(group for part in table.capture().parts() for group in part.groups.tolist())
    assert groups == {3: sum(steps), 7: sum(steps)}
    assert len(table.capture().is_left) == 2 * -(-sum(steps) // BLOCK_ROWS)


def test_a_change_of_few_rows_copies_no_block_and_a_change_of_many_copies_each_once(monkeypatch: pytest.MonkeyPatch):
    table = table_of(range(100_000), 1)
    taken: list[int] = []
    copy = TableState.block

    def noted(table: TableState, block: int, count: int) -> Any:
        taken.append(block)
        return copy(table, block, count)

    monkeypatch.setattr(TableState, "block", noted)
    capture = table.capture()
    for value in (2, 4):
        table.set(table.rows([3, 3, 70_000]), sum=value)
    assert not taken
    for value in (5, 6):
        table.set(table.rows(range(100_000)), sum=value)
    assert sorted(taken) == list(range(len(capture.is_left)))
    assert sums_in(state_of(capture)) == dict.fromkeys(range(100_000), 1)


def test_what_a_row_held_is_kept_once_however_often_it_changes_and_whatever_the_type_of_its_number():
    table = table_of(range(100_000), 1)
    capture, rows = table.capture(), table.rows([0, 50_000])
    for kind in ("int64", "uint64", "int32"):
        table.combine(np.add, rows.astype(kind), sum=1)
    assert [held.values["sum"].tolist() for held in capture._former] == [[1, 1]]
    assert sums_in(state_of(capture)) == dict.fromkeys(range(100_000), 1) and sums_of(table)[50_000] == 4


@pytest.mark.slow
@pytest.mark.parametrize("is_tracked", [True, False])
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))])
def test_open_captures_hold_their_moments_while_rows_change_and_are_added_at_random(seed: int, is_tracked: bool):
    """Some of them deltas, encoded block by block, with changes of few and of many rows between."""
    random = np.random.default_rng(seed)
    table = table_of(range(30_000), 0, tracks=is_tracked)
    base, at_base, keys = state_of(table.capture(Epoch(1))), sums_of(table), 30_000
    found: list[tuple[TableCapture, bool, dict[int, int]]] = []
    for epoch in range(2, 12):
        is_delta = table.has_base(Epoch(1)) and random.random() < 0.8
        found.append((table.capture(Epoch(epoch), Epoch(1) if is_delta else None), is_delta, sums_of(table)))
        for _ in range(3):
            count = int(random.integers(1, 300 if epoch < 5 or random.random() < 0.8 else 60_000))
            table.combine(np.add, table.rows(random.integers(0, keys, count)), sum=1)
            keys += int(random.integers(0, 9))
            for capture, *_ in found:
                capture.encode_some(int(random.integers(1, 9_000)))
    assert any(is_delta for _, is_delta, _ in found) is is_tracked
    for capture, is_delta, expected in found:
        state = state_of(capture, base if is_delta else None)
        assert sums_in(state) == expected
        if is_delta:
            changed = sum(len(rows.groups) for rows in rows_of(OperatorState(state.deltas[-1])))
            assert changed == sum(at_base.get(key) != value for key, value in expected.items())


def refuses_rows(change: Callable[..., Any], rows: Any) -> None:
    with pytest.raises(MisuseError, match=r"'sums'.*rows"):
        change(rows, sum=7)


def test_rows_of_blocks_that_are_not_there_are_refused_although_there_is_room_for_them():
    table = table_of([1, 2], 1)
    last = len(table._filled) * BLOCK_ROWS
    assert last < len(table._changed_at)
    for use in (table.set, partial(table.combine, np.add)):
        refuses_rows(use, np.array([last]))


def test_rows_that_their_block_does_not_have_yet_are_refused_before_a_cut_holds_them():
    table = table_of(range(5_000), 1)
    capture = table.capture(Epoch(1))
    refuses_rows(table.set, np.arange(len(table)))
    table.set(table.rows([3]), sum=7)
    assert sums_in(state_of(capture)) == dict.fromkeys(range(5_000), 1)
    (rows,) = rows_of(state_of(table.capture(Epoch(2), Epoch(1))))
    assert rows.entries() == [(3, {"sum": 7})]


def test_a_capture_may_be_encoded_again():
    table = table_of(range(9_000), 0)
    whole = table.capture(Epoch(1))
    table.set(table.rows([1, 2]), sum=1)
    delta = table.capture(Epoch(2), Epoch(1))
    table.set(table.rows([1, 3]), sum=2)
    for capture, expected in ((whole, dict.fromkeys(range(9_000), 0)), (delta, {1: 1, 2: 1})):
        for _ in range(2):
            assert sums_in(OperatorState(capture.parts())) == expected


def test_a_delta_holds_what_changed_since_its_base_even_if_captures_between_were_aborted():
    table = table_of(range(9_000), 0)
    whole = state_of(table.capture(Epoch(1)))
    table.set(table.rows([1, 2]), sum=1)
    table.capture(Epoch(2), Epoch(1)).release()
    table.set(table.rows([2, 9_001]), sum=2)
    capture = table.capture(Epoch(3), Epoch(1))
    assert capture.keys == 4
    delta = state_of(capture, whole)
    assert sum(len(rows.groups) for rows in rows_of(OperatorState(delta.deltas[0]))) == 3
    assert sums_in(delta) == dict.fromkeys(range(9_000), 0) | {1: 1, 2: 2, 9_001: 2}
    assert sums_in(stored(delta)) == sums_in(delta)


def chain_of(layers: list[Any]) -> OperatorState:
    return OperatorState(layers[0], deltas=tuple(layers[1:]))


def knows_its_marks(table: TableState) -> bool:
    index = table._index
    assert isinstance(index, IntegerIndex)
    return index.unmarked is not None and not len(index.unmarked)


@pytest.mark.parametrize("seed", SEEDS)
def test_deltas_are_exact_if_few_rows_change_again_and_again(seed: int):
    """The index then knows that they are marked. Some keys are new, and some so far away that it is built again."""
    random = np.random.default_rng(seed)
    table = table_of(range(40_000), 0)
    layers, told, far = [state_of(table.capture(Epoch(1))).keyed], 0, 40_000
    for epoch in map(Epoch, range(2, 30)):
        hot = random.integers(0, 40_000, 50)
        for _ in range(int(random.integers(10, 40))):
            rows = table.rows(random.choice(hot, 200))
            told += knows_its_marks(table)
            match random.integers(0, 8):
                case 0:
                    rows[7] = rows[0] + 1 if rows[0] % BLOCK_ROWS < 100 else rows[8]
                case 1:
                    table.rows(random.integers(0, 40_000, 200))
                case 2:
                    far += int(random.choice([1, 1_000, 20_000]))
                    table.rows([far])
                case _:
                    pass
            table.combine(np.add, rows, sum=1)
        capture, is_checked = table.capture(epoch, Epoch(epoch - 1)), epoch % 10 == 9
        expected = sums_of(table) if is_checked else {}
        if random.random() < 0.5:
            table.combine(np.add, table.rows(hot), sum=1)
        layers.append(state_of(capture).keyed)
        if is_checked:
            assert sums_in(chain_of(layers)) == expected
    assert told > 50


@pytest.mark.parametrize("seed", SEEDS)
def test_captures_that_stay_open_while_the_same_rows_change_are_exact(seed: int):
    """The index knows the marks of rows then, too. Pieces are taken between batches, and captures overlap."""
    random = np.random.default_rng(seed)
    table = table_of(range(20_000), 0)
    layers, told = [state_of(table.capture(Epoch(1))).keyed], 0
    opened: list[tuple[TableCapture, dict[int, int]]] = []
    hot = random.integers(0, 20_000, 1_000)
    for epoch in map(Epoch, range(2, 14)):
        opened.append((table.capture(epoch, Epoch(epoch - 1)), sums_of(table)))
        for _ in range(int(random.integers(5, 30))):
            rows = table.rows(random.choice(hot, 3_000))
            told += knows_its_marks(table)
            table.combine(np.add, rows, sum=1)
            if random.random() < 0.1:
                opened[0][0].encode_some(2_000)
        if epoch % 3 == 1:
            for capture, expected in opened:
                layers.append(state_of(capture).keyed)
                assert sums_in(chain_of(layers)) == expected
            opened.clear()
    assert told > 10


def test_rows_that_the_index_found_last_are_checked_if_they_have_changed():
    table = table_of([7, 8, 9], 0)
    for change in (-3 * BLOCK_ROWS, 3 * BLOCK_ROWS, 1 << 32, 1 << 40):
        rows = table.rows([7, 8, 9])
        rows[1] += change
        refuses_rows(partial(table.combine, np.add), rows)
    refuses_rows(table.set, table.find([7, 1_000, 9]))
    table.set([], sum=1)
    assert sums_of(table) == {7: 0, 8: 0, 9: 0}
    table.combine(np.add, table.rows([7, 8, 9])[::-1], sum=[1, 2, 3])
    table.combine(np.add, np.broadcast_to(table.rows([8, 7, 9])[:1], 3), sum=10)
    assert sums_of(table) == {7: 3, 8: 32, 9: 1}


@pytest.mark.parametrize("is_open", [False, True])
def test_keys_in_two_dimensions_are_changed_and_are_part_of_deltas(is_open: bool):
    table = table_of(range(100), 0)
    whole = table.capture(Epoch(1))
    if not is_open:
        state_of(whole)
    for _ in range(2):
        table.combine(np.add, table.rows([key for key in range(20) if key != 4]), sum=1)
    table.combine(np.add, table.rows(np.arange(20).reshape(10, 2)), sum=1)
    delta = table.capture(Epoch(2), Epoch(1))
    assert sums_in(state_of(whole)) == dict.fromkeys(range(100), 0)
    assert sums_in(state_of(delta)) == {key: 1 if key == 4 else 3 for key in range(20)}


class Series:
    """Has what a column of a frame has of an array, and is none."""

    def __init__(self, values: Any) -> None:
        self._values, self.dtype, self.shape = values, values.dtype, values.shape
        self.astype = lambda kind: Series(values.astype(kind))

    def __len__(self) -> int:
        return len(self._values)

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self._values


def test_rows_may_be_a_series_or_a_list():
    table = table_of([7, 8, 9], 0)
    rows: Any = Series(table.rows([7, 8, 9]))
    table.combine(np.add, rows, sum=[1, 2, 3])
    assert table.get("sum", table.rows([7, 8, 9]).tolist()).tolist() == [1, 2, 3]


def test_a_delta_that_holds_all_rows_of_its_bases_delta_may_take_its_place():
    table = table_of(range(9_000), 0)
    table.capture(Epoch(1)).release()
    changes = {2: [1, 2], 3: [2], 4: [5, 2], 5: [2, 5, 8_999]}
    for epoch, keys in changes.items():
        table.set(table.rows(keys), sum=epoch)
        table.capture(Epoch(epoch), Epoch(epoch - 1)).release()
        assert table.supersedes(Epoch(epoch), Epoch(epoch - 1)) is (epoch > 3)


def test_a_delta_whose_base_is_just_forgotten_takes_the_place_of_none():
    table = table_of(range(9_000), 0)
    for epoch in (1, 2):
        table.capture(Epoch(epoch), Epoch(1) if epoch > 1 else None).release()
    for epoch in range(3, 80):
        if not table.has_base(Epoch(2)):
            break
        table.capture(Epoch(epoch), Epoch(2)).release()
        is_known = table.has_base(Epoch(2))
        assert table.supersedes(Epoch(epoch), Epoch(2)) is is_known
    assert epoch == 67


@pytest.mark.parametrize("seed", SEEDS)
def test_deltas_without_those_that_they_supersede_hold_everything(seed: int):
    """Some captures are aborted, some hold everything, and some keys are new."""
    random = np.random.default_rng(seed)
    table, last, keys = table_of(range(2_000), 0), Epoch(1), 2_000
    below: dict[Epoch, list[Any]] = {last: [table.capture(last).parts()]}
    bases, superseded, changed = Bases(), 0, dict[Epoch, set[int]]()
    since_last: set[int] = set()
    for epoch in map(Epoch, range(2, 80)):
        few = random.choice([0, *[1_990] * 3, keys - 3], random.integers(0, 4)) + random.integers(0, 3)
        table.combine(np.add, table.rows(few), sum=1)
        keys, since_last = max(keys, int(few.max(initial=0)) + 1), since_last | set(few.tolist())
        base = last if random.random() < 0.9 else None
        capture = table.capture(epoch, base)
        since = None if base is None else bases.since(epoch, base, [table])
        if base is not None and since != base:
            superseded += 1
            assert changed[base] <= since_last
        groups = capture.parts()
        capture.release()
        if random.random() < 0.2:
            continue
        below[epoch] = [*([] if since is None else below[since]), groups]
        # A layer that is missing stays missing in the layers on top of it, up to the next one that holds everything.
        if epoch % 8 == 0 or epoch > 77:
            assert sums_in(chain_of(below[epoch])) == sums_of(table)
        last, changed[epoch], since_last = epoch, since_last, set()
    assert 5 < superseded < 50


def test_without_a_known_base_or_with_many_changes_everything_is_written():
    table = table_of(range(9_000), 0)
    assert not table.has_base(Epoch(1))
    table.capture(Epoch(1)).release()
    assert table.has_base(Epoch(1))
    table.set(table.rows(range(2_000)), sum=1)
    assert not table.has_base(Epoch(1))
    assert len(sums_in(state_of(table.capture(Epoch(2), Epoch(1))))) == 9_000


def test_a_table_that_is_restored_continues_with_deltas_of_the_restored_cut():
    table = TableState("sums", SUMS)
    table.restore(rows_of(state_of(table_of(range(9_000), 1).capture())))
    table.begin(Epoch(4))
    table.set(table.rows([7]), sum=5)
    (rows,) = rows_of(state_of(table.capture(Epoch(5), Epoch(4))))
    assert rows.entries() == [(7, {"sum": 5})]


def test_too_many_changes_stay_too_many_when_the_table_grows():
    table = table_of(range(9_000), 0)
    table.capture(Epoch(1)).release()
    for _ in range(2):
        table.set(table.rows(range(2_000)), sum=1)
    table.set(table.rows(range(2_000, 2_500)), sum=1)
    table.capture(Epoch(2), Epoch(1)).release()
    table.set(table.rows([8_999]), sum=7)
    table.rows(range(9_000, 100_000))
    assert not table.has_base(Epoch(1))
    table.capture(Epoch(3)).release()
    table.set(table.rows([8_999]), sum=7)
    assert not table.has_base(Epoch(1))
    assert table.has_base(Epoch(3))


@pytest.mark.parametrize("delta_at", [None, 1, 100])
def test_the_number_of_captures_that_are_remembered_is_limited(delta_at: int | None):
    table = table_of([1], 1)
    for epoch in range(200):
        table.combine(np.add, table.rows([1, 1]), sum=1)
        table.capture(Epoch(epoch), Epoch(epoch - 1) if epoch == delta_at else None).release()
    assert [table.has_base(Epoch(epoch)) for epoch in (0, 199)] == [False, True]
    assert max(map(len, (table._numbers, table._deltas, table._changes, table._marked))) < 70


def test_the_index_keeps_a_mark_once_however_often_its_row_occurs():
    table = table_of(range(40_000), 0)
    table.capture(Epoch(1)).release()
    for first in (0, 1):
        table.combine(np.add, table.rows(np.tile(np.arange(first, first + 3), 1_000)), sum=1)
    index = table._index
    assert isinstance(index, IntegerIndex)
    assert sum(map(len, index._marked)) == 4


def test_a_capture_that_has_the_epoch_of_another_one_takes_its_place_as_a_base():
    table = table_of(range(9_000), 0)
    for epoch in (5, 6):
        table.capture(Epoch(epoch)).release()
    for keys in (range(1_500), [4_000]):
        table.set(table.rows(keys), sum=1)
    table.capture(Epoch(5)).release()
    assert [table.has_base(Epoch(epoch)) for epoch in (5, 6)] == [True, False]


@pytest.mark.parametrize("key", [{"id": "string"}, {"id": "string", "day": "int64"}])
def test_text_and_composite_keys_survive_files_by_key_group(key: dict[str, str]):
    declared = Table(key=key, columns={"sum": "int64"})
    table = TableState("sums", declared)
    ids = np.array([f"ü{n % 90}" for n in range(300)], object)
    table.set(table.rows(*[ids, np.arange(300)][: len(key)]), sum=np.arange(300))
    state = stored(state_of(table.capture()))
    assert sums_in(state, declared) == sums_of(table)


def test_layers_are_put_together_as_a_table():
    table = table_of(range(9_000), 0)
    whole = state_of(table.capture(Epoch(1)))
    table.set(table.rows([2]), sum=1)
    states, count = put_together({"sums": state_of(table.capture(Epoch(2), Epoch(1)), whole)})
    assert (sums_in(states["sums"]), count) == (sums_of(table), 9_000)


def test_columns_added_since_a_cut_have_their_initial_value_and_others_must_fit():
    state = state_of(table_of([7], 5).capture())
    wider = Table(key={"id": "int64"}, columns={"sum": "float64", "n": "int32"}, initial={"n": 3})
    table = TableState("sums", wider)
    table.restore(rows_of(state))
    assert {name: column.tolist() for name, column in table.scan().items()} == {"id": [7], "sum": [5.0], "n": [3]}
    for other, fault in [
        (Table(key={"id": "string"}, columns={"sum": "int64"}), "rows whose key is"),
        (Table(key={"id": "int64"}, columns={"sum": "int8"}), "some of whose values are no int8"),
    ]:
        with pytest.raises(MisuseError, match=fault):
            sums_in(state, other)


@pytest.mark.parametrize(
    "columns_now", [{"sum": "int64", "n": "int32"}, {"sum": "float64"}, {"n": "int32"}], ids=["more", "wider", "other"]
)
def test_a_class_with_other_columns_begins_with_a_cut_that_holds_everything(columns_now: dict[str, str]):
    """Files with different columns are never put into one: those of the first would be kept, and the others lost."""
    table = TableState("sums", Table(key={"id": "int64"}, columns=columns_now, initial=dict.fromkeys(columns_now, 3)))
    table.restore(rows_of(state_of(table_of([7, 8], 5).capture())))
    table.begin(Epoch(4))
    assert not table.has_base(Epoch(4))
    capture = table.capture(Epoch(5), Epoch(4))
    assert capture.keys == 2
    states, _ = put_together({"sums": state_of(capture)})
    restored = TableState("sums", table.declared)
    restored.restore(rows_of(states["sums"]))
    assert {n: c.tolist() for n, c in restored.scan().items()} == {n: c.tolist() for n, c in table.scan().items()}


def test_values_by_key_of_a_class_without_a_table_are_not_given_up_in_silence():
    counts = _uses(on_record=lambda self, ctx, record: ctx.state.set(1))
    former = Tasks(flow_of(lambda s: s.key_by("id").process(counts, name="op")))
    sent(former, [{"id": 1}])
    totals = _uses(table=SUMS, on_batch=print)
    flow = flow_of(lambda s: s.key_by("id").process(totals, batch_format="numpy", name="op"))
    with pytest.raises(MisuseError, match=r"'op'.*table"):
        Tasks(flow, restored=former.capture())


# -- in a flow ---------------------------------------------------------------------------------------------------


class Totals(Process[Any, Any]):
    """The sum and the number of rows of each key of two columns."""

    table = Table(key={"user": "int64", "day": "string"}, columns={"sum": "int64", "n": "int32"})
    outputs = ("each", "all")

    def on_batch(self, ctx: Any, batch: Arrays) -> None:
        rows = ctx.table.rows(batch["user"], batch["day"])
        ctx.table.combine(np.add, rows, sum=batch["amount"], n=1)
        ctx.emit_batch({"id": batch["id"]})

    def on_end(self, ctx: Any) -> None:
        ctx.emit_batch(ctx.table.scan(), "all")


ORDERS = [{"id": n, "user": n % 7, "day": f"day {n % 3}", "amount": n} for n in range(60)]


def totals_flow() -> Flow:
    flow = Flow("totals")
    orders = flow.read(Items(ORDERS), name="orders").key_by(lambda order: (order["user"], order["day"]))
    totals = orders.process(Totals, batch_format="numpy", name="totals")
    totals.write(Collect(), name="each")
    totals.side("all").write(Collect(), name="all")
    return flow


def sums_are_those_of_the_rows(view: CutView) -> bool:
    counted = sum(row["n"] for row in view.state("totals").values())
    return counted == len(view.output("each"))


@pytest.mark.slow
@pytest.mark.parametrize("schedules", [6, pytest.param(60, marks=pytest.mark.long)])
def test_a_table_counts_every_row_once_under_every_schedule(schedules: int):
    result = simulate(
        totals_flow(), seeds=range(schedules), parallelism=(1, 2, 3), invariant=sums_are_those_of_the_rows
    )
    expected: dict[Any, int] = {}
    for order in ORDERS:
        key = order["user"], order["day"]
        expected[key] = expected.get(key, 0) + order["amount"]
    assert {(row["user"], row["day"]): row["sum"] for row in result.outputs["all"]} == expected
    assert result.crashes > schedules / 3
    assert result.rescaled


def test_a_key_of_another_task_is_refused():
    table = TableState("sums", SUMS, groups_of_task(0, 2))
    with pytest.raises(MisuseError, match=r"key \[\d+\].*key_by"):
        table.rows(range(50))


@every(
    ("kind", "given"),
    [
        ("float64", 2**60 + 1),
        ("float64", [2**60 + 1, 0.5]),
        ("float64", np.array([2**63 - 1, 1])),
        ("float32", np.array([1e300, 1])),
        ("float32", np.array([2**24 + 1, 1])),
        ("bool", [2, 0]),
        ("uint64", np.array([-1, 1])),
        ("int8", [300, 1]),
    ],
)
def test_values_that_a_column_cannot_hold_are_refused_and_change_nothing(kind: str, given: Any):
    table = TableState("sums", Table(key={"id": "int64"}, columns={"v": kind}))
    rows = table.rows([1, 2])
    for change in (table.set, lambda rows, v: table.combine(np.maximum, rows, v=v)):
        with pytest.raises(MisuseError, match=rf"'v'.*{kind}"):
            change(rows, v=given)
    assert table.get("v", rows).tolist() == [0, 0]


def _uses(**hooks: Any) -> type[Any]:
    return type("Uses", (), hooks)


def call_with_table(declared: Table | None, use: Any, ids: list[Any]) -> None:
    """Call a function with the table of a class that gets a batch of these ids."""
    of_class = _uses(table=declared, on_batch=lambda self, ctx, batch: use(ctx.table))
    sent(Tasks(flow_of(lambda s: s.key_by("id").process(of_class, batch_format="numpy", name="op"))), columns(id=ids))


@every(
    ("use", "fault"),
    [
        (lambda table: table.rows([1], [2]), "2 key columns"),
        (lambda table: table.rows([0.5]), "id of type float64"),
        (lambda table: table.rows(np.array([2**64 - 1], np.uint64)), "id of type uint64"),
        (lambda table: table.set(table.rows([1]) == 0, sum=1), "rows of type bool"),
        (lambda table: table.set(table.rows([1]), sum=[0.5]), "float64 for column 'sum'"),
        (lambda table: table.set(table.rows([1]), sum=[None]), "object for column 'sum'"),
        (lambda table: table.combine(np.add, table.rows([1]), sum=[np.nan]), "float64 for column"),
        (lambda table: table.set(table.rows([1]), sum=[1 << 63]), "9223372036854775808"),
        (lambda table: table.set(table.rows([1]), total=1), "no column 'total' .*: sum"),
        (lambda table: table.set(table.rows([1]), id=1), "no column 'id'"),
        (lambda table: table.get("n", table.rows([1])), "no column 'n' .*: id, sum"),
        (lambda table: table.get("sum", table.find([1])), "rows that it does not have"),
        (lambda table: table.set(table.find([1]), sum=1), "rows that it does not have"),
    ],
)
def test_misuse_of_a_table_is_refused_with_its_fix(use: Any, fault: str):
    with pytest.raises(MisuseError, match=fault):
        call_with_table(SUMS, use, [1])


@pytest.mark.parametrize(
    ("keys", "fault"),
    [(["a", None], "a key of a table is None"), (["a", b"b"], "are of type binary: give"), ([1], "are of type int64")],
)
def test_text_keys_that_are_no_texts_are_refused(keys: list[Any], fault: str):
    declared = Table(key={"id": "string"}, columns={"sum": "int64"})
    with pytest.raises(UserFunctionError, match=fault):
        call_with_table(declared, lambda table: table.rows(np.array(keys, object)), ["a"])


@pytest.mark.parametrize("values", [{"n": 1, "m": 2}, {"n": [1, 2], "total": [1, 2, 3]}, {"n": 1, "total": "five"}])
def test_a_change_that_is_refused_changes_no_column(values: dict[str, Any]):
    table = TableState("t", Table(key={"id": "int64"}, columns={"n": "int64", "total": "float64"}))
    rows = table.rows([1, 2])
    for change in (table.set, lambda *given, **values: table.combine(np.add, *given, **values)):
        with pytest.raises((MisuseError, ValueError)):
            change(rows, **values)
    assert table.get("n", rows).tolist() == [0, 0]


def test_an_empty_batch_changes_nothing_whatever_the_types_of_its_arrays():
    table = table_of([1], 5)
    nothing = np.array([])
    table.set(table.rows(nothing), sum=nothing)
    table.combine(np.add, nothing, sum=nothing)
    assert (sums_of(table), table.get("sum", nothing).tolist()) == ({1: 5}, [])


def with_table(stream: Any, table: Table, **options: Any) -> None:
    stream.process(_uses(table=table, on_batch=print), batch_format="numpy", **options)


@every(
    ("table", "fault"),
    [
        (Table(key={}, columns={"sum": "int64"}), "has no key"),
        (Table(key={"id": "float64"}, columns={"sum": "int64"}), "'id': 'float64'}: give one of int64, string"),
        (Table(key={"id": "int64"}, columns={"sum": "object"}), "'sum': 'object'}: give one of bool, int8"),
        (Table(key={"id": "int64"}, columns={"id": "int64"}), "two columns 'id'"),
        (Table(key={"id": "int64"}, columns={"sum": "int64"}, initial={"n": 1}), "'n': ...}, which is not in columns="),
        (Table(key={"id": "int64"}, columns={"n": "int8"}, initial={"n": np.inf}), "'n': inf} .* int8"),
        (Table(key={"id": "int64"}, columns={"n": "uint8"}, initial={"n": -1}), "'n': -1} for a column of type uint8"),
        (Table(key={"id": "int64"}, columns={"n": "float32"}, initial={"n": 2**24 + 1}), "'n': 16777217} for a column"),
        (Table(key={"id": "int64"}, columns={"n": "int64"}, initial={"n": 2**70}), "for a column of type int64"),
    ],
)
def test_a_table_that_cannot_be_is_refused_when_the_flow_is_built(table: Table, fault: str):
    with pytest.raises(BadOptionError, match=fault):
        with_table(Flow().read(Items(ORDERS)).key_by("id"), table)


@pytest.mark.parametrize("keys", [["id", "day"], ["day"], ["day", "id", "hour"], ["day", "number"]])
def test_a_table_with_another_key_than_its_input_is_refused(keys: list[str]):
    stream = Flow().read(Items(ORDERS)).key_by(keys[0] if len(keys) == 1 else keys)
    with pytest.raises(BadOptionError, match=rf"day, id.*{', '.join(keys)}"):
        with_table(stream, Table(key={"day": "string", "id": "int64"}, columns={"n": "int64"}))


def test_several_inputs_of_a_table_may_have_other_names_for_its_key_but_one_may_not():
    flow = Flow()
    orders, others = (flow.read(Items(ORDERS)).key_by(name) for name in ("seller", "buyer"))
    with_table(flow, SUMS, orders=orders, others=others)
    with pytest.raises(BadOptionError, match=r"id.*buyer"):
        with_table(flow, SUMS, others=others, name="other")


def test_a_table_needs_batches_and_a_key():
    stream = Flow().read(Items(ORDERS))
    with pytest.raises(BadOptionError, match="key_by"):
        with_table(stream, SUMS)
    with pytest.raises(BadOptionError, match="batch_format="):
        stream.key_by("id").process(_uses(table=SUMS, on_batch=print))


def test_a_class_without_a_table_is_told_how_to_declare_one():
    with pytest.raises(MisuseError, match=r"table = Table"):
        call_with_table(None, lambda table: table, [1])

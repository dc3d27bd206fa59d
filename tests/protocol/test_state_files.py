"""Incremental cuts in the coordinator (rule 14): bases, lists of files, compaction, and what is kept for them."""

from __future__ import annotations

import pytest

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.effects import Acknowledge, Report
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Compact, FileId, Manifest, StateFile, Sweep, Trigger
from backedge.recovery.protocol.state_files import COMPACTED_KEYS_MAX
from tests.every import every
from tests.protocol.bench_of_cores import graph, task_id
from tests.protocol.desk import ATTEMPT, Desk, kinds, manifest_in

PIPE = graph("items -> count")
COUNT = task_id("count")


def wrote(base: int | None, keys: int = 10, size: int = 0) -> Report:
    return Report({}, frozenset(), False, (), None if base is None else Epoch(base), keys, size)


def acknowledge(desk: Desk, epoch: int, base: int | None, keys: int = 10, size: int = 0) -> Manifest:
    for task in PIPE.tasks:
        report = wrote(base, keys, size) if task == COUNT else wrote(None, 0)
        orders = desk.report(task, Acknowledge(Epoch(epoch), report))
    return manifest_in(orders)


def cut(desk: Desk, epoch: int, base: int | None, keys: int = 10) -> list[Compact]:
    desk.request()
    acknowledge(desk, epoch, base, keys)
    return kinds(desk.write_manifest(epoch), Compact)


def bases(desk: Desk) -> set[int | None]:
    return {order.base for order in kinds(desk.request(), Trigger)}


def files(*epochs: int, keys: int = 10) -> tuple[StateFile, ...]:
    return tuple(StateFile(ATTEMPT, Epoch(epoch), keys) for epoch in epochs)


def test_the_base_is_the_newest_complete_cut():
    desk = Desk(PIPE, files_max=9, open_epochs_max=9)
    assert bases(desk) == {None}
    acknowledge(desk, 1, None)
    assert bases(desk) == {None}, "epoch 1 is not complete"
    desk.write_manifest(1)
    assert bases(desk) == {1}


def test_a_list_with_as_many_files_as_there_may_be_gets_no_base():
    desk = Desk(PIPE, files_max=2)
    cut(desk, 1, None)
    cut(desk, 2, 1)
    assert bases(desk) == {None}


@every("compacts", [True, False])
@every(("keys", "percent"), [(10, 50), (10, 60), (10, 34), (5_000, 10), (200_000, 7)])
def test_no_list_has_more_than_twice_the_bytes_of_the_state(keys: int, percent: int, compacts: bool):
    desk, size, whole = Desk(PIPE, files_max=32), 100_000_000, 0
    for _ in range(60):
        base = bases(desk).pop()
        share = 100 if base is None else percent
        whole += base is None
        latest = max(desk.coordinator.open)
        found = acknowledge(desk, latest, base, keys * share // 100, size * share // 100)
        assert sum(file.size for file in found.states[COUNT]) <= 2 * size
        for order in kinds(desk.write_manifest(latest), Compact):
            of_list = (keys, size) if compacts and order.left == 0 else (None, 0)
            desk.coordinator.on_compacted(COUNT, ATTEMPT, order.epoch, *of_list)
    assert whole <= 30, "most cuts hold only what changed"


def test_a_delta_that_is_larger_than_all_before_it_is_followed_by_a_whole_cut():
    desk = Desk(PIPE, files_max=32)
    for epoch, base, size in ((1, None, 100), (2, 1, 1), (3, 2, 90)):
        assert bases(desk) == {base}
        acknowledge(desk, epoch, base, size=size * 1_000_000)
        desk.write_manifest(epoch)
    assert bases(desk) == {None}


def test_a_cut_between_two_rounds_has_no_base():
    desk = Desk(PIPE, files_max=9)
    cut(desk, 1, None)
    assert {order.base for order in kinds(desk.request(Mode.BETWEEN_ROUNDS), Trigger)} == {None}


def test_the_base_of_an_open_epoch_is_kept():
    desk = Desk(PIPE, files_max=9, keep=1, open_epochs_max=9)
    cut(desk, 1, None)
    desk.request()
    desk.request()
    assert acknowledge(desk, 2, 1).kept == (1, 2)
    desk.write_manifest(2)
    assert acknowledge(desk, 3, 1).kept == (3,)


def test_no_epoch_takes_a_base_that_a_manifest_on_its_way_gives_up():
    desk = Desk(PIPE, files_max=9, keep=1, open_epochs_max=9)
    cut(desk, 1, None)
    desk.request()
    assert acknowledge(desk, 2, 1).kept == (2,)
    assert bases(desk) == {None}


def test_a_long_list_is_compacted_and_exactly_its_part_replaced():
    desk = Desk(PIPE, files_max=4)
    assert cut(desk, 1, None) == cut(desk, 2, 1) == []
    assert cut(desk, 3, 2) == [Compact(COUNT, Epoch(4), files(1, 2, 3))]
    desk.coordinator.on_compacted(COUNT, ATTEMPT, Epoch(4), 12)
    desk.request()
    found = acknowledge(desk, 5, 3)
    assert found.states[COUNT] == (StateFile(ATTEMPT, Epoch(4), 12), *files(5))
    assert FileId(ATTEMPT, Epoch(2), COUNT) not in found.named


def test_a_delta_with_all_keys_of_the_one_before_takes_its_place():
    desk = Desk(PIPE, files_max=9)
    cut(desk, 1, None)
    cut(desk, 2, 1)
    assert bases(desk) == {2}
    assert acknowledge(desk, 3, 1).states[COUNT] == files(1, 3)
    desk.write_manifest(3)
    desk.request()
    assert acknowledge(desk, 4, 3).states[COUNT] == files(1, 3, 4)


@pytest.mark.parametrize("keys", [100, 600, 1_000])
def test_a_small_state_whose_keys_all_change_is_neither_compacted_nor_written_as_a_whole(keys: int):
    desk = Desk(PIPE, files_max=9)
    cut(desk, 1, None, keys)
    cut(desk, 2, 1, keys)
    for epoch in range(3, 20):
        assert bases(desk) == {epoch - 1}
        assert acknowledge(desk, epoch, 1, keys).states[COUNT] == files(1, epoch, keys=keys)
        assert not kinds(desk.write_manifest(epoch), Compact)


def test_a_delta_is_put_on_a_compaction_of_the_one_before_whether_it_holds_the_same_keys_or_not():
    under_way, desk = (Desk(PIPE, files_max=4) for _ in range(2))
    for each in (under_way, desk):
        assert [len(cut(each, epoch, base)) for epoch, base in ((1, None), (2, 1), (3, 2))] == [0, 0, 1]
    under_way.request()
    assert acknowledge(under_way, 5, 2).states[COUNT] == files(1, 2, 3, 5), "the compaction is under way"
    under_way.coordinator.on_compacted(COUNT, ATTEMPT, Epoch(4), 12)
    under_way.write_manifest(5)
    assert bases(under_way) == {None}
    desk.coordinator.on_compacted(COUNT, ATTEMPT, Epoch(4), 12)
    desk.request()
    compacted = StateFile(ATTEMPT, Epoch(4), 12)
    assert acknowledge(desk, 5, 2).states[COUNT] == (compacted, *files(5))
    desk.write_manifest(5)
    desk.request()
    assert acknowledge(desk, 6, 3).states[COUNT] == (compacted, *files(6))


def test_only_the_deltas_of_a_large_state_are_compacted():
    desk = Desk(PIPE, files_max=6)
    cut(desk, 1, None, keys=COMPACTED_KEYS_MAX)
    assert [cut(desk, epoch, epoch - 1) for epoch in (2, 3)] == [[], []]
    large = StateFile(ATTEMPT, Epoch(1), COMPACTED_KEYS_MAX)
    assert cut(desk, 4, 3) == [Compact(COUNT, Epoch(5), (large, *files(2, 3, 4)), left=1)]
    desk.coordinator.on_compacted(COUNT, ATTEMPT, Epoch(5), 12)
    desk.request()
    found = acknowledge(desk, 6, 4)
    assert found.states[COUNT] == (large, StateFile(ATTEMPT, Epoch(5), 12), *files(6))
    assert found.named >= {FileId(ATTEMPT, Epoch(epoch), COUNT) for epoch in (1, 5, 6)}
    assert FileId(ATTEMPT, Epoch(3), COUNT) not in found.named


def test_deltas_of_a_large_state_are_compacted_before_they_hold_too_many_keys_and_not_at_every_cut():
    desk = Desk(PIPE, files_max=32)
    cut(desk, 1, None, keys=8 * COMPACTED_KEYS_MAX)
    keys = COMPACTED_KEYS_MAX // 5
    assert [cut(desk, epoch, epoch - 1, keys) for epoch in (2, 3)] == [[], []]
    [first] = cut(desk, 4, 3, keys)
    desk.coordinator.on_compacted(COUNT, ATTEMPT, first.epoch, 3 * keys)
    assert cut(desk, 6, 4, keys) == [], "the later delta holds fewer keys than the compaction before it"
    assert cut(desk, 7, 6, 2 * keys) == [], "too many keys for a compaction"


def test_deltas_of_a_very_large_state_may_hold_more_keys_while_a_compaction_is_late():
    desk = Desk(PIPE, files_max=8)
    cut(desk, 1, None, keys=100 * COMPACTED_KEYS_MAX)
    keys = COMPACTED_KEYS_MAX
    assert [cut(desk, epoch, epoch - 1, keys) for epoch in (2, 3, 4)] == [[], [], []]
    [long] = cut(desk, 5, 4, keys)
    assert long.left == 1 and len(long.files) == 5


def test_a_large_state_of_which_too_much_changes_is_written_whole():
    desk = Desk(PIPE, files_max=4)
    cut(desk, 1, None, keys=8 * COMPACTED_KEYS_MAX)
    assert [cut(desk, epoch, epoch - 1, COMPACTED_KEYS_MAX) for epoch in (2, 3, 4)] == [[], [], []]
    assert bases(desk) == {None}


def test_an_output_that_no_longer_fits_is_forgotten():
    desk = Desk(PIPE, files_max=4)
    for epoch, base in ((1, None), (2, 1), (3, 2)):
        cut(desk, epoch, base)
    desk.coordinator.on_compacted(COUNT, ATTEMPT, Epoch(4), 12)
    assert desk.coordinator.state_files.outputs == {FileId(ATTEMPT, Epoch(4), COUNT)}
    cut(desk, 5, None)
    assert not desk.coordinator.state_files.outputs


def test_a_compaction_that_failed_is_tried_after_the_next_cut():
    desk = Desk(PIPE, files_max=5)
    for epoch, base in ((1, None), (2, 1)):
        cut(desk, epoch, base)
    [failed] = cut(desk, 3, 2)
    desk.coordinator.on_compacted(COUNT, ATTEMPT, failed.epoch, None)
    [again] = cut(desk, 5, 3)
    assert again.files == files(1, 2, 3, 5)


def test_a_sweep_spares_files_of_kept_cuts_and_what_is_of_a_later_epoch():
    spared = FileId(ATTEMPT, Epoch(1), COUNT)
    sweep = Sweep(ATTEMPT, False, frozenset(), Epoch(3), frozenset(), frozenset(), frozenset({spared}))
    assert not sweep.removes_file(spared)
    assert sweep.removes_file(FileId(ATTEMPT, Epoch(2), COUNT))
    assert not sweep.removes_file(FileId(ATTEMPT, Epoch(4), COUNT))
    assert not sweep.removes_file(FileId(ATTEMPT, None, COUNT))

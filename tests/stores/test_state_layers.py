"""Keyed state in a list of files: what a cut needs of earlier cuts is found, verified and never removed."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.routing import key_group
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Manifest, StateFile
from backedge.recovery.stores.chain import Chain
from backedge.recovery.stores.store_errors import NoSuchCutError, SnapshotCorruptError
from tests.stores.layered import TASK, Cuts
from tests.stores.snapshots import held

WHOLE = {"a": 1, "b": 2, 7: 3, (1, "x"): 4}


@pytest.fixture
def cuts(tmp_path: Path) -> Cuts:
    """A cut of everything."""
    cuts = Cuts(tmp_path)
    cuts.complete(1, held(WHOLE))
    return cuts


def test_for_each_key_the_last_file_that_holds_it_counts(cuts: Cuts):
    cuts.complete(2, held({"a": 10}, gone=["b", (1, "x")]), base=1)
    cuts.complete(3, held({"b": 20}), base=2)
    assert cuts.values(1) == WHOLE
    assert cuts.values(2) == {"a": 10, 7: 3}
    assert cuts.values(3) == {"a": 10, 7: 3, "b": 20}


def test_a_task_that_takes_some_key_groups_reads_them_of_every_layer(cuts: Cuts, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("backedge.recovery.stores.state_table.PART_BYTES", 1)
    cuts.complete(2, held({"a": 10}, gone=["b"]), base=1)
    described = cuts.store.manifest_of(Epoch(2))
    group = key_group("a")
    state = cuts.store.files_of(described.tasks).state(TASK, "rank", range(group, group + 1))
    assert keyed_entries(state).values == {"a": 10}


def test_a_file_below_is_verified_like_any_other(cuts: Cuts):
    cuts.complete(2, held({"a": 10}), base=1)
    (file,) = cuts.store.manifest_of(Epoch(1)).files
    path = Path(cuts.store.path, file.name)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    for read in (cuts.values, cuts.store.verify):
        with pytest.raises(SnapshotCorruptError, match="epoch=1"):
            read(Epoch(2))


def test_a_compaction_takes_the_place_of_the_files_that_it_has_read(cuts: Cuts):
    cuts.complete(2, held({"a": 10}), base=1)
    cuts.store.on_compacted(cuts.write(3, held({**WHOLE, "a": 10}), None, epoch=2))
    cuts.complete(4, held({"b": 5}), base=2, below=(StateFile(Attempt(1), Epoch(3), 4),))
    assert cuts.values(4) == {**WHOLE, "a": 10, "b": 5}
    assert {file.name.split("/")[0] for file in cuts.store.manifest_of(Epoch(4)).files} == {"epoch=3", "epoch=4"}


def test_a_list_with_a_gap_is_refused_and_nothing_is_recorded(cuts: Cuts):
    cuts.complete(2, held({"a": 10}), base=1)
    with pytest.raises(ValueError, match="do not lead there"):
        cuts.complete(3, held({"a": 11}), base=2, below=cuts.lists[1])
    assert [cut.epoch for cut in cuts.store.chain() if isinstance(cut, Manifest)] == [1, 2]


def test_a_delta_may_hold_what_changed_since_an_older_cut(cuts: Cuts):
    cuts.complete(2, held({"a": 10}), base=1)
    cuts.complete(3, held({"a": 11, "b": 20}), base=1)
    assert cuts.values(3) == {**WHOLE, "a": 11, "b": 20}
    cuts.complete(4, held({"a": 12}), base=2, below=cuts.lists[3])
    assert cuts.values(4) == {**WHOLE, "a": 12, "b": 20}


def test_the_files_below_are_known_although_the_cut_of_which_the_delta_speaks_is_gone(cuts: Cuts):
    cuts.complete(2, held({"a": 10}), base=1, kept=(2,))
    cuts.store.drop(Epoch(1))
    cuts.complete(3, held({**WHOLE, "a": 11}), kept=(2, 3))
    cuts.complete(4, held({"a": 12}), base=1, kept=(3, 4))
    with pytest.raises(NoSuchCutError):
        cuts.store.manifest_of(Epoch(1))
    assert cuts.values(4) == {**WHOLE, "a": 12}


def test_a_manifest_that_could_not_be_written_drops_no_layers(cuts: Cuts, monkeypatch: pytest.MonkeyPatch):
    """It would have kept only its own cut, which holds everything. The next cut builds on the one before it."""
    cuts.complete(2, held({"a": 10}), base=1, kept=(2,))
    cuts.complete(3, held({"a": 11}), base=1, kept=(3,))
    cuts.store.drop(Epoch(1))
    cuts.store.drop(Epoch(2))
    with monkeypatch.context() as full:
        full.setattr(Chain, "create", disk_is_full)
        with pytest.raises(OSError, match="disk full"):
            cuts.complete(4, held(WHOLE), kept=(4,))
    cuts.complete(5, held({"a": 12, "b": 20}), base=1, below=cuts.lists[1], kept=(5,))
    assert cuts.values(5) == {**WHOLE, "a": 12, "b": 20}


def disk_is_full(*_: object) -> bool:
    raise OSError(errno.ENOSPC, "disk full")


def there(cuts: Cuts) -> set[str]:
    return {path.parts[-5] for path in Path(cuts.store.path).rglob("*.parquet")}


def test_dropping_a_cut_spares_what_later_cuts_are_on_top_of(cuts: Cuts):
    cuts.complete(2, held({"a": 10}), base=1, kept=(2,))
    cuts.store.drop(Epoch(1))
    assert not cuts.store.keeps(Manifest(Epoch(1), Attempt(1), Mode.ALIGNED, {}, {}))
    assert cuts.values(2) == {**WHOLE, "a": 10}
    cuts.complete(3, held({"c": 1}), kept=(3,))
    cuts.store.drop(Epoch(2))
    cuts.sweep(3)
    assert there(cuts) == {"epoch=3"}


def test_a_sweep_spares_what_a_kept_cut_names_and_a_compaction_that_waits(cuts: Cuts):
    cuts.complete(2, held({"a": 10}), base=1, kept=(2,))
    cuts.write(3, held(WHOLE), None, epoch=2)
    cuts.write(4, held(WHOLE), None, epoch=2)
    cuts.complete(5, held({"b": 5}), base=2, kept=(5,))
    cuts.sweep(1, 2, 3, 5)
    assert cuts.values(5) == {**WHOLE, "a": 10, "b": 5}
    assert there(cuts) == {"epoch=1", "epoch=2", "epoch=3", "epoch=5"}, "only the one that nobody waits for goes"


def test_a_cut_that_is_completed_while_another_thread_reads_the_chain_keeps_what_it_names(
    cuts: Cuts, monkeypatch: pytest.MonkeyPatch
):
    cuts.complete(2, held({"a": 10}), base=1)
    read = Chain._while_unshortened  # pyright: ignore[reportPrivateUsage]

    def read_slowly(chain: Chain, how: Any) -> Any:
        found = read(chain, how)
        monkeypatch.setattr(Chain, "_while_unshortened", read)
        cuts.complete(3, held({"b": 20}), base=2, kept=(3,))
        return found

    monkeypatch.setattr(Chain, "_while_unshortened", read_slowly)
    cuts.store.chain()
    cuts.store.drop(Epoch(1))
    cuts.store.drop(Epoch(2))
    assert cuts.values(3) == {**WHOLE, "a": 10, "b": 20}

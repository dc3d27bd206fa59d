"""A long chain is shortened: nothing that somebody needs is lost by it, and a late coordinator gets no number."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import AppendEntry, AttemptStart, Fenced, Manifest
from backedge.recovery.protocol.supervisor import Supervisor
from backedge.recovery.stores import chain as chains
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.schema import PAST_SHAPE
from backedge.recovery.stores.store_errors import (
    NoSuchCutError,
    SnapshotAuthError,
    SnapshotCorruptError,
    StoreError,
)
from backedge.recovery.stores.store_protocol import FileFacts
from tests.stores.lost_replies import LosesAReply
from tests.stores.snapshots import DEPLOYMENT, append, begin, manifest_for, sweep

KEPT = 4
SAVED = 3


@pytest.fixture(autouse=True)
def short_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "ENTRIES_KEPT", KEPT)


def of_no_task(epoch: int, attempt: int = 1, name: str | None = None) -> Manifest:
    return manifest_for({}, epoch, attempt, name)


def cuts(store: CutStore, epochs: range, attempt: int = 1) -> None:
    """Cuts, of which two are kept; the one of epoch 3 has a name."""
    for epoch in epochs:
        append(store, of_no_task(epoch, attempt, "before" if epoch == SAVED else None))
        if epoch - 2 in epochs and epoch - 2 != SAVED:
            store.drop(Epoch(epoch - 2))


def numbers(tmp_path: Path, folder: str = "chain") -> list[int]:
    return sorted(int(path.stem) for path in (tmp_path / "job" / folder).iterdir())


def last_past(tmp_path: Path) -> int:
    """The number of the last entry that the last past stands for."""
    return json.loads(past_of(tmp_path).read_bytes())["number"]


def again(tmp_path: Path, key: bytes | None = None) -> CutStore:
    return CutStore(str(tmp_path), "job", key)


def begun(tmp_path: Path, key: bytes | None = None) -> CutStore:
    store = again(tmp_path, key)
    begin(store)
    return store


def long_chain(tmp_path: Path, key: bytes | None = None) -> CutStore:
    store = begun(tmp_path, key)
    cuts(store, range(1, 31))
    return store


def others_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, epochs: range, *, is_there: bool) -> None:
    """Others take cuts while the next entry is created: when it is there, or just before."""
    create = FolderStore.create

    def sleep(folder: FolderStore, name: str, data: bytes) -> bool:
        monkeypatch.setattr(FolderStore, "create", create)
        if not is_there:
            cuts(again(tmp_path), epochs)
        is_ours = create(folder, name, data)
        if is_there:
            cuts(again(tmp_path), epochs)
        return is_ours

    monkeypatch.setattr(FolderStore, "create", sleep)


@pytest.mark.parametrize("key", [None, b"key"])
def test_of_the_first_entries_there_is_what_is_needed(tmp_path: Path, key: bytes | None):
    store = long_chain(tmp_path, key)
    past = last_past(tmp_path)
    assert numbers(tmp_path) == list(range(past + 1, 32)) and len(numbers(tmp_path)) < 2 * KEPT
    for found in (store, again(tmp_path, key)):
        entries = found.numbered()
        # The start, the named cut and the one before it, and the last one that is past.
        assert [number for number, _ in entries] == [1, SAVED, SAVED + 1, past, *range(past + 1, 32)]
        assert [found.cut(Epoch(epoch)).epoch for epoch in (SAVED, 29, 30)] == [SAVED, 29, 30]
        for epoch in (10, 28):
            with pytest.raises(NoSuchCutError):
                found.cut(Epoch(epoch))


def test_a_restart_goes_on_behind_the_last_entry(tmp_path: Path):
    long_chain(tmp_path)
    store = again(tmp_path)
    supervisor = Supervisor("ours")
    assert supervisor.begin(store.numbered()) == [AppendEntry(32, AttemptStart(Attempt(2), Epoch(30), "ours"))]
    assert supervisor.chain.next_epoch == 31
    begin(store, 2, restored=30)
    sweep(store, 2)
    cuts(store, range(31, 33), 2)
    store.drop(Epoch(30))
    cuts(store, range(33, 60), 2)
    starts = [entry for entry in again(tmp_path).chain() if isinstance(entry, AttemptStart)]
    # Attempt 1 took the cut that has a name.
    assert starts == [AttemptStart(Attempt(1), None), AttemptStart(Attempt(2), Epoch(30))]


def test_a_run_that_has_lost_the_job_finds_that_out_however_long_the_chain_was_since(tmp_path: Path):
    """Its supervisor died, and the process that replaces it knows nothing but the chain."""
    store = again(tmp_path)
    append(store, AttemptStart(Attempt(1), None, "lost.a"))
    append(store, AttemptStart(Attempt(2), None, "has.b"))
    cuts(store, range(1, 31), 2)
    assert last_past(tmp_path) > 20
    (fenced,) = Supervisor("lost.c").begin(again(tmp_path).numbered())
    assert isinstance(fenced, Fenced)
    (claim,) = Supervisor("new.a").begin(again(tmp_path).numbered())
    assert isinstance(claim, AppendEntry)


class Noting(FolderStore):
    """Notes the names of the files that are looked for."""

    looked: list[str]

    def facts(self, name: str) -> FileFacts | None:
        self.looked.append(name)
        return super().facts(name)


def looked_for(tmp_path: Path, look: Callable[[CutStore], object]) -> list[str]:
    """The files that a process looks for which has just opened the store."""
    at = Noting(str(tmp_path))
    at.looked = []
    store = CutStore(at, "job")
    at.looked.clear()
    look(store)
    return at.looked


def test_only_cuts_that_the_chain_keeps_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """There may be a hundred others, and a store may answer in 30 ms."""
    monkeypatch.setattr(chains, "ENTRIES_KEPT", 32)
    store = begun(tmp_path)
    for epoch in range(1, 50):
        append(store, replace(of_no_task(epoch), kept=(Epoch(max(epoch - 1, 1)), Epoch(epoch))))
        store.drop(Epoch(max(epoch - 2, 1)))
    looked = looked_for(tmp_path, lambda store: store.cuts())
    assert len([name for name in looked if "manifest" in name]) == 2
    assert again(tmp_path).cuts() == [48, 49] and len(store.chain()) == 50


def test_a_first_look_at_a_chain_that_was_shortened_a_thousand_times_takes_few_requests(tmp_path: Path):
    store = long_chain(tmp_path)
    pasts = tmp_path / "job" / "past"
    last = int(past_of(tmp_path).stem)
    # The same past under the number that it would have had: to take tens of thousands of cuts takes long.
    document = json.loads(past_of(tmp_path).read_bytes())
    ordinal = 1_365
    for number in chains.landmarks(ordinal):
        content = chains.sealed(
            {**{k: v for k, v in document.items() if k != "seal"}, "ordinal": number}, None, PAST_SHAPE
        )
        (pasts / f"{number:08d}.json").write_bytes(content)
    for number in set(numbers(tmp_path, "past")) - chains.landmarks(ordinal):
        (pasts / f"{number:08d}.json").unlink()
    assert last < 20 and numbers(tmp_path, "past")[-1] == ordinal
    assert again(tmp_path).chain() == store.chain()
    assert len(looked_for(tmp_path, lambda store: store.chain())) < 20


def test_a_reader_finds_what_was_recorded_since_and_is_past_already(tmp_path: Path):
    reader = begun(tmp_path)
    other = again(tmp_path)
    cuts(other, range(1, 31))
    assert reader.cut(Epoch(SAVED)).epoch == SAVED
    assert reader.chain() == other.chain()


@pytest.mark.parametrize("has_looked", [False, True])
def test_a_coordinator_that_slept_finds_its_number_taken_though_the_entry_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_looked: bool
):
    late = begun(tmp_path)
    if has_looked:
        others_go_on(monkeypatch, tmp_path, range(1, 31), is_there=False)
    else:
        cuts(again(tmp_path), range(1, 31))
    assert not late.create(2, of_no_task(90), {}, DEPLOYMENT)
    assert numbers(tmp_path, "past") and (has_looked or numbers(tmp_path)[0] > 2)
    assert Epoch(90) not in [getattr(entry, "epoch", None) for entry in again(tmp_path).chain()]
    assert has_looked or not list((tmp_path / "job" / "epoch=90").rglob("manifest-*.json"))


def test_a_coordinator_that_slept_after_its_entry_was_there_stops_and_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    late = begun(tmp_path)
    others_go_on(monkeypatch, tmp_path, range(2, 31), is_there=True)
    assert not late.create(2, of_no_task(1), {}, DEPLOYMENT)
    # The others know the cut of that entry, and have not dropped it.
    assert again(tmp_path).cut(Epoch(1)).epoch == 1


@pytest.mark.slow
def test_who_reads_while_it_is_shortened_sees_no_gap(tmp_path: Path):
    store = begun(tmp_path)
    append(store, of_no_task(1))
    found: list[int] = []
    failures: list[Exception] = []
    is_over = threading.Event()

    def read() -> None:
        reader = again(tmp_path)
        while not is_over.is_set():
            try:
                found.append(reader.numbered()[-1].number)
                again(tmp_path).numbered()
            except StoreError as error:
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    cuts(store, range(2, 80))
    is_over.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(set(found)) > 3


class Died(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("steps", range(KEPT + 1))
def test_a_death_while_it_is_shortened_leaves_a_chain_that_reads_and_is_cleared_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
):
    store = begun(tmp_path)
    left = iter(range(steps))
    remove = FolderStore.remove

    def die(folder: FolderStore, names: Iterable[str]) -> None:
        for name in names:
            if name.startswith("chain/") and next(left, None) is None:
                raise Died
            remove(folder, [name])

    monkeypatch.setattr(FolderStore, "remove", die)
    with pytest.raises(Died):
        cuts(store, range(1, 31))
    monkeypatch.setattr(FolderStore, "remove", remove)
    after = again(tmp_path)
    assert numbers(tmp_path)[0] <= last_past(tmp_path)
    last = after.numbered()[-1]
    assert isinstance(last.entry, Manifest)
    assert after.cut(last.entry.epoch).epoch == last.entry.epoch
    cuts(after, range(last.entry.epoch + 1, last.entry.epoch + 20))
    assert numbers(tmp_path)[0] == last_past(tmp_path) + 1


def test_a_full_disk_puts_it_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = begun(tmp_path)
    create = FolderStore.create

    def refuse(folder: FolderStore, name: str, data: bytes) -> bool:
        if name.startswith("past/"):
            raise OSError(28, "No space left on device")
        return create(folder, name, data)

    monkeypatch.setattr(FolderStore, "create", refuse)
    cuts(store, range(1, 21))
    assert numbers(tmp_path) == list(range(1, 22))
    monkeypatch.setattr(FolderStore, "create", create)
    cuts(store, range(21, 31))
    assert numbers(tmp_path)[0] > 2 * KEPT
    assert again(tmp_path).chain() == store.chain()


def test_it_stays_short_after_a_lost_reply(tmp_path: Path):
    """As an attempt does that runs for long, the chain is not read again."""
    store = CutStore(LosesAReply(str(tmp_path), "past/"), "job")
    begin(store)
    for epoch in range(1, 31):
        assert store.create(epoch + 1, replace(of_no_task(epoch), kept=(Epoch(epoch),)), {}, DEPLOYMENT)
        if epoch > 1:
            store.drop(Epoch(epoch - 1))
    assert len(numbers(tmp_path, "past")) > 1
    assert len(numbers(tmp_path)) <= 2 * KEPT
    assert again(tmp_path).numbered()[-1].number == 31


# -- what was changed --------------------------------------------------------------------------------------------


def past_of(tmp_path: Path) -> Path:
    return max((tmp_path / "job" / "past").iterdir())


def test_a_past_that_is_missing_is_an_error(tmp_path: Path):
    long_chain(tmp_path)
    for path in (tmp_path / "job" / "past").iterdir():
        path.unlink()
    with pytest.raises(SnapshotCorruptError, match=r"00000001\.json is missing\b.*\b31\b"):
        again(tmp_path).chain()


def test_a_past_of_another_job_or_chain_is_an_error(tmp_path: Path):
    long_chain(tmp_path)
    long_chain(tmp_path / "other")
    path, right = past_of(tmp_path), past_of(tmp_path).read_bytes()
    path.write_bytes(past_of(tmp_path / "other").read_bytes())
    with pytest.raises(SnapshotCorruptError, match="elsewhere"):
        again(tmp_path).chain()
    path.write_bytes(right)
    entry = tmp_path / "job" / "chain" / f"{last_past(tmp_path) + 1:08d}.json"
    entry.write_bytes((entry.parent / f"{last_past(tmp_path) + 2:08d}.json").read_bytes())
    with pytest.raises(SnapshotCorruptError):
        again(tmp_path).chain()


def test_with_a_key_a_past_that_is_not_signed_is_not_read(tmp_path: Path):
    long_chain(tmp_path, b"key")
    document = chains.opened(past_of(tmp_path).read_bytes(), b"key", "past", PAST_SHAPE)
    past_of(tmp_path).write_bytes(chains.sealed({k: v for k, v in document.items() if k != "format"}, None))
    with pytest.raises(SnapshotAuthError, match="not signed"):
        again(tmp_path, b"key").chain()

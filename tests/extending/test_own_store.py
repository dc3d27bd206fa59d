"""A store from outside: it passes the checks of stores, keeps the runs of the simulator, and stores that lie fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest

from backedge import OutcomeUnknownError, Store, StoreContractError, UnknownStoreError
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores import chain as chains
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_calls import create_exclusively
from backedge.recovery.stores.store_schemes import store_at
from backedge.testing import check_store
from tests.extending.outside.sqlite_store import SqliteStore
from tests.stores.snapshots import append, begin, complete, manifest_for


def location(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/cuts.db"


@pytest.mark.slow
def test_the_store_outside_gives_every_guarantee(tmp_path: Path):
    check_store(lambda: SqliteStore(location(tmp_path)))


def test_the_store_of_local_folders_gives_every_guarantee(tmp_path: Path):
    check_store(lambda: FolderStore(str(tmp_path)))


@pytest.mark.slow
def test_the_test_on_the_page_on_extending_passes_and_fails_for_a_store_that_lies(tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    (block,) = (part for part in page.split("```python\n") if "def test_it_is_a_store" in part)
    for kind, fails in ((SqliteStore, False), (LastOneWins, True)):
        names: dict[str, Any] = {"SqliteStore": kind}
        exec(block.split("```")[0], names)
        with pytest.raises(StoreContractError) if fails else nullcontext():
            names["test_it_is_a_store"](tmp_path)


def test_a_scheme_is_registered_by_an_entry_point_of_another_distribution(tmp_path: Path):
    store = store_at(location(tmp_path))
    assert type(store) is SqliteStore and store.location == location(tmp_path)


def test_an_unknown_scheme_is_refused_with_what_registers_one():
    with pytest.raises(UnknownStoreError, match=r'nowhere://.*sqlite://.*\binstall\b.*"backedge\.stores"'):
        store_at("nowhere://bucket")


def test_a_job_is_kept_in_it(tmp_path: Path):
    store = CutStore(location(tmp_path), "job")
    begin(store)
    for epoch in (1, 2, 3):
        complete(store, epoch)
    store.drop(Epoch(1))
    other = CutStore(location(tmp_path), "job")
    assert other.chain() == store.chain() and other.job_id == store.job_id
    assert other.cut(Epoch(3)).epoch == 3
    store.verify(Epoch(2))
    assert not [name for name in SqliteStore(location(tmp_path)).list("job") if "epoch=1/" in name]


# -- stores that lie ---------------------------------------------------------------------------------------------


class LastOneWins(SqliteStore):
    """Replaces what is there."""

    def create(self, name: str, data: bytes) -> bool:
        self.write({name: data})
        return True


class LooksFirst(SqliteStore):
    """Creates a file in two steps, so that two processes may both find the name free."""

    meeting = Barrier(2)

    def create(self, name: str, data: bytes) -> bool:
        if self.facts(name) is not None:
            return False
        try:
            LooksFirst.meeting.wait(0.2)  # for another one that looks, too
        except BrokenBarrierError:
            LooksFirst.meeting.reset()
        self.write({name: data})
        return True


class Late(SqliteStore):
    """Shows what was written before the last write, like a cache."""

    def __init__(self, location: str, cache: dict[str, bytes]) -> None:
        super().__init__(location)
        self.cache = cache

    def below(self, folder: str) -> Late:
        return Late(f"{self.location}/{folder}", self.cache)

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        data = self.cache.setdefault(f"{self.location}/{name}", super().read(name))
        return data[start:] if length is None else data[start : start + length]


class InPieces(FolderStore):
    """Writes a file in place, a piece at a time."""

    def __init__(self, location: str) -> None:
        super().__init__(location.removeprefix("sqlite://"))

    def below(self, folder: str) -> FolderStore:
        return InPieces(f"{self.location}/{folder}")

    def write(self, files: Mapping[str, bytes]) -> None:
        for name, data in files.items():
            path = Path(self.location, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb", buffering=0) as file:
                for start in range(0, len(data), 50_000):
                    file.write(data[start : start + 50_000])


LIARS: dict[str, tuple[Callable[[str], Store], str]] = {
    "last one wins": (LastOneWins, "guarantee 3"),
    "looks first": (LooksFirst, "guarantee 3"),
    "late": (lambda location: Late(location, {}), "guarantee 2"),
    "in pieces": (InPieces, "guarantee 1"),
}


@pytest.mark.slow
@pytest.mark.parametrize("liar", LIARS)
def test_a_store_that_lies_is_found(tmp_path: Path, liar: str):
    kind, told = LIARS[liar]
    store = kind(location(tmp_path))
    with pytest.raises(StoreContractError, match=told):
        check_store(lambda: store)


@pytest.mark.parametrize("liar", ["last one wins", "late"])
def test_a_run_does_not_start_on_a_store_that_lies(tmp_path: Path, liar: str):
    kind, told = LIARS[liar]
    with pytest.raises(StoreContractError, match=told):
        CutStore(kind(location(tmp_path)), "job").probe()


def test_a_probe_leaves_nothing_behind(tmp_path: Path):
    store = CutStore(location(tmp_path), "job")
    store.probe()
    assert SqliteStore(location(tmp_path)).list() == ["job/job.json"]


# -- replies that are lost, and lists that are not complete ----------------------------------------------------------


class Forgetful(SqliteStore):
    """Loses the reply to every second request, half of which were carried out."""

    requests = 0

    def create(self, name: str, data: bytes) -> bool:
        Forgetful.requests += 1
        match Forgetful.requests % 4:
            case 1:
                super().create(name, data)
                raise OutcomeUnknownError("the connection was closed")
            case 3:
                raise OutcomeUnknownError("the connection was closed")
            case _:
                return super().create(name, data)


def test_lost_replies_are_resolved_by_reading_back(tmp_path: Path):
    store = Forgetful(location(tmp_path))
    Forgetful.requests = 0
    assert create_exclusively(store, "first", b"ours"), "the reply was lost, the file is there"
    assert create_exclusively(store, "second", b"ours")
    with pytest.raises(OutcomeUnknownError):
        create_exclusively(store, "third", b"ours")
    assert create_exclusively(store, "third", b"ours"), "the same request again"
    assert not create_exclusively(store, "first", b"theirs"), "their reply was lost, and the file is ours"
    assert Forgetful.requests == 5


class Unlisted(SqliteStore):
    """Lists nothing, as if all files had been written a moment ago."""

    lists = 0

    def list(self, folder: str = "") -> list[str]:
        Unlisted.lists += 1
        return []


@pytest.mark.slow
def test_a_chain_that_was_shortened_many_times_needs_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chains, "ENTRIES_KEPT", 4)
    listing = CutStore(location(tmp_path), "job")
    late = CutStore(Unlisted(location(tmp_path)), "job")
    begin(listing)
    late.chain()
    for epoch in range(1, 60):
        append(listing, manifest_for({}, epoch))
        if epoch > 2:
            listing.drop(Epoch(epoch - 2))
    pasts = sorted(int(name.split("/")[-1].split(".")[0]) for name in SqliteStore(location(tmp_path)).list("job/past"))
    assert pasts[-1] > 10 and len(pasts) < 8, "only those that lead to the last one stay"
    for reader in (late, CutStore(Unlisted(location(tmp_path)), "job")):
        assert reader.chain() == listing.chain()
        assert reader.cut(Epoch(59)).epoch == 59
        for number in range(1, 61):
            assert not reader.create(number, AttemptStart(Attempt(2), None, "late")), number
    assert late.create(61, AttemptStart(Attempt(2), None, "late"))
    assert Unlisted.lists > 0

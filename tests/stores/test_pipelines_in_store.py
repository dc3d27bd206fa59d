"""A store keeps the cuts of several pipelines of a job: each has its own retention, and entries name their pipeline."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from msgspec.structs import replace

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.answers import Known, Question
from backedge.recovery.protocol.chain_view import ChainView, needed, read_pipelines
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, Manifest, Numbered, StateFile
from backedge.recovery.protocol.pipelines import Pipeline
from backedge.recovery.protocol.supervisor import Supervisor
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.links import Link
from backedge.recovery.stores.manifests import entry_document, entry_in
from tests.stores.snapshots import DEPLOYMENT, RANK, manifest_for, snapshots_of, write


def start(attempt: int, pipeline: str | None) -> AttemptStart:
    return AttemptStart(Attempt(attempt), None, pipeline=pipeline)


def complete(
    store: CutStore, epoch: int, attempt: int, pipeline: str, kept: tuple[int, ...], given_up: tuple[str, ...] = ()
) -> Manifest:
    files = write(store, snapshots_of(epoch, attempt))
    entry = replace(manifest_for(files, epoch, attempt), pipeline=pipeline, kept=tuple(map(Epoch, kept)))
    entry = replace(entry, given_up=given_up)
    assert store.create(len(store.chain()) + 1, entry, files, DEPLOYMENT)
    return entry


def test_entries_name_their_pipeline_and_a_stop(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    entries = [start(1, "a"), start(2, "b")]
    assert all(store.create(number, entry) for number, entry in enumerate(entries, 1))
    entries += [complete(store, 2, 1, "a", (2,)), complete(store, 3, 2, "b", (3,), ("c", "d"))]
    assert CutStore(str(tmp_path), "job").chain() == entries
    for entry in (*entries, replace(entries[-1], stops=True)):
        assert entry_in(json.loads(json.dumps(entry_document(entry)))) == entry


class LateRemovals(FolderStore):
    """A store whose replies to the removals of manifests are lost. `late`: they are carried out then."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.left: list[str] = []
        self.before_entry: list[Callable[[], None]] = []

    def below(self, folder: str) -> LateRemovals:
        return self

    def write(self, files: Mapping[str, bytes]) -> None:
        super().write(files)
        while self.before_entry and any("manifest" in name for name in files):
            self.before_entry.pop()()

    def remove(self, names: Collection[str]) -> None:
        self.left += names
        raise OSError(errno.EIO, "no reply came")

    def late(self) -> None:
        super().remove(self.left)


def test_a_removal_that_is_carried_out_late_hits_no_manifest_of_a_complete_cut(tmp_path: Path):
    """Another pipeline gets the number, so the cut gets the next one."""
    other = CutStore(str(tmp_path), "job")
    other.create(1, start(1, "a"))
    other.create(2, start(2, "b"))
    disk = LateRemovals(str(tmp_path / "job"))
    store = CutStore(disk, "job")
    files = write(store, snapshots_of(4, 2))
    entry = replace(manifest_for(files, 4, 2), pipeline="b", kept=(Epoch(4),))
    disk.before_entry.append(lambda: complete(other, 3, 1, "a", (3,)))  # type: ignore[arg-type]
    assert not store.create(3, entry, files, DEPLOYMENT)
    store.chain()
    assert store.create(4, entry, files, DEPLOYMENT)
    assert disk.left
    disk.late()
    CutStore(str(tmp_path), "job").verify(Epoch(4))


def test_the_cuts_of_a_pipeline_that_was_given_up_are_removed(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    for number, entry in enumerate((start(1, "b"), start(2, "a")), 1):
        store.create(number, entry)
    complete(store, 2, 1, "b", (2,))
    complete(store, 3, 2, "a", (3,), ("b",))
    supervisor = Supervisor("", pipeline=Pipeline("a"))
    supervisor.read(store.numbered())
    supervisor.attempt = Attempt(2)
    store.sweep(supervisor.sweep())
    given_up = read_pipelines(store.numbered())["b"]
    assert (store.cuts(), given_up.cuts, given_up.continues_from) == ([3], [], None)
    assert [cut.epoch for cut in store._kept()] == [3]


def test_answers_are_kept_for_a_pipeline_that_has_no_cut_yet(tmp_path: Path):
    store = CutStore(str(tmp_path), "job")
    for number, entry in enumerate((start(1, "a"), start(2, "b")), 1):
        store.create(number, entry)
    answered = [Known(Question(7, "why", number), b"because") for number in range(3)]
    for segment, known in enumerate(answered):
        store.answers.write(Epoch(segment), Attempt(2), "ask", [known])
    for dropped in (1, 2):
        complete(store, dropped, 1, "a", (dropped,))
    store.drop(Epoch(1))
    assert [known for _, known in store.answers.read("ask", Epoch(0))] == answered
    complete(store, 3, 2, "b", (3,))
    complete(store, 4, 1, "a", (4,))
    store.drop(Epoch(2))
    assert list(store.answers.read("ask", Epoch(0))) == []


def test_a_shorter_chain_still_says_which_pipeline_was_given_up():
    cuts = [Manifest(Epoch(n), Attempt(2), Mode.ALIGNED, {}, {}, pipeline="a", given_up=("b",)) for n in (3, 4, 5)]
    cuts.append(replace(cuts[0], epoch=Epoch(7), given_up=()))
    chain = [start(1, "b"), replace(cuts[0], epoch=Epoch(2), pipeline="b"), start(2, "a"), *cuts, start(3, "b")]
    links = [Link(number, entry, None, "", None) for number, entry in enumerate(chain, 1)]
    kept = [link.number for link in needed(links, (), ())]
    assert 6 in kept and 5 not in kept, "the last one"
    reader = ChainView("", Pipeline("b"))
    for number in kept:
        reader.learn(number, chain[number - 1])
    assert reader.cuts == [] and reader.continues_from is None


def test_a_shorter_chain_still_says_which_pipeline_has_written_what_its_cuts_name():
    """What an attempt has written that no other pipeline is known to have had is removed."""
    state = {RANK: (StateFile(Attempt(1), Epoch(2), 5), StateFile(Attempt(5), Epoch(9), 1))}
    taken = [Manifest(Epoch(9), Attempt(5), Mode.ALIGNED, {RANK: Epoch(9)}, {}, pipeline="a", states=state)]
    entries = [start(1, "a"), start(2, "b"), start(3, "a"), start(4, "b"), start(5, "a"), *taken, start(6, "b")]
    links = [Link(number, entry, None, "", None) for number, entry in enumerate(entries, 1)]
    for gone in (5, 7):
        left = [*needed(links[:gone], links[gone:], {Epoch(9)}), *links[gone:]]
        supervisor = Supervisor("6.ours", pipeline=Pipeline("b"))
        supervisor.read([Numbered(link.number, link.entry) for link in left])
        supervisor.attempt = Attempt(6)
        removed = [file for file in taken[0].named if supervisor.sweep().removes_file(file)]
        assert removed == [] and 3 not in [link.number for link in left]

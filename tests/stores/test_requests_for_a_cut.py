"""How many requests to a store a cut takes: an object store answers each in 20 to 100 ms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import pytest

from backedge import Collect, Flow, Items
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AttemptStart, CutId, Manifest, StateFile, Sweep
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_protocol import FileFacts
from tests.stores.snapshots import held

FILES_MAX = 16
FIRST = Attempt(1)
WRITING, DROPPING, SWEEPING = 5, 6, 1


class Counting(FolderStore):
    """A local folder that counts its requests."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.requests: Counter[str] = Counter()

    def below(self, folder: str) -> Counting:
        below = Counting(f"{self.location}/{folder}")
        below.requests = self.requests
        return below

    def read(self, name: str, start: int = 0, length: int | None = None) -> bytes:
        self.requests["read"] += 1
        return super().read(name, start, length)

    def facts(self, name: str) -> FileFacts | None:
        self.requests["facts"] += 1
        return super().facts(name)

    def write(self, files: Mapping[str, bytes]) -> None:
        self.requests["write"] += len(files)
        super().write(files)

    def create(self, name: str, data: bytes) -> bool:
        self.requests["create"] += 1
        return super().create(name, data)

    def list(self, folder: str = "") -> list[str]:
        self.requests["list"] += 1
        return super().list(folder)

    def folders(self, folder: str = "") -> Iterable[str]:
        self.requests["list"] += 1
        return super().folders(folder)

    def remove(self, names: Collection[str]) -> None:
        self.requests["remove"] += 1
        super().remove(names)


class Long:
    """A run of four tasks with state whose lists of files reach back 16 cuts. Three cuts are kept, and savepoints."""

    def __init__(self, folder: Path) -> None:
        self.at = Counting(str(folder))
        flow = Flow("shop")
        counted = flow.read(Items([1]), name="in").key_by(lambda n: n).stateful_map(_count, initial=0, name="count")
        counted.write(Collect(), name="out")
        self.deployment = expand(flow.plan(), 4)
        self.store = CutStore(self.at, "shop")
        self.store.keeps_inputs = False
        self.store.chain()
        assert self.store.create(1, AttemptStart(FIRST, None, "c"))
        self.epoch = 0
        self.savepoints: list[int] = []
        self.cuts: dict[int, Manifest] = {}
        self.lists: dict[TaskId, tuple[StateFile, ...]] = dict.fromkeys(self.deployment.tasks, ())

    def take_a_cut(self, savepoint: str | None = None) -> Counter[str]:
        """Take one more, remove what it drops, and sweep. Gives the requests of each."""
        self.epoch += 1
        epoch = Epoch(self.epoch)
        files = {task: self._write(task, epoch) for task in self.deployment.tasks}
        if savepoint is not None:
            self.savepoints.append(epoch)
        periodic = [each for each in [*self.cuts, epoch] if each not in self.savepoints]
        dropped = periodic[:-3]
        kept = [each for each in [*self.cuts, epoch] if each not in dropped]
        written = dict.fromkeys(files, epoch)
        none: dict[TaskId, tuple[str, ...]] = dict.fromkeys(files, ())
        entry = Manifest(
            epoch, FIRST, Mode.ALIGNED, written, none, savepoint, "c", None, tuple(map(Epoch, kept)), dict(self.lists)
        )
        self.cuts = {each: cut for each, cut in {**self.cuts, epoch: entry}.items() if each in kept}
        named = frozenset(file for cut in self.cuts.values() for file in cut.named)
        ids = frozenset(CutId(Epoch(each), FIRST) for each in kept)
        nothing = frozenset[str]()
        return Counter(
            writing=self._requests(lambda: self.store.create(self.epoch + 1, entry, files, self.deployment)),
            dropping=self._requests(lambda: [self.store.drop(Epoch(each)) for each in dropped]),
            sweeping=self._requests(lambda: self.store.sweep(Sweep(FIRST, False, ids, epoch, nothing, nothing, named))),
        )

    def _write(self, task: TaskId, epoch: Epoch) -> object:
        before = self.lists[task] if len(self.lists[task]) < FILES_MAX else ()
        self.lists[task] = (*before, StateFile(FIRST, epoch, 1))
        names = self.deployment.tasks[task].operators
        states = {name: OperatorState(held({1: 1}) if name == "count" else ()) for name in names}
        base = Epoch(epoch - 1) if before else None
        return self.store.write_task(FIRST, epoch, TaskSnapshot(task, epoch, FIRST, states, (), (), base=base))

    def _requests(self, work: Callable[[], object]) -> int:
        self.at.requests.clear()
        work()
        return self.at.requests.total()

    def folders(self) -> set[int]:
        return {int(path.name.removeprefix("epoch=")) for path in Path(self.store.path).glob("epoch=*")}


def _count(seen: int, _: int) -> tuple[int, int]:
    return seen + 1, seen


@pytest.mark.slow
@pytest.mark.parametrize("savepoints", [0, 40])
def test_a_cut_takes_a_dozen_requests_however_many_savepoints_there_are(tmp_path: Path, savepoints: int):
    run = Long(tmp_path)
    for number in range(savepoints):
        run.take_a_cut(f"savepoint {number}")
    cuts = [run.take_a_cut() for _ in range(3 * FILES_MAX)][FILES_MAX:]
    assert {cut["writing"] for cut in cuts} == {WRITING}
    assert {cut["sweeping"] for cut in cuts} == {SWEEPING}
    # A list that begins anew gives up 16 files at once.
    most = sorted(cut["dropping"] for cut in cuts)
    assert sum(most) / len(most) <= DROPPING
    needed = {int(file.epoch or 0) for cut in run.cuts.values() for file in cut.named}
    assert run.folders() == needed, "what is not needed is gone"
    for epoch in run.cuts:
        run.store.verify(Epoch(epoch))


def test_the_first_sweep_of_an_attempt_looks_into_every_folder_and_later_ones_only_where_nothing_is_needed(
    tmp_path: Path,
):
    run = Long(tmp_path)
    for _ in range(4):
        run.take_a_cut("kept")
    left = Path(run.store.path) / "epoch=2" / "attempt=0" / "left"
    left.parent.mkdir()
    left.touch()
    run.take_a_cut()
    assert left.exists(), "written by a process of an attempt that is long over"
    run.store = CutStore(run.at, "shop")
    run.store.chain()
    assert run.take_a_cut()["sweeping"] > SWEEPING
    assert not left.exists()

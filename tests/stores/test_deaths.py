"""A death at any step, and a full disk at any write, leave what was complete complete, and nothing half that counts."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from tests.faults.evidence import Evidence
from tests.gates import HANG_S
from tests.stores.snapshots import DEPLOYMENT, begin, complete, manifest_for, meaning, snapshots_of, sweep, write

ROOT = Path(__file__).resolve().parents[2]


class FullDisk:
    """Writes as long as there is room. A write for which there is little writes little."""

    def __init__(self, writes: int | None = None) -> None:
        self.writes_left = writes
        self.writes = 0

    def __call__(self, descriptor: int, data: memoryview) -> int:
        self.writes += 1
        if self.writes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.writes_left is not None:
            self.writes_left -= 1
        return os.write(descriptor, data[: max(1, len(data) // 2)])


def temporary_files(tmp_path: Path) -> list[Path]:
    return [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@pytest.mark.slow
def test_a_full_disk_fails_the_write_and_leaves_no_file_behind(tmp_path: Path):
    disk = FullDisk()
    store = CutStore(FolderStore(str(tmp_path), write=disk), "job")
    begin(store)
    complete(store, 1)
    disk.writes = 0
    write(store, snapshots_of(2))
    for writes in range(disk.writes):
        disk.writes_left = writes
        with pytest.raises(OSError, match="No space left") as caught:
            write(store, snapshots_of(2))
        assert Path(caught.value.filename).is_relative_to(tmp_path / "job"), "it is named"
        assert temporary_files(tmp_path) == []
    assert disk.writes > 30
    for task in snapshots_of(2):
        store.discard_task(Attempt(1), Epoch(2), task)
    assert not (tmp_path / "job" / "epoch=2").exists()
    disk.writes_left = None
    complete(store, 3)
    assert [entry for entry in store.chain() if isinstance(entry, AttemptStart)] == store.chain()[:1]
    assert store.cut(Epoch(1)).epoch == 1
    assert store.cut(Epoch(3)).epoch == 3


def test_a_full_disk_leaves_no_half_manifest_and_the_next_cut_completes(tmp_path: Path):
    disk = FullDisk()
    store = CutStore(FolderStore(str(tmp_path), write=disk), "job")
    begin(store)
    files = write(store, snapshots_of(1))
    entry = manifest_for(files, 1)
    writes, made = 0, False
    while not made:
        disk.writes_left = writes
        try:
            made = store.create(2, entry, files, DEPLOYMENT)
        except OSError as error:
            assert error.errno == errno.ENOSPC
            assert temporary_files(tmp_path) == []
            assert len(store.chain()) == 1
            assert not list(tmp_path.rglob("manifest-*.json"))
        writes += 1
    assert writes > 10
    assert store.cut(Epoch(1)).epoch == 1


DIES = """
import os, sys
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from tests.stores.snapshots import begin, complete, sweep

class Death:
    def __init__(self, left):
        self.left = left
    def __call__(self, descriptor, data):
        if self.left == 0:
            os.write(descriptor, data[: len(data) // 2])
            os._exit(137)
        self.left -= 1
        return os.write(descriptor, data)

for n in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        store = CutStore(FolderStore(sys.argv[1], write=Death(n)), f"job-{n}")
        begin(store)
        complete(store, 1)
        complete(store, 2, ended=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
def test_a_death_in_any_write_leaves_every_cut_whole_or_not_complete(tmp_path: Path, evidence: Evidence):
    # The identity, a claim, and twice six files of tables, a manifest and an entry.
    writes = 18
    command = [sys.executable, "-c", DIES, str(tmp_path), str(writes + 1)]
    ended = subprocess.run(command, cwd=ROOT, check=True, timeout=HANG_S, stdout=subprocess.PIPE, text=True)
    evidence.happened("processes that died in a write", ended.stdout.split().count("137"))
    complete_cuts: list[int] = []
    for n in range(writes + 1):
        store = CutStore(str(tmp_path), f"job-{n}")
        entries = store.chain()
        for epoch in (1, 2)[: max(0, len(entries) - 1)]:
            found = store.cut(Epoch(epoch)).snapshots
            written = snapshots_of(epoch, ended=epoch == 2)
            assert {t: meaning(part) for t, part in found.items()} == {t: meaning(part) for t, part in written.items()}
        complete_cuts.append(max(0, len(entries) - 1))
        attempt = 2 if entries else 1
        begin(store, attempt)
        sweep(store, attempt)
        complete(store, 3, attempt)
        assert store.cut(Epoch(3)).attempt == attempt
    assert complete_cuts == [0] * 10 + [1] * 8 + [2]
    evidence.survived("cuts that are whole", sum(complete_cuts))

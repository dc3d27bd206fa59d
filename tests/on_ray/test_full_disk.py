"""A disk that is full costs epochs and no record: the cut before stays, and when there is room the run goes on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backedge import Flow, JsonLines, Range, RunFailedError, start
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.cut_store import CutStore
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import finish, trips, trips_made, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

SIZE_BYTES = 4_000_000
LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system with little room, where this user may mount one; else the test says what it needs."""
    folder.mkdir()
    if LIBC.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, f"size={SIZE_BYTES}".encode()) != 0:
        raise OSError(
            ctypes.get_errno(), "this test mounts a tmpfs: run it as root, or in a container that may", folder
        )
    try:
        yield folder
    finally:
        LIBC.umount2(bytes(folder), 2)


def fill(disk: Path) -> Path:
    """Leave no room at all."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(65_536)):
                continue
        except OSError:
            return filler
    raise AssertionError("the disk did not fill up")


def counting(out: Path, gate: Gate) -> Flow:
    """State that grows, output in files on another disk."""

    def note(seen: int, number: int) -> tuple[int, dict[str, Any]]:
        return seen + 1, {"n": number, "seen": seen + 1}

    flow = Flow("counting")
    numbers = flow.read(Gated(Range(1_000), gate, 250), name="numbers").key_by(lambda number: number)
    noted = numbers.stateful_map(note, initial=0, name="note").rebalance()
    noted.write(JsonLines(str(out)), name="files")
    return flow


def test_a_run_whose_disk_is_full_fails_in_words_and_goes_on_later(tmp_path: Path, evidence: Evidence):
    """What a sink of the run's own folder cannot put there ends the attempt, and no other can be claimed there."""
    gate = Gate(tmp_path / "gate")
    flow = trips(count=100, gate=gate)
    with small_disk(tmp_path / "disk") as disk:
        options = dict[str, Any](every=0.1, actors="slice", max_restarts=3, progress=False)
        job = start(flow, snapshots=disk / "cuts", **options)
        until(job, lambda story: story.snapshots >= 2, "two cuts are complete")
        filler = fill(disk)
        gate.let(50)
        with pytest.raises(RunFailedError, match="No space left on device"):
            job.wait()
        evidence.happened("bytes that filled the disk", filler.stat().st_size)
        filler.unlink()
        gate.open()
        _, result = finish(flow, snapshots=disk / "cuts", every=0.1, actors="slice", resume="latest")
        assert result.restores[0]["epoch"] is not None
        evidence.same(result.outputs["done"], trips_made(100))
        evidence.cuts(disk / "cuts")


def test_epochs_that_find_no_room_are_given_up_and_the_run_goes_on_when_there_is_some(
    tmp_path: Path, evidence: Evidence
):
    gate = Gate(tmp_path / "gate")
    with small_disk(tmp_path / "disk") as disk:
        flow = counting(tmp_path / "out", gate)
        job = start(flow, snapshots=disk / "cuts", every=0.1, actors="slice", progress=False)
        until(job, lambda story: story.snapshots >= 2, "two cuts are complete")
        filler = fill(disk)
        gate.let(500)
        told = until(job, lambda story: any("No space left" in line for line in story.lines), "somebody is told")
        store = CutStore(str(disk / "cuts"), "counting")
        cuts = [entry.epoch for entry in store.chain() if isinstance(entry, Manifest)]
        assert store.cut(cuts[-1]).epoch == cuts[-1], "the last cut is whole"
        evidence.happened("bytes that filled the disk", filler.stat().st_size)
        filler.unlink()
        until(job, lambda story: story.snapshots > told.snapshots, "cuts are complete again")
        gate.open()
        result = job.wait()
        assert result.state == "finished" and result.restores == ()
        lines = [line for file in (tmp_path / "out").glob("*.jsonl") for line in file.read_text().splitlines()]
        evidence.same(lines, [f'{{"n":{n},"seen":1}}' for n in range(1_000)])
        evidence.cuts(disk / "cuts")
        assert os.path.ismount(disk)

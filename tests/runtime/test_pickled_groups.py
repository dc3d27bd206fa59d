"""What a capture has encoded waits on disk if it is large, and nothing of it is lost there."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import pickled_groups
from engine.pickled_groups import PickledGroups
from engine.state import Entries, GroupEncoder, decode_entries

VALUES = {f"key {number}": [number] for number in range(2_000)} | {number: number for number in range(2_000)}
TIMERS = [(f"key {number}", number, 0) for number in range(500)]
SHARE_MB, PIECE_BYTES = 100, 10_000


def encoder() -> GroupEncoder:
    made = GroupEncoder("op", Entries(VALUES), TIMERS)
    while made.encode_some(700) == 700:
        continue
    return made


def spilled(made: GroupEncoder) -> int:
    return made._pickles.bytes_spilled


@pytest.fixture
def in_memory() -> dict[int, bytes]:
    made = encoder()
    assert not spilled(made)
    return dict(made.groups())


def test_groups_that_waited_on_disk_are_those_that_did_not(
    monkeypatch: pytest.MonkeyPatch, in_memory: dict[int, bytes]
):
    monkeypatch.setattr(pickled_groups, "KEPT_BYTES_MAX", PIECE_BYTES)
    made = encoder()
    groups = made.groups()
    assert spilled(made) > 5 * PIECE_BYTES
    assert list(groups) == list(in_memory) and groups == in_memory
    assert groups == in_memory, "a snapshot that could not be written is written again"
    assert len(decode_entries(groups)) == len(VALUES) + len(TIMERS)
    with pytest.raises(KeyError):
        groups[128]


def test_a_full_disk_leaves_the_rest_in_memory(monkeypatch: pytest.MonkeyPatch, in_memory: dict[int, bytes]):
    monkeypatch.setattr(pickled_groups, "KEPT_BYTES_MAX", PIECE_BYTES)
    accepted: list[int] = []
    pwrite = os.pwrite

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        if len(accepted) == 300:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        accepted.append(pwrite(descriptor, data[:50], offset))
        return accepted[-1]

    monkeypatch.setattr(os, "pwrite", write)
    made = encoder()
    assert len(accepted) == 300
    assert spilled(made) < sum(accepted)
    assert made.groups() == in_memory


def test_a_file_that_has_lost_something_fails_the_snapshot(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pickled_groups, "KEPT_BYTES_MAX", 0)
    groups = PickledGroups()
    groups.add(1, [b"one"])
    groups.add(2, [b"two"])
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: b"tw")
    with pytest.raises(OSError, match="lost 1 bytes at 3"):
        groups[2]


PEAK = """
import os, sys
from engine.capture import Capture, OperatorCapture
from engine.state import KeyedState
from graphs.ids import Attempt, Epoch, TaskId
from recovery.cut import TaskSnapshot
from recovery.stores.cut_store import CutStore

def peak_mb():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM:")) / 1024

store = CutStore(sys.argv[1], "job")
without_mb = peak_mb()
state = KeyedState("op")
state.values = {number: os.urandom(1_000) for number in range(int(sys.argv[2]) * 1_000)}
capture = Capture({"op": OperatorCapture(values=state.capture())})
while not capture.encode_some(2_000):
    pass
store.write_task(Attempt(1), Epoch(1), TaskSnapshot(TaskId("op", 0), Epoch(1), Attempt(1), capture.states, (), ()))
print(peak_mb() - without_mb)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_capture_needs_no_second_copy_of_a_large_state(tmp_path: Path):
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), str(SHARE_MB)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert SHARE_MB < float(ran.stdout) < 1.5 * SHARE_MB + 150

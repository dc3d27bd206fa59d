"""A process that stands still, a channel that carries something else: found out, recovered from, and without effect."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from backedge import FencedError, Flow, JsonLines, start
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.transport import mailbox
from backedge.engine.on_ray.transport.frames import HEADER_BYTES, Kind, unpack_header
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.cut_store import CutStore
from tests.faults.evidence import Evidence
from tests.gates import HANG_S, Gate
from tests.on_ray.flows import Record, begin, expect, finish, trips, trips_made, until, with_function
from tests.on_ray.leftovers import actors_below, has_ended
from tests.on_ray.standing_still import let_stand_still, state_of, wake

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

# -- channels ------------------------------------------------------------------------------------------------------


def break_once(flag: str) -> None:
    """Tear one batch that this process sends from now on, once in the life of a job.

    `flag` is a file: there is one when the change is due, and it holds the size of the frame that was changed.
    """
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    flush = mailbox.Link.flush

    def disturbed(self: mailbox.Link) -> None:
        kinds = [unpack_header(frame[:HEADER_BYTES])[0] for frame in self._frames]
        if Kind.BATCH in kinds:
            mailbox.Link.flush = flush  # type: ignore[method-assign]
            place = kinds.index(Kind.BATCH)
            frame = self._frames[place]
            self._frames[place] = frame[: HEADER_BYTES + (len(frame) - HEADER_BYTES) // 2]
            Path(flag).write_text(str(len(frame)))
        flush(self)

    mailbox.Link.flush = disturbed  # type: ignore[method-assign]


def disturbing(flag: str, gate: Gate) -> Flow:
    """`trips`, whose head disturbs what it sends from record 50 on, behind the gate."""
    flow = trips(count=100, gate=gate)
    grow = flow.draft.operators["grow"].function

    def grow_and_disturb(rounds: int, record: Record) -> tuple[int, Record]:
        if record[0] >= 50:
            break_once(flag)
        return grow(rounds, record)

    return with_function(flow, "grow", grow_and_disturb)


def test_a_batch_that_was_disturbed_costs_an_attempt_and_no_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], evidence: Evidence
):
    gate = Gate(tmp_path / "gate")
    flow = disturbing(str(tmp_path / "flag"), gate)
    job = begin(flow, snapshots=tmp_path / "cuts", every=0.1, actors="task", progress=True)
    until(job, lambda story: story.last_epoch, "a cut is complete")
    gate.open()
    result = job.wait()
    evidence.happened("frames that were torn", bool((tmp_path / "flag").read_text()))
    assert [restore["epoch"] is not None for restore in result.restores] == [True]
    told = capsys.readouterr().err
    assert "ChannelIntegrityError" in told, told
    evidence.same(result.outputs["done"], trips_made(100))
    evidence.cuts(tmp_path / "cuts")


# -- processes -----------------------------------------------------------------------------------------------------


def test_a_process_that_stands_still_for_a_while_costs_a_cut_and_no_attempt(tmp_path: Path, evidence: Evidence):
    """It is also reported. The supervisor would be taken for silent after twice that time."""
    gate, folder = Gate(tmp_path / "gate"), tmp_path / "cuts"
    options: dict[str, Any] = {"every": 0.1, "cut_timeout": 0.4, "cut_failures": 1_000, "silence_timeout": 5.0}
    job = start(trips(count=100, gate=gate), snapshots=folder, keep=1_000, actors="task", progress=False, **options)
    pid = until(job, lambda story: story.last_epoch, "a cut is complete").pids["grow/0"]
    let_stand_still([pid])
    until(job, lambda story: any("its process does not answer" in line for line in story.lines), "it is reported")
    story = until(job, lambda story: given_up(story), "a cut is given up")
    evidence.happened("processes that stood still", state_of(pid) == "T")
    wake([pid])
    until(job, lambda later: (later.last_epoch or 0) > max(given_up(later)), "a later cut is complete")
    gate.open()
    result = job.wait()
    evidence.happened("cuts that were given up", len(given_up(story)))
    entries = CutStore(str(folder), "trips").chain()
    cuts = [entry.epoch for entry in entries if isinstance(entry, Manifest)]
    lost = max(given_up(story))
    assert lost not in cuts and not list(folder.glob(f"trips/epoch={lost}")) and result.restores == ()
    evidence.survived("cuts completed after it", sum(epoch > lost for epoch in cuts))
    evidence.same(result.outputs["done"], trips_made(100))
    evidence.cuts(folder)


def given_up(story: Story) -> list[int]:
    """The epochs that were given up because nothing moved."""
    return [int(line.split()[1]) for line in story.lines if "was given up: no progress" in line]


def test_a_process_that_does_not_leave_in_time_is_replaced_as_well(tmp_path: Path):
    """One process stands still, another dies. The run waits for the first until it is taken for silent."""
    gate = Gate(tmp_path / "gate")
    options: dict[str, Any] = {"every": 0.1, "actors": "task", "spares": 2, "silence_timeout": 5.0}
    job = start(trips(count=100, gate=gate), snapshots=tmp_path / "cuts", progress=False, **options)
    story = until(job, lambda story: story.last_epoch, "a cut is complete")
    zombie = story.pids["grow/0"]
    let_stand_still([zombie])
    os.kill(story.pids["enough/0"], signal.SIGKILL)
    try:
        later = until(job, lambda later: later.attempt == 2 and later.state == "running", "it has recovered")
        assert later.pids["grow/0"] != zombie, (story, later)
    finally:
        if not has_ended(zombie, timeout_ms=0):
            os.kill(zombie, signal.SIGCONT)
    gate.open()
    result = job.wait()
    expect(result, trips_made(100))
    assert len(result.restores) == 1
    assert has_ended(zombie)


def test_a_zombie_that_wakes_up_when_another_run_is_through_changes_nothing(tmp_path: Path, evidence: Evidence):
    """All processes of a run stand still, and another run takes over. Then they go on: they process and write cuts."""
    gate, out = Gate(tmp_path / "gate"), tmp_path / "out"
    flow = trips(count=100, gate=gate, sink=JsonLines(str(out)))
    # However long the other run takes, no task finds its supervisor silent, and has it replaced before it wakes up.
    options: dict[str, Any] = {"every": 0.1, "actors": "slice", "silence_timeout": HANG_S, "progress": False}
    options["snapshots"] = tmp_path / "cuts"
    before = actors_below(os.getpid())
    first = start(flow, **options)
    story = until(first, lambda story: story.snapshots >= 2, "two cuts are complete")
    zombies = actors_below(os.getpid()).keys() - before.keys()
    assert set(story.pids.values()) < zombies, "the supervisor is one of them"
    try:
        let_stand_still(zombies)
        finish(flow, gate=gate, resume="latest", **options)
    finally:
        # Tasks first, which process what waits for them and report it; their supervisor would end them at once.
        wake(story.pids.values(), ticks_min=5)
        wake(zombies - set(story.pids.values()))
    chain = CutStore(str(tmp_path / "cuts"), "trips").chain()
    with pytest.raises(FencedError, match="another run has taken over"):
        first.wait()
    assert first.result is not None
    evidence.happened("processes that woke up after a takeover", len(zombies))
    evidence.happened("records that they processed after that", first.result.records - story.total().records)
    evidence.survived("entries of the chain that were left as they were", len(chain))
    assert CutStore(str(tmp_path / "cuts"), "trips").chain() == chain
    lines = [tuple(json.loads(line)) for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
    evidence.same(lines, trips_made(100))
    evidence.cuts(tmp_path / "cuts")

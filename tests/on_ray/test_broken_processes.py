"""A process that stands still, a channel that carries something else: found out, recovered from, and without effect."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from backedge import Flow, start
from engine.batch import Batch, decode, encode
from engine.on_ray.transport import mailbox
from engine.on_ray.transport.frames import HEADER_BYTES, Kind, Message, unpack_header
from tests.on_ray.flows import Record, expect, finish, trips, trips_made, until
from tests.on_ray.leftovers import has_ended

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

Change = Callable[[Message], list[Message]]

# -- channels ------------------------------------------------------------------------------------------------------


def lost(message: Message) -> list[Message]:
    return []


def doubled(message: Message) -> list[Message]:
    return [message, message]


def reordered(message: Message) -> list[Message]:
    """The records of the batch in another order: the digest alone tells."""
    batch = decode(message[1])
    return [(message[0], encode(Batch([*batch.records, ("nobody", 0)][::-1][1:] + batch.records[:1], batch.hops)))]


def torn(message: Message) -> list[Message]:
    return [(message[0], message[1][: len(message[1]) // 2])]


def break_once(flag: str, change: Change) -> None:
    """Change one batch that this process sends from now on, once in the life of a job: `flag` is a file that tells."""
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
            changed = change((frame[:HEADER_BYTES], frame[HEADER_BYTES:]))
            self._frames[place : place + 1] = [header + payload for header, payload in changed]
        flush(self)

    mailbox.Link.flush = disturbed  # type: ignore[method-assign]


def disturbing(flag: str, change: Change) -> Flow:
    """`trips`, whose head disturbs what it sends behind the hundredth record."""
    flow = trips(count=300)
    grow = flow.draft.operators["grow"].function

    def grow_and_disturb(rounds: int, record: Record) -> tuple[int, Record]:
        if record[0] >= 100:
            break_once(flag, change)
        return grow(rounds, record)

    flow.draft.operators["grow"] = replaced(flow, "grow", grow_and_disturb)
    return flow


def replaced(flow: Flow, operator: str, function: Callable[..., object]) -> object:
    import dataclasses

    found = flow.draft.operators[operator]
    return dataclasses.replace(found, kind=dataclasses.replace(found.kind, function=function))


@pytest.mark.parametrize(
    "change", [lost, torn, *(pytest.param(change, marks=pytest.mark.long) for change in (doubled, reordered))]
)
def test_a_batch_that_was_disturbed_costs_an_attempt_and_no_record(
    tmp_path: Path, change: Change, capsys: pytest.CaptureFixture[str]
):
    flow = disturbing(str(tmp_path / "flag"), change)
    _, result = finish(flow, snapshots=tmp_path / "cuts", every=0.1, actors="task", progress=True)
    expect(result, trips_made(300))
    assert (tmp_path / "flag").exists(), "the channel was disturbed"
    assert len(result.restores) == 1
    told = capsys.readouterr().err
    assert "ChannelIntegrityError" in told, told


# -- processes -----------------------------------------------------------------------------------------------------


def test_a_process_that_stands_still_for_a_while_costs_no_attempt(tmp_path: Path):
    job = start(trips(count=300), snapshots=tmp_path, every=0.1, actors="task", progress=False)
    story = until(job, lambda story: story.last_epoch, "a cut is complete")
    os.kill(story.pids["grow/0"], signal.SIGSTOP)
    threading.Event().wait(1.0)  # that long it stands still: the passing of time is what is tested
    os.kill(story.pids["grow/0"], signal.SIGCONT)
    result = job.wait()
    expect(result, trips_made(300))
    assert result.restores == ()


def test_a_zombie_that_wakes_up_after_the_recovery_has_no_effect(tmp_path: Path):
    """One process stands still, another dies: the first does not leave in time and is replaced too."""
    job = start(trips(count=300), snapshots=tmp_path, every=0.1, actors="task", spares=2, progress=False)
    story = until(job, lambda story: story.last_epoch, "a cut is complete")
    zombie = story.pids["grow/0"]
    os.kill(zombie, signal.SIGSTOP)
    os.kill(story.pids["enough/0"], signal.SIGKILL)
    try:
        later = until(job, lambda later: later.attempt == 2 and later.state == "running", "it has recovered")
        assert later.pids["grow/0"] != zombie, (story, later)
    finally:
        if not has_ended(zombie, timeout_ms=0):
            os.kill(zombie, signal.SIGCONT)
    result = job.wait()
    expect(result, trips_made(300))
    assert len(result.restores) == 1
    assert has_ended(zombie)

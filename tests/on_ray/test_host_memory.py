"""Memory of versions that processes of a host share: who holds it keeps it, and no reader gets another version."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from backedge import Flow
from backedge.engine.batches.constant_bytes import constant_in
from backedge.engine.on_ray.actor.host_memory import Board, BoardReader, HostMemory
from backedge.engine.operators.version_memory import put_on_shelf
from backedge.recovery.protocol.versions import Shelf

WEIGHTS = Flow("learn").versions("w", keep=2)


class Learner:
    """What a process does that publishes. It keeps what it has published last."""

    def __init__(self) -> None:
        self.shelf = Shelf[HostMemory](2)
        self.board = Board(2)
        self.kept: list[Any] = []

    def publish(self, number: int) -> HostMemory:
        value = np.full(1_000, number)
        memory, version = put_on_shelf(self.shelf, HostMemory, WEIGHTS, number, value, range(1, number))
        self.board.put(number, memory, self.shelf.kept)
        self.kept = [*self.kept, version][-2:]
        return memory

    def reader(self) -> BoardReader:
        reader = BoardReader.opened(self.board.offer)
        assert reader is not None
        return reader


def test_memory_that_a_reader_holds_is_not_filled_again_and_then_it_is():
    learner = Learner()
    reader = learner.reader()
    first = learner.publish(1)
    held = constant_in(reader.hold(1))
    assert not held.flags.writeable
    others = [learner.publish(number) for number in (2, 3, 4)]
    assert reader.kept == (3, 4) and reader.hold(1) is None
    assert first not in others and (held == 1).all()
    del held
    assert first.take()
    again = learner.publish(5)
    assert again is others[0] and (constant_in(reader.hold(5)) == 5).all(), "it was filled last of those that are free"


def test_a_reader_whose_version_is_replaced_before_it_has_locked_it_gets_none(monkeypatch: pytest.MonkeyPatch):
    learner = Learner()
    reader = learner.reader()
    first = learner.publish(1)
    learner.publish(2)
    entry = reader._entry(1)
    filled: list[Any] = []

    def replaced_meanwhile(number: int) -> tuple[int, ...] | None:
        if filled:
            return BoardReader._entry(reader, number)
        filled.extend(learner.publish(each) for each in (3, 4))
        return entry

    monkeypatch.setattr(reader, "_entry", replaced_meanwhile)
    assert reader.hold(1) is None
    assert first in filled, "the memory has another version by now"


def test_a_process_reads_what_another_one_holds_and_nothing_once_that_is_gone():
    code = "\n".join(
        (
            "from tests.on_ray.test_host_memory import Learner",
            "learner = Learner()",
            "learner.publish(1)",
            "print(learner.board.offer, flush=True)",
            "input()",
        )
    )
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, env={**os.environ}, **pipes) as process:
        assert process.stdout is not None
        reader = BoardReader.opened(process.stdout.readline().strip())
        assert reader is not None
        held = constant_in(reader.hold(1))
        process.kill()
        process.wait()
    assert (held == 1).all(), "memory outlives the process that has filled it"
    assert reader.hold(1) is None, "and nobody else finds it any more"


def test_a_board_that_this_process_cannot_open_is_none():
    offer = Learner().board.offer
    assert BoardReader.opened(offer) is None, "its process has closed it"
    assert BoardReader.opened("") is None

"""`backedge top`: what it shows of a run, and what it leaves of a terminal."""

from __future__ import annotations

import os
import pty
import select
import shutil
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import pytest
from msgspec.structs import replace

from backedge import top_command
from backedge.recovery.stores.run_status import ChannelStatus, LoopStatus, OperatorStatus, RunStatus, TaskStatus
from backedge.top_command import OperatorLoad, lines_of, loads_of, watch
from tests.gates import HANG_S

RUN = RunStatus(
    "shop", "4f", "running", True, 1_000.0, 65.0, None, 2, 7, 7,
    operators=(
        OperatorStatus("orders", ("orders",), True, False, (TaskStatus(0, "a"),)),
        OperatorStatus(
            "tried", ("tried", "ok"), False, False,
            (TaskStatus(0, "b", in_per_s=10.0, out_per_s=5.0, busy=0.25, held=0.5),
             TaskStatus(1, "c", in_per_s=20.0, out_per_s=5.0, busy=0.75, held=0.0)),
        ),
    ),
    channels=(
        ChannelStatus("in", "orders/0", "tried/0", None, backlog=4),
        ChannelStatus("again", "tried/0", "tried/1", "again", backlog=1_000),
    ),
    loops=(LoopStatus("again", ("tried", "ok")),),
)  # fmt: skip


def test_rates_add_up_and_the_fullest_task_counts():
    first, tried = loads_of(RUN)
    assert first == OperatorLoad("orders", 1, None, None, None, None, 0, 0)
    assert tried == OperatorLoad("tried > ok", 2, 30.0, 10.0, 0.75, 0.5, 1_004, 1_000)


def test_a_run_is_a_head_and_a_line_for_each_chain():
    head, _, orders, tried, end = lines_of(RUN)
    assert (head, end) == ("shop: running, attempt 2, cut 7, 1 min 5 s", "")
    assert tried.split() == ["tried", ">", "ok", "2", "30", "10", "75", "%", "50", "%", "1,004", "1,000"]
    assert orders.split() == ["orders", "1", "-", "-", "-", "-", "0", "-"]


@contextmanager
def terminal() -> Iterator[tuple[int, TextIO, TextIO]]:
    """Our end of a terminal, and the keyboard and screen at the other one."""
    ours, theirs = pty.openpty()
    with os.fdopen(os.dup(theirs), "w") as screen, os.fdopen(theirs) as keys:
        yield ours, keys, screen
    os.close(ours)


def seen_at(ours: int) -> str:
    """All that was drawn until the end; a terminal hands it over in pieces."""
    drawn = b""
    while not drawn.endswith(top_command.ORDINARY.encode()) and select.select([ours], [], [], HANG_S)[0]:
        drawn += os.read(ours, 1 << 16)
    return drawn.decode()


def test_q_ends_it_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(top_command, "REFRESH_S", 0.01)
    with terminal() as (ours, keys, screen):
        before = termios.tcgetattr(keys)
        asked: list[Any] = []

        def ask() -> Sequence[RunStatus]:
            asked.append(termios.tcgetattr(keys)[3] & termios.ECHO)
            if len(asked) == 2:
                os.write(ours, b"q")
            return [RUN] if len(asked) == 1 else []

        watch(ask, keys, screen)
        assert len(asked) >= 2 and not any(asked), "keys are not shown meanwhile"
        assert termios.tcgetattr(keys) == before
        drawn = seen_at(ours)
        assert drawn.index(top_command.ALTERNATE) < drawn.index("tried > ok") < drawn.index("no run is alive")
        assert drawn.endswith(top_command.ORDINARY)


def test_an_interruption_leaves_the_terminal_as_before():
    def interrupt() -> Sequence[RunStatus]:
        raise KeyboardInterrupt

    with terminal() as (ours, keys, screen):
        before = termios.tcgetattr(keys)
        with pytest.raises(KeyboardInterrupt):
            watch(interrupt, keys, screen)
        assert termios.tcgetattr(keys) == before
        assert seen_at(ours).endswith(top_command.ORDINARY)


def test_names_of_wide_characters_fill_no_more_columns_than_there_are(monkeypatch: pytest.MonkeyPatch):
    """A line that the terminal breaks in two would push the others out of their places."""
    monkeypatch.setattr(shutil, "get_terminal_size", lambda: os.terminal_size((20, 24)))
    name = "\u5e97" * 15
    wide = replace(RUN, operators=(OperatorStatus(name, (name,), True, False, (TaskStatus(0, "a"),)),))
    with terminal() as (ours, keys, screen):

        def ask() -> Sequence[RunStatus]:
            os.write(ours, b"q")
            return [wide]

        watch(ask, keys, screen)
        lines = [line for line in seen_at(ours).splitlines() if "\u5e97" in line]
    assert [line.count("\u5e97") for line in lines] == [10]

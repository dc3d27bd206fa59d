"""What a driver shows: one line over and over on a terminal, a line every few seconds in a log."""

from __future__ import annotations

import io
import sys

from pytest import MonkeyPatch

from backedge.engine.on_ray.api.progress_line import LIVE_S, PLAIN_S, Display
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.transport.control_messages import Counts


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def story(records: int, hops: int = 0) -> Story:
    found = Story("rank", state="running", attempt=2, last_epoch=7, log_bytes=1_500)
    found.counts[1, "a"] = Counts(in_loops=1_000)
    found.counts[2, "a"] = Counts(records=records, hops=hops, in_loops=12)
    return found


def followed(stream: io.StringIO, clock: Clock) -> Display:
    """A display of a run that is followed from its beginning."""
    display = Display(True, stream, clock)
    display.show(story(0))
    return display


def test_a_log_gets_a_line_every_few_seconds():
    stream, clock = io.StringIO(), Clock()
    display = followed(stream, clock)
    display.show(story(100))
    assert stream.getvalue() == ""
    clock.now_s = PLAIN_S
    display.show(story(1_000, hops=500))
    display.show(story(9_999))
    line = "running, attempt 2, epoch 7: 200 records/s, 100 hops/s, 12 bytes in loops, 1,500 in the log"
    assert stream.getvalue() == f"backedge: {line}\n"


def test_a_process_whose_standard_error_is_closed_is_shown_nothing(monkeypatch: MonkeyPatch):
    monkeypatch.setattr(sys, "stderr", None)
    display = Display(True)
    display.say("2 tasks in 1 actor")
    display.show(story(0))
    display.make_room()


def test_rates_are_those_since_the_line_before_also_of_a_run_that_is_joined():
    for before, after in ((0, 1_000), (1_000_000, 1_001_000)):
        stream, clock = io.StringIO(), Clock()
        display = Display(True, stream, clock)
        display.show(story(before, hops=before))
        for second, records in ((PLAIN_S, after), (2 * PLAIN_S, after + 500)):
            clock.now_s = second
            display.show(story(records, hops=records))
        first, second = stream.getvalue().splitlines()
        assert "200 records/s, 200 hops/s" in first and "100 records/s" in second


def test_on_a_terminal_rates_are_those_of_the_last_second():
    stream, clock = Terminal(), Clock()
    display = followed(stream, clock)
    for turn in range(1, 10):
        clock.now_s = turn * LIVE_S
        display.show(story(1_000 * (turn // 4)))
    assert stream.getvalue().count(" 1,000 records/s") == 6


def test_a_terminal_gets_one_line_that_is_written_over():
    stream, clock = Terminal(), Clock()
    display = followed(stream, clock)
    for turn in (1, 2, 3):
        clock.now_s = turn * LIVE_S
        display.show(story(turn))
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().count("\r\x1b[Krunning, ") == 3


def test_what_happens_takes_the_live_line_away_first():
    stream, clock = Terminal(), Clock()
    display = followed(stream, clock)
    clock.now_s = LIVE_S
    display.show(story(1))
    display.say("attempt 2 failed")
    display.say("attempt 3 restores epoch 7")
    assert stream.getvalue().endswith("\r\x1b[Kbackedge: attempt 2 failed\nbackedge: attempt 3 restores epoch 7\n")


def test_nothing_is_shown_where_nothing_is_wanted():
    stream, clock = io.StringIO(), Clock()
    display = Display(False, stream, clock)
    clock.now_s = 2 * PLAIN_S
    display.show(story(1))
    display.say("attempt 1 failed")
    display.make_room()
    assert stream.getvalue() == ""


class Cell(io.StringIO):
    """The output of a cell of a notebook, as the kernel of Jupyter has it."""


Cell.__module__ = "ipykernel.iostream"


def test_a_notebook_gets_one_line_that_is_overwritten():
    stream, clock = Cell(), Clock()
    display = followed(stream, clock)
    for turn, records in ((1, 12_345_678), (2, 0)):
        clock.now_s = turn * LIVE_S
        display.show(story(records))
    display.say("done")
    first, second, cleared = stream.getvalue().split("\r")[2::2]
    assert "records/s" in first and "records/s" in second and cleared == "backedge: done\n"
    blanks = stream.getvalue().split("\r")[1::2]
    assert blanks == ["", " " * len(first), " " * len(second)], "a shorter line leaves nothing of a longer one"
    assert "\x1b" not in stream.getvalue() and stream.getvalue().count("\n") == 1

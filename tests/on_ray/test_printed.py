"""What Print sinks have printed is kept until the driver has it, and no longer; of a detached run, the last lines."""

from __future__ import annotations

import pickle
from io import BytesIO, TextIOWrapper

import pytest

from backedge import Flow, Items, Print
from backedge.engine.on_ray.api.progress_line import print_lines
from backedge.engine.on_ray.supervisor.kept_lines import KeptLines
from backedge.engine.on_ray.supervisor.published_output import DETACHED_LINES_MAX, Output
from backedge.engine.on_ray.supervisor.run_story import LINES_MAX, Story
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.orders import Sweep
from tests.on_ray.supervised import job_supervised


def printing() -> Output:
    flow = Flow("printing")
    flow.read(Items([1]), name="one").write(Print("> "), name="shown")
    return Output(flow.plan(), TaskOptions(job="printing"), KeptLines(10))


def sweep_after(epoch: int, noted: str) -> Sweep:
    """The sweep of attempt 2, which no longer needs to know what this cut does not list."""
    return Sweep(Attempt(2), False, frozenset(), Epoch(epoch), frozenset(), frozenset({noted}))


def test_a_transaction_that_is_published_twice_is_printed_once():
    output = printing()
    for _ in range(2):
        output.publish("shown", "first", ["> 1"])
    assert output.printed.lines == ["> 1"]


def test_a_transaction_that_none_can_publish_again_is_forgotten_and_one_that_may_come_again_is_not():
    output = printing()
    older, newer = (f"shown.0.attempt-2.epoch-{epoch}" for epoch in (4, 5))
    for name in (older, newer):
        output.publish("shown", name, [name])
    output.roll_back(sweep_after(5, noted=newer))
    assert output._published == {newer}
    output.publish("shown", newer, [newer])
    assert output.printed.lines == [older, newer]


def test_an_answer_that_was_lost_is_given_again_and_lines_that_the_driver_has_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
):
    job = job_supervised(monkeypatch)
    output = job.pipelines[0].output
    output.publish("shown", "first", ["> 1", "> 2"])
    assert job.look(0, 0).printed.lines == job.look(0, 0).printed.lines == ["> 1", "> 2"]
    output.publish("shown", "second", ["> 3"])
    assert job.look(0, 2).printed.lines == ["> 3"]
    assert output.printed.lines == ["> 3"], "the first two are gone"
    assert job.look(0, 3).printed.lines == output.printed.lines == []


def test_a_detached_run_keeps_the_last_lines_for_all_who_ask(monkeypatch: pytest.MonkeyPatch):
    job = job_supervised(monkeypatch, is_detached=True)
    job.pipelines[0].output.publish("shown", "first", [str(number) for number in range(DETACHED_LINES_MAX + 5)])
    for _ in range(2):
        printed = job.look(0, DETACHED_LINES_MAX + 4).printed
        assert (printed.first, printed.lines) == (DETACHED_LINES_MAX + 4, [str(DETACHED_LINES_MAX + 4)])
    printed = job.look(0, 0).printed
    assert printed.first == 5 and printed.lines[0] == "5" and len(printed.lines) == DETACHED_LINES_MAX


def test_of_what_the_user_should_know_the_last_lines_are_kept_with_their_numbers():
    story = Story("printing")
    for number in range(LINES_MAX + 2):
        story.say(str(number))
    copy = pickle.loads(pickle.dumps(story))
    assert copy.told.first == 2 and copy.lines[0] == "2" and len(copy.lines) == LINES_MAX
    assert copy.told.since(LINES_MAX + 1).lines == [str(LINES_MAX + 1)]


@pytest.mark.parametrize(("encoding", "written"), [("utf-8", "é \\ud83d"), ("ascii", "\\xe9 \\ud83d")])
def test_what_the_stream_cannot_encode_is_printed_as_an_escape(encoding: str, written: str):
    taken = BytesIO()
    stream = TextIOWrapper(taken, encoding)
    print_lines(["> é \ud83d", "> fine"], stream)
    assert taken.getvalue().decode() == f"> {written}\n> fine\n"

"""Rule 5: how tasks end, what an END stands for, and what becomes of a task that had ended."""

from __future__ import annotations

import pytest

from backedge.recovery.protocol.effects import AcknowledgeEnd
from backedge.recovery.protocol.messages import Mode
from tests.protocol.bench_of_cores import JOIN, Bench, graph

LOOP = graph("items -> head", "head -> body", "body => head", "body -> out")


def end_of(bench: Bench, task: str) -> AcknowledgeEnd:
    return next(effect for effect in bench.tells(task) if isinstance(effect, AcknowledgeEnd))


def test_a_task_with_unprocessed_batches_does_not_end_before_it_has_processed_them():
    bench = Bench(JOIN)
    bench.emit("left->join", "last")
    for source in ("left", "right"):
        bench.exhaust(source)
    bench.deliver("left->join", 2)
    bench.deliver("right->join")
    assert not bench.has_ended("join")
    bench.take("left->join")
    assert bench.has_ended("join")


def test_a_busy_task_ends_only_when_it_has_come_to_rest():
    bench = Bench(JOIN)
    bench.set_busy("join", True)
    for source in ("left", "right"):
        bench.exhaust(source)
    bench.run()
    assert not bench.has_ended("join")
    bench.emit("join->out", "from a timer")
    bench.set_busy("join", False)
    assert bench.has_ended("join")
    bench.run()
    assert bench.seen("out") == ["from a timer"]


def test_a_head_does_not_end_with_its_regular_inputs_nor_with_a_trigger_but_when_it_is_told():
    bench = Bench(LOOP)
    bench.exhaust("items")
    bench.run()
    assert not bench.has_ended("head")
    bench.trigger("head", 1)
    bench.run()
    assert not bench.has_ended("head")
    bench.tell_to_end("head")
    bench.run()
    assert [bench.has_ended(task) for task in ("head", "body", "out")] == [True] * 3


@pytest.mark.parametrize("mode", [Mode.ALIGNED, Mode.UNALIGNED, Mode.PROBE])
def test_an_ended_task_ignores_later_triggers(mode: Mode):
    bench = Bench(JOIN)
    bench.exhaust("left")
    bench.trigger("left", 1, mode)
    assert bench.on_wire("left->join") == ["END"]
    assert not bench.has_captured(1, "left")


def test_a_barrier_that_comes_to_an_ended_head_seals_what_it_had_captured_and_starts_nothing():
    bench = Bench(LOOP)
    bench.exhaust("items")
    bench.run()
    bench.trigger("head", 1)
    bench.tell_to_end("head")
    bench.trigger("body", 2, Mode.UNALIGNED)
    bench.run()
    assert bench.acknowledged("head") == [1]
    assert bench.has_ended("head") and not bench.has_captured(2, "head")


def test_the_last_state_says_after_which_epochs_it_stands():
    bench = Bench(JOIN)
    bench.trigger("left", 3)
    bench.trigger("left", 4, Mode.PROBE)
    bench.exhaust("left")
    assert (end_of(bench, "left").captured, end_of(bench, "left").probed) == (3, 4)
    bench.exhaust("right")
    assert (end_of(bench, "right").captured, end_of(bench, "right").probed) == (0, 0)


def test_an_epoch_captured_before_the_end_is_acknowledged_for_itself_even_after_it():
    bench = Bench(JOIN, writes_at_once=False)
    bench.trigger("left", 1)
    bench.exhaust("left")
    bench.write("left", None)
    bench.write("left", 1)
    assert bench.acknowledged("left") == [1]


def test_the_last_state_is_written_again_if_it_could_not_be_written():
    bench = Bench(JOIN, writes_at_once=False)
    bench.exhaust("left")
    bench.fail_write("left", None)
    assert not bench.has_ended("left")
    bench.write("left", None)
    assert bench.has_ended("left")


def test_a_restored_task_that_had_ended_only_says_so_again_and_runs_no_end_hook():
    first = Bench(JOIN)
    first.pass_on("left->join", 1)
    first.exhaust("left")
    first.trigger("right", 1)
    first.run()
    assert first.hooks == ["left"]

    second = Bench(JOIN, restored=first.cut(1), attempt=2)
    assert second.on_wire("left->join") == ["END"]
    assert second.has_ended("left")
    assert second.hooks == []
    second.exhaust("right")
    second.run()
    assert second.hooks == ["right", "join", "out"]


def test_a_cut_of_tasks_that_have_all_ended_restores_to_a_run_that_has_ended():
    first = Bench(JOIN)
    for source in ("left", "right"):
        first.exhaust(source)
    first.run()
    second = Bench(JOIN, restored=first.cut(9), attempt=2)
    second.run()
    assert all(second.has_ended(task) for task in ("left", "right", "join", "out"))
    assert second.hooks == []

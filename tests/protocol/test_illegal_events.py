"""An event that no schedule may produce raises, and the core that raises it has not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from backedge.engine.task.driver import TaskDriver
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.effects import Effect, RunDecide, RunEnd, RunRoundEnd
from backedge.recovery.protocol.life import TRANSITIONS, Life
from backedge.recovery.protocol.messages import Barrier, Data, End, Item, Marker, Mode, encode_marker
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError, ProtocolError
from proof.cloning import dump
from tests.protocol.bench_of_cores import Bench, graph, task_id

JOIN = graph("left -> join", "right -> join", "join -> out")
LOOP = graph("items -> head", "head -> body", "body => head")
REPEAT = graph("items -> repeat", "repeat -> body", "body => repeat", "repeat -> out", iterations=["repeat"])


class Illegal(NamedTuple):
    """What was done before, at which task, the event, and what its error says."""

    before: Callable[[], Bench]
    task: str
    event: Callable[[Bench, Any], object]
    says: str


def receives(channel: str, item: Item | Callable[[Bench], Item]) -> Callable[[Bench, Any], object]:
    def event(bench: Bench, core: Any) -> object:
        return core.receive(bench.channel(channel), bench.attempt, item(bench) if callable(item) else item)

    return event


def takes(channel: str) -> Callable[[Bench, Any], object]:
    return lambda bench, core: core.take(bench.channel(channel))


# -- what was done before --------------------------------------------------------------------------------------------


def join() -> Bench:
    return Bench(JOIN)


def loop() -> Bench:
    return Bench(LOOP)


def repeat() -> Bench:
    return Bench(REPEAT)


def with_one_queued() -> Bench:
    bench = Bench(JOIN)
    bench.emit("left->join", 1)
    bench.deliver("left->join")
    return bench


def with_left_ended() -> Bench:
    bench = with_one_queued()
    bench.exhaust("left")
    bench.deliver("left->join")
    return bench


def with_barrier_3() -> Bench:
    bench = Bench(JOIN)
    bench.trigger("left", 3)
    bench.deliver("left->join")
    return bench


def with_a_batch_behind_a_barrier() -> Bench:
    bench = with_barrier_3()
    bench.emit("left->join", 1)
    bench.deliver("left->join")
    return bench


def with_restored_log() -> Bench:
    first = Bench(LOOP)
    first.trigger("items", 1)
    first.trigger("head", 1)
    first.deliver("items->head")
    first.emit("body->head", "logged")
    first.run()
    bench = Bench(LOOP, restored=first.cut(1), attempt=2)
    bench.emit("body->head", "live")
    bench.deliver("body->head")
    return bench


def with_unsealed_log() -> Bench:
    bench = Bench(LOOP)
    bench.trigger("items", 1)
    bench.trigger("head", 1)
    bench.deliver("items->head")
    return bench


def with_ended_head() -> Bench:
    bench = Bench(LOOP)
    bench.emit("body->head", 1)
    bench.deliver("body->head")
    bench.tell_to_end("head")
    return bench


def with_marker_of_round(number: int) -> Callable[[], Bench]:
    def before() -> Bench:
        bench = Bench(REPEAT)
        marker = Marker((number,))
        outlet = bench.core("repeat").outlets[bench.channel("repeat->body")]
        bench.receive("repeat->body", outlet.number(encode_marker(marker), marker))
        return bench

    return before


class _StoppedDriver(TaskDriver):
    def _run_user_code(self, effect: Effect) -> Iterable[Effect]:
        if isinstance(effect, RunRoundEnd | RunDecide | RunEnd):
            return ()
        return super()._run_user_code(effect)


class Stopped(Bench):
    """User code of rounds and ends does not come back."""

    driver_class = _StoppedDriver


def with_round_hooks_running() -> Bench:
    bench = Stopped(REPEAT)
    bench.exhaust("items")
    bench.perform(task_id("items"), bench.core("items").on_end_hooks_ran())
    bench.run()
    return bench


def with_end_hooks_running() -> Bench:
    bench = Stopped(JOIN)
    bench.emit("left->join", 1)
    bench.deliver("left->join")
    bench.exhaust("left")
    return bench


BAD_DIGEST = 12345

ILLEGAL: dict[str, Illegal] = {
    # receipt
    "a channel of somebody else": Illegal(
        join, "join", receives("join->out", Data(1, b"", None)), "join/0 has no input channel"
    ),
    "a batch too many": Illegal(
        with_one_queued, "join", receives("left->join", Data(3, b"", None)), "batch 3 arrived instead of 2"
    ),
    "a batch again": Illegal(
        with_one_queued, "join", receives("left->join", Data(1, b"", None)), "batch 1 arrived instead of 2"
    ),
    "a batch after END": Illegal(
        with_left_ended, "join", receives("left->join", Data(2, b"", None)), "batch 2 arrived after END"
    ),
    "a barrier after END": Illegal(
        with_left_ended,
        "join",
        receives("left->join", Barrier(Epoch(1), Mode.ALIGNED, 1, 0)),
        "Barrier arrived after END",
    ),
    "END after END": Illegal(with_left_ended, "join", receives("left->join", End(1, 0)), "End arrived after END"),
    "a barrier again": Illegal(
        with_barrier_3,
        "join",
        receives("left->join", Barrier(Epoch(3), Mode.ALIGNED, 0, 0)),
        "barrier 3 arrived after barrier 3",
    ),
    "a barrier of an earlier epoch": Illegal(
        with_barrier_3,
        "join",
        receives("left->join", Barrier(Epoch(2), Mode.ALIGNED, 0, 0)),
        "barrier 2 arrived after barrier 3",
    ),
    "a barrier with another count": Illegal(
        with_one_queued,
        "join",
        receives("left->join", Barrier(Epoch(1), Mode.ALIGNED, 2, 0)),
        "Barrier says 2 batches",
    ),
    "an unaligned barrier with another digest": Illegal(
        with_one_queued,
        "join",
        receives("left->join", Barrier(Epoch(1), Mode.UNALIGNED, 1, BAD_DIGEST)),
        "0x00003039",
    ),
    "END with another digest": Illegal(
        with_one_queued, "join", receives("left->join", End(1, BAD_DIGEST)), "0x00003039"
    ),
    "something new in a restored channel": Illegal(
        with_restored_log,
        "head",
        receives("body->head (restored)", Data(2, b"", None)),
        r"\(restored\): batch 2 arrived after END",
    ),
    # processing
    "take from nowhere": Illegal(join, "join", takes("join->out"), "has no input channel"),
    "take nothing": Illegal(join, "join", takes("left->join"), r"left\..*->join\..* is not ready"),
    "take a barrier": Illegal(with_barrier_3, "join", takes("left->join"), r"left\..*->join\..* is not ready"),
    "take what is held": Illegal(
        with_a_batch_behind_a_barrier, "join", takes("left->join"), r"left\..*->join\..* is not ready"
    ),
    "take what waits behind a restored channel": Illegal(
        with_restored_log, "head", takes("body->head"), "body.*->head.* is not ready"
    ),
    "take after the end": Illegal(with_ended_head, "head", takes("body->head"), "body.*->head.* is not ready"),
    "take nothing in an iteration": Illegal(repeat, "body", takes("repeat->body"), "repeat.*->body.* is not ready"),
    "a marker of a later round": Illegal(
        with_marker_of_round(1), "body", takes("repeat->body"), r"marker \(1,\) while the task is in round \(0,\)"
    ),
    "processed what it never had": Illegal(
        join, "join", lambda bench, core: core.on_processed(bench.channel("join->out")), "has no input channel"
    ),
    "send into a channel of somebody else": Illegal(
        join, "join", lambda bench, core: core.sent(bench.channel("left->join"), b""), "join/0 may not send"
    ),
    "send after END": Illegal(
        with_ended_head, "head", lambda bench, core: core.sent(bench.channel("head->body"), b""), "head/0 may not send"
    ),
    # epochs
    "start again": Illegal(join, "join", lambda bench, core: core.start(busy=False), "join/0 is already running"),
    "start again after the end": Illegal(
        with_left_ended, "left", lambda b, core: core.start(busy=False), "is already running"
    ),
    "captured an epoch that is not open": Illegal(
        join, "left", lambda bench, core: core.on_captured(Epoch(1), ()), "epoch 1 is not open"
    ),
    "captured a last state without an end": Illegal(
        join, "left", lambda bench, core: core.on_captured(None, ()), "left/0 has not ended"
    ),
    "wrote a last state without an end": Illegal(
        join, "left", lambda bench, core: core.on_written(None), "left/0 has not ended"
    ),
    "failed to write a last state without an end": Illegal(
        join, "left", lambda bench, core: core.on_write_failed(None, "full"), "left/0 has not ended"
    ),
    "wrote an epoch whose log is not sealed": Illegal(
        with_unsealed_log, "head", lambda bench, core: core.on_written(Epoch(1)), "log of epoch 1 is not sealed"
    ),
    # ends
    "exhausted, and no source": Illegal(
        join, "join", lambda bench, core: core.on_exhausted(), "join/0 is not a source"
    ),
    "exhausted twice": Illegal(with_left_ended, "left", lambda bench, core: core.on_exhausted(), "has already ended"),
    "told to end, and no head": Illegal(
        loop, "body", lambda bench, core: core.on_told_to_end(), "is not the head of a free loop"
    ),
    "told to end, and the head of an iteration": Illegal(
        repeat, "repeat", lambda bench, core: core.on_told_to_end(), "is not the head of a free loop"
    ),
    "end hooks that nobody asked for": Illegal(
        join, "join", lambda bench, core: core.on_end_hooks_ran(), "join/0 was not running end hooks"
    ),
    "end hooks twice": Illegal(
        with_left_ended, "left", lambda bench, core: core.on_end_hooks_ran(), "left/0 was not running end hooks"
    ),
    "exhausted while the end hooks run": Illegal(
        with_end_hooks_running, "left", lambda bench, core: core.on_exhausted(), "has already ended"
    ),
    # rounds
    "a step of a round, and in no iteration": Illegal(
        join, "join", lambda bench, core: core.on_round_hooks_ran(None), "join/0 is not in an iteration"
    ),
    "round hooks that nobody asked for": Illegal(
        repeat, "body", lambda bench, core: core.on_round_hooks_ran(None), "no step of a round was running"
    ),
    "a decision that nobody asked for": Illegal(
        repeat, "repeat", lambda bench, core: core.on_decided(True), "no step of a round was running"
    ),
    "a release that nobody asked for": Illegal(
        repeat, "repeat", lambda bench, core: core.on_round_released(), "no step of a round was running"
    ),
    "a result that nobody asked for": Illegal(
        repeat, "repeat", lambda bench, core: core.on_result_released(None), "no step of a round was running"
    ),
    "a decision where hooks were asked for": Illegal(
        with_round_hooks_running, "body", lambda bench, core: core.on_decided(True), "RunRoundEnd was running"
    ),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_event_raises_and_changes_nothing(name: str):
    illegal = ILLEGAL[name]
    bench = illegal.before()
    core = bench.core(illegal.task)
    before = dump(core)
    with pytest.raises(ProtocolError, match=illegal.says):
        illegal.event(bench, core)
    assert dump(core) == before


def test_damage_and_misuse_are_two_kinds_of_error():
    bench = with_one_queued()
    with pytest.raises(ChannelIntegrityError):
        bench.receive("left->join", Data(9, b"", None))
    with pytest.raises(ProtocolError) as misuse:
        bench.core("join").take(bench.channel("right->join"))
    assert not isinstance(misuse.value, ChannelIntegrityError)


@pytest.mark.parametrize("before", Life)
@pytest.mark.parametrize("after", Life)
def test_a_task_becomes_only_what_the_table_of_its_life_has(before: Life, after: Life):
    core = Bench(JOIN).core("join")
    core.life = before
    if (before, after) in TRANSITIONS:
        core._become(after)
        assert core.life is after
    else:
        with pytest.raises(ProtocolError, match="cannot become"):
            core._become(after)
        assert core.life is before

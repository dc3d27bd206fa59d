"""An event that no schedule may produce raises, and the core that raises it has not changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import pytest

from backedge.engine.task.driver import TaskDriver
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.effects import Effect, RunDecide, RunEnd, RunRoundEnd
from backedge.recovery.protocol.life import TRANSITIONS, Life
from backedge.recovery.protocol.messages import Barrier, Data, End, Item, Marker, Mode, encode_marker
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError, ProtocolError
from proof.cloning import dump
from tests.every import every
from tests.protocol.bench_of_cores import JOIN, LOOP, Bench, graph, task_id

REPEAT = graph("items -> repeat", "repeat -> body", "body => repeat", "repeat -> out", iterations=["repeat"])
NOT_READY = r"\w+\.\w+->\w+\.\w+ .* is not ready"
NO_STEP = "no step of a round was running"

Event = Callable[[Bench, Any], object]


def receives(channel: str, item: Item) -> Event:
    return lambda bench, core: core.receive(bench.channel(channel), bench.attempt, item)


def calls(method: str, *arguments: Any) -> Event:
    """A call of the core; texts are names of channels."""
    return lambda bench, core: getattr(core, method)(
        *(bench.channel(given) if isinstance(given, str) else given for given in arguments)
    )


# -- what was done before --------------------------------------------------------------------------------------------


join, loop, repeat = (partial(Bench, deployment) for deployment in (JOIN, LOOP, REPEAT))


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
    first.open_epoch(1)
    first.emit("body->head", "logged")
    first.run()
    bench = Bench(LOOP, restored=first.cut(1), attempt=2)
    bench.emit("body->head", "live")
    bench.deliver("body->head")
    return bench


def with_unsealed_log() -> Bench:
    bench = Bench(LOOP)
    bench.open_epoch(1)
    return bench


def with_ended_head() -> Bench:
    bench = Bench(LOOP)
    bench.emit("body->head", 1)
    bench.deliver("body->head")
    bench.tell_to_end("head")
    return bench


def with_marker_of_round_1() -> Bench:
    bench = Bench(REPEAT)
    marker = Marker((1,))
    outlet = bench.core("repeat").outlets[bench.channel("repeat->body")]
    bench.receive("repeat->body", outlet.number(encode_marker(marker), marker))
    return bench


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


def batch(seq: int) -> Data:
    return Data(seq, b"", None)


def barrier(epoch: int, batches: int, mode: Mode = Mode.ALIGNED, digest: int = 0) -> Barrier:
    return Barrier(Epoch(epoch), mode, batches, digest)


ANOTHER_DIGEST = 0x3039

ILLEGAL: dict[str, tuple[Callable[[], Bench], str, Event, str]] = {
    # receipt
    "a channel of somebody else": (join, "join", receives("join->out", batch(1)), "join/0 has no input channel"),
    "a batch too many": (with_one_queued, "join", receives("left->join", batch(3)), "batch 3 arrived instead of 2"),
    "a batch again": (with_one_queued, "join", receives("left->join", batch(1)), "batch 1 arrived instead of 2"),
    "a batch after END": (with_left_ended, "join", receives("left->join", batch(2)), "batch 2 arrived after END"),
    "a barrier after END": (with_left_ended, "join", receives("left->join", barrier(1, 1)), "Barrier .* after END"),
    "END after END": (with_left_ended, "join", receives("left->join", End(1, 0)), "End arrived after END"),
    "a barrier again": (with_barrier_3, "join", receives("left->join", barrier(3, 0)), "3 arrived after barrier 3"),
    "a barrier of an earlier epoch": (with_barrier_3, "join", receives("left->join", barrier(2, 0)), "2 .* barrier 3"),
    "a barrier with another count": (with_one_queued, "join", receives("left->join", barrier(1, 2)), "says 2 batches"),
    "an unaligned barrier with another digest": (
        *(with_one_queued, "join", receives("left->join", barrier(1, 1, Mode.UNALIGNED, ANOTHER_DIGEST))),
        "0x00003039",
    ),
    "END with another digest": (with_one_queued, "join", receives("left->join", End(1, ANOTHER_DIGEST)), "0x00003039"),
    "something new in a restored channel": (
        *(with_restored_log, "head", receives("body->head (restored)", batch(2))),
        r"\(restored\): batch 2 arrived after END",
    ),
    # processing
    "take from nowhere": (join, "join", calls("take", "join->out"), "has no input channel"),
    "take nothing": (join, "join", calls("take", "left->join"), NOT_READY),
    "take a barrier": (with_barrier_3, "join", calls("take", "left->join"), NOT_READY),
    "take what is held": (with_a_batch_behind_a_barrier, "join", calls("take", "left->join"), NOT_READY),
    "take what waits behind a restored channel": (with_restored_log, "head", calls("take", "body->head"), NOT_READY),
    "take after the end": (with_ended_head, "head", calls("take", "body->head"), NOT_READY),
    "take nothing in an iteration": (repeat, "body", calls("take", "repeat->body"), NOT_READY),
    "a marker of a later round": (
        *(with_marker_of_round_1, "body", calls("take", "repeat->body")),
        r"marker \(1,\) while the task is in round \(0,\)",
    ),
    "processed what it never had": (join, "join", calls("on_processed", "join->out"), "has no input channel"),
    "send into a channel of somebody else": (join, "join", calls("sent", "left->join", b""), "join/0 may not send"),
    "send after END": (with_ended_head, "head", calls("sent", "head->body", b""), "head/0 may not send"),
    # epochs
    "start again": (join, "join", lambda bench, core: core.start(busy=False), "join/0 is already running"),
    "start again after the end": (with_left_ended, "left", lambda b, core: core.start(busy=False), "already running"),
    "captured an epoch that is not open": (join, "left", calls("on_captured", Epoch(1), ()), "epoch 1 is not open"),
    "captured a last state without an end": (join, "left", calls("on_captured", None, ()), "left/0 has not ended"),
    "wrote a last state without an end": (join, "left", calls("on_written", None), "left/0 has not ended"),
    "failed to write a last state without an end": (
        *(join, "left", lambda bench, core: core.on_write_failed(None, "full")),
        "left/0 has not ended",
    ),
    "wrote an epoch whose log is not sealed": (with_unsealed_log, "head", calls("on_written", Epoch(1)), "not sealed"),
    # ends
    "exhausted, and no source": (join, "join", calls("on_exhausted"), "join/0 is not a source"),
    "exhausted twice": (with_left_ended, "left", calls("on_exhausted"), "has already ended"),
    "exhausted while the end hooks run": (with_end_hooks_running, "left", calls("on_exhausted"), "has already ended"),
    "told to end, and no head": (loop, "body", calls("on_told_to_end"), "is not the head of a free loop"),
    "told to end, and the head of an iteration": (repeat, "repeat", calls("on_told_to_end"), "not the head of a free"),
    "end hooks that nobody asked for": (join, "join", calls("on_end_hooks_ran"), "join/0 was not running end hooks"),
    "end hooks twice": (with_left_ended, "left", calls("on_end_hooks_ran"), "left/0 was not running end hooks"),
    # rounds
    "a step of a round, and in no iteration": (join, "join", calls("on_round_hooks_ran", None), "not in an iteration"),
    "round hooks that nobody asked for": (repeat, "body", calls("on_round_hooks_ran", None), NO_STEP),
    "a decision that nobody asked for": (repeat, "repeat", calls("on_decided", True), NO_STEP),
    "a release that nobody asked for": (repeat, "repeat", calls("on_round_released"), NO_STEP),
    "a result that nobody asked for": (repeat, "repeat", calls("on_result_released", None), NO_STEP),
    "a decision where hooks were asked for": (with_round_hooks_running, "body", calls("on_decided", True), "RoundEnd"),
}
"""What was done before, at which task, the event, and what its error names."""


@every("name", ILLEGAL)
def test_an_illegal_event_raises_and_changes_nothing(name: str):
    before, task, event, says = ILLEGAL[name]
    bench = before()
    core = bench.core(task)
    unchanged = dump(core)
    with pytest.raises(ProtocolError, match=says):
        event(bench, core)
    assert dump(core) == unchanged


def test_damage_and_misuse_are_two_kinds_of_error():
    bench = with_one_queued()
    with pytest.raises(ChannelIntegrityError):
        bench.receive("left->join", Data(9, b"", None))
    with pytest.raises(ProtocolError) as misuse:
        bench.core("join").take(bench.channel("right->join"))
    assert not isinstance(misuse.value, ChannelIntegrityError)


def test_a_task_becomes_only_what_the_table_of_its_life_has():
    core = Bench(JOIN).core("join")
    for before, after in product(Life, Life):
        core.life = before
        if (before, after) in TRANSITIONS:
            core._become(after)
            assert core.life is after
        else:
            with pytest.raises(ProtocolError, match="cannot become"):
                core._become(after)
            assert core.life is before

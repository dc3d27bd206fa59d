"""An epoch is given up when what it waits for has stopped shrinking, never because it is old."""

from __future__ import annotations

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.coordinator import RETRY_PAUSE_MS, STOP_TRIES_MAX
from backedge.recovery.protocol.effects import Remaining, Stage
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import FailAttempt, GivenUp
from backedge.recovery.protocol.requests import Request, RequestKind
from tests.protocol.bench_of_cores import Bench, graph
from tests.protocol.desk import ATTEMPT, Desk, kinds, manifest_in

PIPE = graph("source -> middle", "middle -> sink")
SINK = TaskId("sink", 0)
TIMEOUT_MS = 300


def desk_with_an_open_epoch(**options: int) -> Desk:
    desk = Desk(PIPE, timeout_ms=TIMEOUT_MS, interval_ms=10**6, **options)
    desk.request()
    return desk


def say(desk: Desk, task: TaskId, remaining: Remaining, attempt: Attempt = ATTEMPT) -> None:
    desk.coordinator.on_remaining(task, attempt, Epoch(1), remaining, desk.now_ms)


def test_an_epoch_in_which_tasks_acknowledge_one_by_one_is_never_too_old():
    desk = desk_with_an_open_epoch()
    for task in ("source", "middle"):
        assert desk.wait(TIMEOUT_MS - 1) == []
        desk.acknowledge(task, 1)
    assert desk.wait(TIMEOUT_MS - 1) == []
    assert desk.open_epochs() == [1]


def test_a_capture_and_a_log_that_is_sealed_further_are_progress():
    desk = desk_with_an_open_epoch()
    for remaining in (
        Remaining(Stage.ALIGNING, 1, 6),
        Remaining(Stage.ALIGNING, 1, 5),
        Remaining(Stage.ALIGNING, 0, 9),  # one more barrier came, with more batches ahead of it
        Remaining(Stage.CAPTURED, 2, 0),
        Remaining(Stage.CAPTURED, 2, -1),
        Remaining(Stage.CAPTURED, 1, -1),
    ):
        assert desk.wait(TIMEOUT_MS - 1) == []
        say(desk, SINK, remaining)
    assert desk.open_epochs() == [1]


def test_what_does_not_shrink_is_no_progress_however_often_it_is_said():
    desk = desk_with_an_open_epoch()
    say(desk, SINK, Remaining(Stage.ALIGNING, 0, 5))
    for _ in range(3):
        desk.wait(TIMEOUT_MS // 3)
        say(desk, SINK, Remaining(Stage.ALIGNING, 0, 5))
        desk.coordinator.on_records()
    assert desk.open_epochs() == []


def test_another_attempt_and_a_task_that_has_acknowledged_make_no_progress():
    desk = desk_with_an_open_epoch()
    desk.acknowledge("sink", 1)
    desk.wait(TIMEOUT_MS - 1)
    say(desk, SINK, Remaining(Stage.ALIGNING, 0, 5))
    say(desk, TaskId("middle", 0), Remaining(Stage.ALIGNING, 0, 5), Attempt(ATTEMPT + 1))
    assert kinds(desk.wait(1), GivenUp)


def test_an_epoch_that_is_given_up_says_what_it_was_waiting_for():
    desk = desk_with_an_open_epoch()
    desk.acknowledge("source", 1)
    say(desk, TaskId("middle", 0), Remaining(Stage.ALIGNING, 1, 1234))
    (given_up,) = kinds(desk.wait(TIMEOUT_MS), GivenUp)
    assert given_up.epoch == 1
    for words in ("0.3 s", "middle/0 (1 barrier missing, 1,234 batches ahead", "sink/0 (not reached)"):
        assert words in given_up.reason
    assert "source" not in given_up.reason


def test_many_tasks_that_are_waited_for_are_counted():
    desk = Desk(graph("source -> sink", parallelism=8), timeout_ms=TIMEOUT_MS, interval_ms=10**6)
    desk.request()
    (given_up,) = kinds(desk.wait(TIMEOUT_MS), GivenUp)
    assert "11 others" in given_up.reason


def test_a_run_whose_records_move_is_never_failed_for_epochs_that_take_too_long():
    desk = Desk(PIPE, timeout_ms=TIMEOUT_MS, interval_ms=10**6, failures_tolerated=0)
    for epoch in range(1, 20):
        desk.request()
        desk.coordinator.on_records()
        orders = desk.wait(TIMEOUT_MS)
        assert [given_up.epoch for given_up in kinds(orders, GivenUp)] == [epoch]
        assert kinds(orders, FailAttempt) == []


def test_a_run_in_which_nothing_moves_fails_after_as_many_as_are_tolerated():
    desk = Desk(PIPE, timeout_ms=TIMEOUT_MS, interval_ms=10**6, failures_tolerated=1)
    desk.request()
    desk.coordinator.on_records()
    desk.wait(TIMEOUT_MS)  # records moved: no failure
    desk.request()
    assert kinds(desk.wait(TIMEOUT_MS), FailAttempt) == []
    desk.request()
    assert kinds(desk.wait(TIMEOUT_MS), FailAttempt)


def test_a_write_that_fails_counts_though_records_move():
    desk = desk_with_an_open_epoch(failures_tolerated=0)
    desk.coordinator.on_records()
    assert kinds(desk.decline("sink", 1), FailAttempt)


# -- what a task says of itself --------------------------------------------------------------------------------------


def test_a_task_tells_barriers_that_are_missing_and_batches_ahead_of_those_that_came():
    bench = Bench(graph("left -> join", "right -> join"))
    bench.emit("left->join", 1, 2, 3)
    bench.trigger("left", 1)
    bench.deliver("left->join", 4)
    assert bench.core("join").remaining() == {1: Remaining(Stage.ALIGNING, 1, 3)}
    bench.take("left->join")
    assert bench.core("join").remaining() == {1: Remaining(Stage.ALIGNING, 1, 2)}
    bench.take("left->join", 2)
    bench.trigger("right", 1)
    bench.deliver("right->join")
    assert bench.core("join").remaining() == {}, "it is captured and written"


def test_a_head_tells_the_logs_that_are_open():
    bench = Bench(graph("items -> head", "head -> body", "body => head"), writes_at_once=False)
    bench.open_epoch(1)
    assert bench.core("head").remaining() == {1: Remaining(Stage.CAPTURED, 1, 0)}
    bench.deliver_each("head->body", "body->head")
    assert bench.core("head").remaining() == {1: Remaining(Stage.CAPTURED, 0, 0)}
    bench.write("head", 1)
    assert bench.core("head").remaining() == {}


def test_probes_are_no_snapshots_that_anybody_waits_for():
    bench = Bench(graph("items -> head", "head -> body", "body => head"))
    bench.trigger("head", 1, Mode.PROBE)
    assert bench.core("head").remaining() == {}


def test_a_cut_between_two_rounds_waits_as_long_as_its_round_processes_records():
    desk = Desk(PIPE, timeout_ms=TIMEOUT_MS, interval_ms=10**6)
    desk.request(Mode.BETWEEN_ROUNDS)
    for _ in range(5):
        desk.coordinator.on_records()
        assert desk.wait(TIMEOUT_MS) == []
    assert desk.open_epochs() == [1]
    assert any(isinstance(order, GivenUp) for order in desk.wait(TIMEOUT_MS)), "no record moved since"


def stop_between_rounds() -> Desk:
    desk = Desk(PIPE, timeout_ms=TIMEOUT_MS, interval_ms=10**6)
    desk.coordinator.requests.ask(Request("s1", RequestKind.STOP, "stop", Mode.BETWEEN_ROUNDS))
    desk.wait(1)
    return desk


def test_a_stop_waits_for_the_end_of_a_round_but_not_longer_than_the_timeout_and_says_so():
    desk = stop_between_rounds()
    assert {cut.mode for cut in desk.coordinator.open.values()} == {Mode.BETWEEN_ROUNDS}
    desk.coordinator.on_records()
    (given_up,) = kinds(desk.wait(TIMEOUT_MS), GivenUp)
    assert "parallelism" in given_up.reason
    desk.wait(RETRY_PAUSE_MS)
    assert {cut.mode for cut in desk.coordinator.open.values()} == {Mode.ALIGNED}
    assert manifest_in(desk.acknowledge_all(2)).stops


def test_a_stop_that_is_declined_in_rounds_tries_a_few_times_before_it_ends_in_one():
    desk = stop_between_rounds()
    modes: list[Mode] = []
    for epoch in range(1, STOP_TRIES_MAX + 2):
        modes += [cut.mode for cut in desk.coordinator.open.values()]
        desk.decline("source", epoch)
        desk.wait(RETRY_PAUSE_MS)
    assert modes == [*[Mode.BETWEEN_ROUNDS] * STOP_TRIES_MAX, Mode.ALIGNED]

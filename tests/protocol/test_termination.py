"""Rule 10: a loop ends when a probe shows that it has run dry for good, upstream first, and then the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import TaskId
from backedge.graphs.task_errors import MisuseError
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd, Committed, Decline, Effect
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import (
    Abort,
    AppendEntry,
    Complete,
    Finished,
    Manifest,
    Order,
    TellToEnd,
    Trigger,
)
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.supervisor import Supervisor
from tests.protocol.bench_of_cores import Bench, Sends, graph, task_id
from tests.protocol.desk import Desk, report

NEVER_MS = 10**9


class Conducted(Bench):
    """A bench with a coordinator: what tasks tell it reaches it at once, and so do its orders the tasks.

    Time passes, and wires and tasks move, only when a test says so. `orders` are all that were given, in order;
    `manifests` are durable at once.
    """

    def __init__(self, deployment: Deployment, *arguments: Any, mode: Mode = Mode.ALIGNED, **options: Any) -> None:
        self.coordinator: Coordinator | None = None
        self.orders: list[Order] = []
        self.manifests: list[Manifest] = []
        self.now_ms = 0
        super().__init__(deployment, *arguments, **options)
        snapshots = SnapshotOptions(
            mode, interval_ms=NEVER_MS, timeout_ms=1000, probe_pause_ms=10, probe_pause_ms_max=10
        )
        self.supervisor = Supervisor("conducted", snapshots=snapshots)
        self.supervisor.attempt = self.attempt
        self.supervisor.on_started(deployment, self.now_ms)
        self.coordinator = self.supervisor.coordinator
        self._report(list(self.told))

    def wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self._obey(self._conductor().on_tick(self.now_ms))

    def request(self) -> None:
        self._obey(self._conductor().start(Mode.ALIGNED, self.now_ms))

    def ordered(self, kind: type[Any]) -> list[Any]:
        return [order for order in self.orders if isinstance(order, kind)]

    def told_to_end(self) -> list[str]:
        return [order.task.name for order in self.ordered(TellToEnd)]

    @property
    def is_finished(self) -> bool:
        return any(isinstance(order, Finished) for order in self.orders)

    def _conductor(self) -> Coordinator:
        if self.coordinator is None:
            raise RuntimeError("the coordinator starts when all tasks have")
        return self.coordinator

    def happen(self, id: TaskId, event: Callable[..., Any], *details: Any) -> None:
        before = len(self.told)
        super().happen(id, event, *details)
        if self.coordinator is not None:
            self._report(self.told[before:])

    def _report(self, told: list[tuple[TaskId, Effect]]) -> None:
        conductor = self._conductor()
        for task, effect in told:
            if isinstance(effect, Acknowledge | AcknowledgeEnd | Decline | Committed):
                self._obey(conductor.on_report(task, self.attempt, effect, self.now_ms))

    def _obey(self, orders: Iterable[Order]) -> None:
        for order in orders:
            self.orders.append(order)
            match order:
                case Trigger(task, epoch, mode):
                    self.perform(task, self.cores[task].on_trigger(epoch, mode))
                case Abort(task, epoch, mode):
                    self.perform(task, self.cores[task].on_abort(epoch, mode))
                case TellToEnd(task):
                    self.perform(task, self.cores[task].on_told_to_end())
                case Complete(task, epoch, names):
                    self.perform(task, self.cores[task].on_complete(epoch, names))
                case AppendEntry(_, Manifest() as manifest):
                    self.manifests.append(manifest)
                    self._obey(self.supervisor.on_appended(manifest, self.now_ms))
                case _:
                    continue

    def finish(self, waits_max: int = 20) -> None:
        """Let everything happen until the run is finished; probes included."""
        for _ in range(waits_max):
            self.run()
            if self.is_finished:
                return
            self.wait(10)
        unfinished = [str(task) for task in self.cores if not self.has_ended(str(task))]
        raise AssertionError(f"not finished; these have not ended: {unfinished}")


LOOP = graph("items -> head", "head -> body", "body => head", "body -> out")


def hop(state: Any, left: int) -> Sends:
    return [("head", left - 1)] if left else [("out", left)]


def pass_on(state: Any, record: int) -> Sends:
    return [("body", record)]


def loop(**options: Any) -> Conducted:
    return Conducted(LOOP, {"head": pass_on, "body": hop}, **options)


def probes(bench: Conducted) -> list[int]:
    return sorted({order.epoch for order in bench.ordered(Trigger) if order.mode.is_probe})


def test_no_probe_is_sent_while_a_source_is_alive():
    bench = loop()
    bench.run()
    bench.wait(100)
    assert probes(bench) == []


def test_a_loop_that_has_run_dry_ends_and_the_run_ends_with_a_complete_cut():
    bench = loop()
    bench.emit("items->head", 3)
    bench.exhaust("items")
    bench.finish()
    assert bench.seen("out") == [0]
    assert bench.seen("head") == [3, 2, 1, 0]
    assert bench.told_to_end() == ["head"]
    assert [manifest.files for manifest in bench.manifests] == [dict.fromkeys(LOOP.tasks)]


def test_a_probe_that_overtakes_nothing_and_finds_a_record_does_not_end_the_loop():
    bench = loop()
    bench.emit("body->head", 5)
    bench.exhaust("items")
    bench.deliver("items->head")
    bench.wait(10)
    bench.deliver("head->body")
    bench.deliver("body->head", 2)
    assert probes(bench) == [1]
    assert bench.acknowledged("head") == [1]
    assert bench.told_to_end() == []
    bench.finish()
    assert bench.seen("out") == [0]


def test_a_busy_task_keeps_the_loop_alive():
    bench = loop()
    bench.set_busy("body", True)
    bench.exhaust("items")
    bench.run()
    for _ in range(3):
        bench.wait(10)
        bench.run()
    assert probes(bench) == [1, 2, 3] and bench.told_to_end() == []
    bench.emit("body->head", 0)
    bench.set_busy("body", False)
    bench.finish()
    assert bench.seen("out") == [0]


def starts_of_probes(desk: Desk, duration_ms: int) -> list[int]:
    """When probes begin within that time; each finds a task busy, a millisecond later."""
    found: list[int] = []
    for _ in range(duration_ms):
        epochs = {order.epoch for order in desk.wait(1) if isinstance(order, Trigger) and order.mode.is_probe}
        for epoch in epochs:
            found.append(desk.now_ms)
            for task in desk.deployment.tasks.keys() - desk.coordinator.ended.keys():
                desk.report(task, Acknowledge(epoch, report(busy=True)))
    return found


def test_the_pause_from_one_probe_to_the_next_doubles_up_to_a_limit():
    desk = Desk(LOOP, interval_ms=10**9, probe_pause_ms=10, probe_pause_ms_max=60)
    desk.end("items")
    assert starts_of_probes(desk, 250) == [10, 30, 70, 130, 190, 250]


def test_few_probes_are_sent_while_records_are_seen_to_go_round():
    options = {"probe_pause_ms": 10, "probe_pause_ms_max": 10, "quiet_ms": 50, "hopping_pause_ms": 300}
    desk = Desk(LOOP, interval_ms=10**9, **options)
    desk.end("items")
    found: list[int] = []
    for _ in range(20):
        desk.coordinator.on_hops(desk.now_ms)
        found += starts_of_probes(desk, 20)
    assert found == [300], "there may be another loop, and it is that one which goes round"
    assert starts_of_probes(desk, 50) == [430, 440, 450]


def test_no_probe_begins_while_a_cut_between_two_rounds_is_open():
    """Heads that wait for the end of a round would capture the probe first, others the cut."""
    desk = Desk(LOOP, interval_ms=10**9, probe_pause_ms=10)
    desk.end("items")
    desk.request(Mode.BETWEEN_ROUNDS)
    assert starts_of_probes(desk, 50) == []
    desk.complete(1)
    assert starts_of_probes(desk, 10) == [51]


def test_a_probe_that_never_comes_back_is_given_up_and_another_one_sent():
    bench = loop()
    bench.exhaust("items")
    bench.deliver("items->head")
    bench.wait(10)
    bench.wait(1000)
    bench.wait(10)
    assert probes(bench) == [1, 2]
    bench.finish()


def test_a_loop_behind_a_loop_ends_after_it():
    chain = graph("items -> first", "first -> one", "one => first", "one -> second", "second -> two", "two => second")
    bench = Conducted(chain)
    bench.exhaust("items")
    bench.deliver("items->first")
    bench.finish()
    assert bench.told_to_end() == ["first", "second"]


NESTED = ("items -> outer", "outer -> inner", "inner -> body", "body => inner", "body => outer")
IRREDUCIBLE = ("items -> a", "items -> b", "a -> b", "b => a", "b -> out")


@pytest.mark.parametrize(
    ("edges", "sizes", "heads"),
    [
        (NESTED, {}, ["inner", "outer"]),
        (IRREDUCIBLE, {}, ["a"]),
        (("items -> head", "head -> body", "body => head"), {"head": 2, "body": 2}, ["head", "head"]),
    ],
    ids=["nested", "irreducible", "parallel"],
)
def test_every_head_of_a_loop_is_told_to_end(edges: tuple[str, ...], sizes: dict[str, int], heads: list[str]):
    bench = Conducted(graph(*edges, **sizes))
    bench.exhaust("items")
    bench.finish()
    assert sorted(bench.told_to_end()) == heads


@pytest.mark.parametrize(("policy", "probe"), [(Mode.ALIGNED, Mode.PROBE), (Mode.UNALIGNED, Mode.UNALIGNED_PROBE)])
def test_probes_take_the_way_of_the_run(policy: Mode, probe: Mode):
    bench = loop(mode=policy)
    bench.exhaust("items")
    bench.run()
    bench.wait(10)
    assert {order.mode for order in bench.ordered(Trigger)} == {probe}
    bench.finish()


def test_a_loop_ended_in_part_ends_with_the_heads_that_are_left():
    first = Conducted(graph("items -> head", "head -> body", "body => head", items=1, head=2, body=2))
    first.exhaust("items")
    first.deliver_each("items->head/0", "items->head/1")
    first.tell_to_end("head/0")
    first.run()
    first.request()
    first.run()
    assert first.has_ended("head/0") and not first.has_ended("head/1")
    second = Conducted(first.deployment, restored=first.cut(1), attempt=2)
    assert second.has_ended("head/0") and not second.has_ended("head/1")
    second.finish()
    assert [order.task for order in second.ordered(TellToEnd)] == [task_id("head/1")]


def test_the_last_state_of_a_head_stands_for_an_epoch_whose_barrier_came_back():
    bench = Conducted(graph("items -> head", "head -> body", "body => head", items=1, head=2, body=2))
    bench.exhaust("items")
    bench.deliver_each("items->head/0", "items->head/1")
    bench.tell_to_end("head/0")
    bench.request()
    assert bench.has_ended("head/0") and not bench.ordered(AppendEntry)
    bench.run()
    assert [order.entry.epoch for order in bench.ordered(AppendEntry)] == [1]
    assert not bench.is_verified("head/0"), "the bodies have not ended"
    bench.finish()
    assert bench.is_verified("head/0")


def test_a_head_that_had_ended_before_a_restore_says_so_at_once():
    bench = Bench(LOOP)
    bench.exhaust("items")
    bench.deliver("items->head")
    bench.tell_to_end("head")
    bench.run()
    again = Bench(LOOP, restored=bench.cut(1), attempt=2)
    assert again.is_verified("head") and not again.core("head").inboxes[again.channel("body->head")].end_received


def test_records_that_on_end_sends_back_into_its_own_loop_are_refused():
    bench = Bench(graph("head -> body", "body => head"))
    bench.tell_to_end("head")
    bench.emit("body->head", "late")
    with pytest.raises(MisuseError, match=r"body/0 came back to head/0.* on_end .* only what leaves the loop"):
        bench.deliver("body->head")
    assert not bench.is_verified("head"), "no cut may say that the run is over"

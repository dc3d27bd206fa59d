"""A coordinator at its desk: a test tells it what tasks report, and reads what it orders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.coordinator import Coordinator, SnapshotOptions
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd, Committed, Decline, Effect, Report
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, Manifest, Order
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.supervisor import Supervisor
from tests.protocol.bench_of_cores import task_id

ATTEMPT = Attempt(1)


def report(*transactions: str, busy: bool = False) -> Report:
    return Report({}, frozenset(), busy, transactions)


class Desk:
    """One coordinator, whose clock moves only when it is told to."""

    def __init__(self, deployment: Deployment, completed: Iterable[int] = (), **options: Any) -> None:
        self.deployment = deployment
        self.now_ms = 0
        self.coordinator = Coordinator(
            Supervisor("desk"),
            deployment,
            ATTEMPT,
            SnapshotOptions(**options),
            Epoch(1 + max(completed, default=0)),
            dict.fromkeys(map(Epoch, completed), False),
        )

    def wait(self, duration_ms: int) -> list[Order]:
        self.now_ms += duration_ms
        return self.coordinator.on_tick(self.now_ms)

    def request(self, mode: Mode = Mode.ALIGNED, savepoint: str | None = None) -> list[Order]:
        if savepoint is None:
            return self.coordinator.request(mode, self.now_ms)
        self.coordinator.requests.ask(Request(savepoint, RequestKind.SAVEPOINT, savepoint, mode))
        return self.coordinator.serve_requests(self.now_ms)

    def report(self, task: TaskId, effect: Effect, attempt: int = ATTEMPT) -> list[Order]:
        return self.coordinator.on_report(task, Attempt(attempt), effect, self.now_ms)

    def acknowledge(self, task: str, epoch: int, *transactions: str, attempt: int = 1) -> list[Order]:
        return self.report(task_id(task), Acknowledge(Epoch(epoch), report(*transactions)), attempt)

    def decline(self, task: str, epoch: int, attempt: int = 1) -> list[Order]:
        return self.report(task_id(task), Decline(Epoch(epoch), "the disk is full"), attempt)

    def end(self, task: str, *transactions: str, captured: int = 0, probed: int = 0, attempt: int = 1) -> list[Order]:
        end = AcknowledgeEnd(report(*transactions), Epoch(captured), Epoch(probed))
        return self.report(task_id(task), end, attempt)

    def acknowledge_all(self, epoch: int) -> list[Order]:
        orders: list[Order] = []
        for task in self.deployment.tasks:
            if task not in self.coordinator.ended:
                orders += self.report(task, Acknowledge(Epoch(epoch), report()))
        return orders

    def write_manifest(self, epoch: int) -> list[Order]:
        return self.coordinator.on_manifest_written(Epoch(epoch), self.now_ms)

    def fail_manifest(self, epoch: int) -> list[Order]:
        return self.coordinator.on_manifest_failed(Epoch(epoch), "the disk is full", self.now_ms)

    def commit(self, task: str, epoch: int) -> list[Order]:
        return self.report(task_id(task), Committed(Epoch(epoch)))

    def complete(self, epoch: int) -> list[Order]:
        """Everything that completes a cut: acknowledgements, the manifest, the commits."""
        orders = [*self.acknowledge_all(epoch), *self.write_manifest(epoch)]
        for task in self.deployment.tasks:
            orders += self.report(task, Committed(Epoch(epoch)))
        return orders

    def open_epochs(self) -> list[int]:
        return sorted(self.coordinator.open)


def kinds(orders: Iterable[Order], kind: type[Any]) -> list[Any]:
    return [order for order in orders if isinstance(order, kind)]


def manifest_in(orders: Iterable[Order]) -> Manifest:
    (order,) = kinds(orders, AppendEntry)
    return order.entry


def tasks_of(orders: Iterable[Any]) -> list[TaskId]:
    return [order.task for order in orders]

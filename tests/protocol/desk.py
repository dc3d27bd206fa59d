"""A coordinator at its desk: a test tells it what tasks report, and reads what it orders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.coordinator import Coordinator
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd, Committed, Decline, Effect, Report
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import AppendEntry, Manifest, Numbered, Order
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
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
        self.supervisor = Supervisor("desk", snapshots=SnapshotOptions(**options))
        self.supervisor.attempt = ATTEMPT
        earlier = (Manifest(Epoch(epoch), ATTEMPT, Mode.ALIGNED, {}, {}) for epoch in completed)
        self.supervisor.read([Numbered(number, cut) for number, cut in enumerate(earlier, 1)])
        self.supervisor.on_started(deployment, self.now_ms)
        self.coordinator = cast(Coordinator, self.supervisor.coordinator)
        self.manifests: dict[int, Manifest] = {}

    def wait(self, duration_ms: int) -> list[Order]:
        self.now_ms += duration_ms
        return self._noted(self.coordinator.on_tick(self.now_ms))

    def request(self, mode: Mode = Mode.ALIGNED, savepoint: str | None = None) -> list[Order]:
        if savepoint is None:
            return self.coordinator.start(mode, self.now_ms)
        self.coordinator.requests.ask(Request(savepoint, RequestKind.SAVEPOINT, savepoint, mode))
        return self.coordinator.serve_requests(self.now_ms)

    def report(self, task: TaskId, effect: Effect, attempt: int = ATTEMPT) -> list[Order]:
        return self._noted(self.coordinator.on_report(task, Attempt(attempt), effect, self.now_ms))

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
        *orders, _ = self._noted(self.supervisor.on_appended(self.manifests[epoch], self.now_ms))
        return orders

    def fail_manifest(self, epoch: int) -> list[Order]:
        return self._noted(self.coordinator.on_manifest_failed(Epoch(epoch), "the disk is full", self.now_ms))

    def commit(self, task: str, epoch: int) -> list[Order]:
        return self.report(task_id(task), Committed(Epoch(epoch)))

    def complete(self, epoch: int) -> list[Order]:
        """Everything that completes a cut: acknowledgements, the manifest, the commits."""
        orders = [*self.acknowledge_all(epoch), *self.write_manifest(epoch)]
        for task in self.deployment.tasks:
            orders += self.report(task, Committed(Epoch(epoch)))
        return orders

    def _noted(self, orders: list[Order]) -> list[Order]:
        """The orders; their manifests are kept, to be written when the test says so."""
        self.manifests |= {order.entry.epoch: order.entry for order in kinds(orders, AppendEntry)}
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

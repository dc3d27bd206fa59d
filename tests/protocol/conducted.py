"""A bench with a coordinator: what tasks tell it reaches it at once, and so do its orders the tasks.

Time passes, and wires and tasks move, only when a test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.protocol.coordinator import Coordinator, SnapshotOptions
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
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.supervisor import Supervisor
from tests.protocol.bench_of_cores import Bench

NEVER_MS = 10**9


class Conducted(Bench):
    """`orders` are all that were given, in order; `manifests` are durable at once."""

    def __init__(self, deployment: Deployment, *arguments: Any, mode: Mode = Mode.ALIGNED, **options: Any) -> None:
        self.coordinator: Coordinator | None = None
        self.orders: list[Order] = []
        self.manifests: list[Manifest] = []
        self.now_ms = 0
        super().__init__(deployment, *arguments, **options)
        snapshots = SnapshotOptions(
            mode, interval_ms=NEVER_MS, timeout_ms=1000, probe_pause_ms=10, probe_pause_ms_max=10
        )
        self.coordinator = Coordinator(Supervisor("conducted"), deployment, self.attempt, snapshots, Epoch(1))
        self._report_all()

    def wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        self._obey(self._conductor().on_tick(self.now_ms))

    def request(self, mode: Mode = Mode.ALIGNED, savepoint: str | None = None) -> None:
        conductor = self._conductor()
        if savepoint is None:
            self._obey(conductor.request(mode, self.now_ms))
            return
        conductor.requests.ask(Request(savepoint, RequestKind.SAVEPOINT, savepoint, mode))
        self._obey(conductor.serve_requests(self.now_ms))

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

    def _report_all(self) -> None:
        self._report(list(self.told))

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
                    self._obey(self._conductor().on_manifest_written(manifest.epoch, self.now_ms))
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

"""The output of a run from the supervisor's view: what is removed, and what the driver gets."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from backedge.engine.cut_view import Transactions
from backedge.engine.io.files.services import FileServices
from backedge.engine.io.later_output import LaterOutput
from backedge.engine.on_ray.job_store import open_services
from backedge.engine.on_ray.supervisor.kept_lines import KeptLines
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.ids import Attempt
from backedge.graphs.plan import Operator, Plan
from backedge.graphs.task_errors import TaskError, describe, foreign_place
from backedge.recovery.protocol.orders import Sweep

ATTACHED_LINES_MAX, DETACHED_LINES_MAX = 1_000_000, 1_000
"""How many printed lines are kept: until the driver has them, or, of a detached run, for those that follow it."""


@contextmanager
def _failing_as_disks_do(operator: Operator) -> Generator[None]:
    """Raise what a sink of others raises as an `OSError`: the run does not end, and the sink is asked again."""
    try:
        yield
    except (OSError, TaskError):
        raise
    except Exception as error:
        if not (place := foreign_place(error)):
            raise
        raise OSError(f"sink {operator.name!r} raised {describe(error)} ({place})") from error


class Output:
    """All sinks of a run, or of one pipeline. Receives what they send to the driver; a transaction that arrives twice
    counts once. The names of those that none can publish again are forgotten.
    """

    def __init__(self, plan: Plan, options: TaskOptions, printed: KeptLines) -> None:
        self._sinks = {o.name: o for o in plan.operators.values() if o.kind.is_sink}
        self._is_durable = options.root is not None
        self._services: FileServices = open_services(options, self.publish, Attempt(0))
        # The names of transactions that were received and may come again. The loop adds names while others are
        # forgotten beside it.
        self._published: set[str] = set()
        self._lock = Lock()
        # Without a folder, the only copy of what sinks keep.
        self._held: dict[str, list[Any]] = {}
        self.printed = printed
        # The committed transactions read so far, for each sink that keeps its records.
        self._read: dict[str, dict[str, list[Any]]] = {}

    def publish(self, sink: str, transaction: str, records: list[Any]) -> None:
        """Receive what a sink sends to the driver when it commits: records to keep, or lines to print."""
        with self._lock:
            if transaction in self._published:
                return
            self._published.add(transaction)
        if not self._sinks[sink].function.keeps:
            self.printed.add(records)
        elif not self._is_durable:
            self._held.setdefault(sink, []).extend(records)

    def roll_back(self, sweep: Sweep) -> None:
        """Remove leftovers of attempts, for all sinks; raises the first `OSError` after removing everything else."""
        with self._lock:
            self._published = {name for name in self._published if not sweep.forgets(name)}
        errors: list[OSError] = []
        for operator in self._sinks.values():
            try:
                with _failing_as_disks_do(operator):
                    self._services.sweep(operator, sweep)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def replace(self, later: LaterOutput) -> None:
        """Remove output that was prepared or published after a cut."""
        for operator in self._sinks.values():
            with _failing_as_disks_do(operator):
                self._services.withdraw(operator, later)

    def release(self) -> None:
        """Nothing will resume this run: release its claims to the folders that it wrote to."""
        for operator in self._sinks.values():
            with _failing_as_disks_do(operator):
                self._services.release(operator)

    def collected(self) -> dict[str, list[Any]]:
        """The records of each sink that keeps them, over all attempts and all runs that were resumed."""
        return {name: self._records(operator) for name, operator in self._sinks.items() if operator.function.keeps}

    def transactions(self) -> tuple[Transactions, Transactions]:
        """The published and the prepared transactions of these sinks, as `stop_when` sees them."""
        published = {f"({name})": (name, records) for name, records in self.collected().items()}
        prepared = {
            transaction: (name, records)
            for name, operator in self._sinks.items()
            if operator.function.keeps
            for transaction, records in self._services.kept(name).prepared().items()
        }
        return published, prepared

    def _records(self, operator: Operator) -> list[Any]:
        if self._is_durable:
            read = self._read.setdefault(operator.name, {})
            return self._services.kept(operator.name).committed(read)
        return list(self._held.get(operator.name, ()))

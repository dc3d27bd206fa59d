"""The output of a run as its supervisor sees it: what is removed, and what is given to the driver."""

from __future__ import annotations

from typing import Any

from engine.cut_view import Transactions
from engine.files.services import FileServices
from engine.on_ray.job_store import open_services
from engine.on_ray.transport.control_messages import TaskOptions
from graphs.ids import Attempt
from graphs.plan import Operator, Plan
from recovery.orders import Sweep


class Output:
    """All sinks of a run. What they hand to the driver comes here; a transaction that comes twice counts once."""

    def __init__(self, plan: Plan, options: TaskOptions) -> None:
        self._sinks = {o.name: o for o in plan.operators.values() if o.kind.is_sink}
        self._is_durable = options.root is not None
        self._services: FileServices = open_services(options, self.publish, Attempt(0))
        self._published: dict[str, tuple[str, list[Any]]] = {}
        # Printed lines that the driver may not have, and how many there were before.
        self._printed: list[str] = []
        self.printed_before = 0
        # What was read of the committed transactions of each sink that keeps its records.
        self._read: dict[str, dict[str, list[Any]]] = {}

    def publish(self, sink: str, transaction: str, records: list[Any]) -> None:
        """What a sink hands to the driver when a transaction is committed: records that it keeps, or lines to print."""
        if transaction in self._published:
            return
        if self._sinks[sink].function.keeps:
            # With a folder the records are there; without one this is the only place.
            self._published[transaction] = (sink, [] if self._is_durable else records)
        else:
            self._published[transaction] = (sink, [])
            self._printed += records

    def printed_from(self, number: int) -> list[str]:
        """The printed lines from this number on. The driver has those before it, so they are forgotten."""
        if number > self.printed_before:
            del self._printed[: number - self.printed_before]
            self.printed_before = number
        return list(self._printed)

    def sweep(self, sweep: Sweep) -> None:
        """Remove what attempts have left behind, of every sink; raises the first `OSError` when all else is done."""
        errors: list[OSError] = []
        for operator in self._sinks.values():
            try:
                self._services.sweep(operator, sweep)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def release(self) -> None:
        """Nothing will resume this run: give up its claims to the folders that it wrote to."""
        for operator in self._sinks.values():
            self._services.release(operator)

    def collected(self) -> dict[str, list[Any]]:
        """What each sink that keeps its records was given, over all attempts, and all runs that were resumed."""
        return {name: self._records(operator) for name, operator in self._sinks.items() if operator.function.keeps}

    def transactions(self) -> tuple[Transactions, Transactions]:
        """What these sinks have published, and what they have prepared, as `stop_when` sees it."""
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
        return [record for sink, records in self._published.values() if sink == operator.name for record in records]

"""The output of a run as its supervisor sees it: what is removed, and what is given to the driver."""

from __future__ import annotations

from typing import Any

from engine.cut_view import Transactions
from engine.files.checks import output_folder, release_output
from engine.files.file_formats import CSV, JsonLines, Parquet
from engine.files.services import FileServices
from engine.on_ray.job_store import open_services
from engine.on_ray.transport.control_messages import TaskOptions
from graphs.ids import Attempt
from graphs.io import Collect, Print
from graphs.plan import Operator, Plan
from recovery.orders import Sweep


class Output:
    """All sinks of a run. What Collect and Print sinks publish comes here; said twice, it counts once."""

    def __init__(self, plan: Plan, options: TaskOptions) -> None:
        self._sinks = {o.name: o for o in plan.operators.values() if o.kind.is_sink}
        self._is_durable = options.root is not None
        self._job, self._run = options.job, options.run
        self._services: FileServices = open_services(options, self.publish, Attempt(0))
        self._published: dict[str, tuple[str, list[Any]]] = {}
        # Lines of Print sinks that the driver may not have, and how many there were before.
        self._printed: list[str] = []
        self.printed_before = 0
        # What was read of the committed transactions of each Collect sink.
        self._read: dict[str, dict[str, list[Any]]] = {}

    def publish(self, sink: str, transaction: str, records: list[Any]) -> None:
        """A transaction of a Collect or a Print sink is committed."""
        if transaction in self._published:
            return
        operator = self._sinks[sink]
        if isinstance(operator.function, Print):
            self._published[transaction] = (sink, [])
            self._printed += [f"{operator.function.prefix}{record}" for record in records]
        else:
            # With a folder the records are there; without one this is the only place.
            self._published[transaction] = (sink, [] if self._is_durable else records)

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
            if isinstance(operator.function, JsonLines | CSV | Parquet):
                release_output(output_folder(operator.name, operator.function.path), self._job, self._run)

    def collected(self) -> dict[str, list[Any]]:
        """What each Collect sink was given, over all attempts, and all runs that were resumed."""
        return {name: self._records(operator) for name, operator in self._sinks.items() if _is_collect(operator)}

    def transactions(self) -> tuple[Transactions, Transactions]:
        """What the Collect sinks have published, and what they have prepared, as `stop_when` sees it."""
        published = {f"({name})": (name, records) for name, records in self.collected().items()}
        prepared = {
            transaction: (name, records)
            for name, operator in self._sinks.items()
            if _is_collect(operator)
            for transaction, records in self._services.prepared(name).items()
        }
        return published, prepared

    def _records(self, operator: Operator) -> list[Any]:
        if self._is_durable:
            read = self._read.setdefault(operator.name, {})
            return self._services.collected(operator.name, read)
        return [record for sink, records in self._published.values() if sink == operator.name for record in records]


def _is_collect(operator: Operator) -> bool:
    return isinstance(operator.function, Collect)

"""The output of a run from the supervisor's view: what is removed, and what the driver gets."""

from __future__ import annotations

from threading import Lock
from typing import Any, NamedTuple

from engine.cut_view import Transactions
from engine.files.services import FileServices
from engine.on_ray.job_store import open_services
from engine.on_ray.transport.control_messages import TaskOptions
from engine.rolling_back import LaterOutput
from graphs.ids import Attempt
from graphs.plan import Operator, Plan
from recovery.orders import Sweep

DETACHED_LINES_MAX = 1_000
"""How many printed lines a detached run keeps, for those that follow it."""


class Printed(NamedTuple):
    """Printed lines, and the number of the first one."""

    first: int
    lines: list[str]


class PrintedLines:
    """What the sinks of a run have printed and the driver may not have yet. All pipelines of the run print here.

    A detached run has any number of followers, or none, so it keeps the last lines even if they were read.
    """

    def __init__(self, *, is_detached: bool = False) -> None:
        self._is_detached = is_detached
        # Those lines, and the number of earlier ones. Followers ask from threads.
        self._lines: list[str] = []
        self._before = 0
        self._lock = Lock()

    def add(self, lines: list[str]) -> None:
        """A sink has printed these."""
        with self._lock:
            self._lines += lines
            if self._is_detached:
                self._forget(len(self._lines) - DETACHED_LINES_MAX)

    def since(self, number: int) -> Printed:
        """The printed lines from this number on. A driver has the earlier ones, so they are dropped."""
        with self._lock:
            if not self._is_detached:
                self._forget(number - self._before)
            known = max(number - self._before, 0)
            return Printed(self._before + known, self._lines[known:])

    def _forget(self, count: int) -> None:
        """Drop that many of the first lines."""
        if count > 0:
            del self._lines[:count]
            self._before += count


class Output:
    """All sinks of a run, or of one pipeline. Receives what they send to the driver; a transaction that arrives twice
    counts once.
    """

    def __init__(self, plan: Plan, options: TaskOptions, printed: PrintedLines) -> None:
        self._sinks = {o.name: o for o in plan.operators.values() if o.kind.is_sink}
        self._is_durable = options.root is not None
        self._services: FileServices = open_services(options, self.publish, Attempt(0))
        self._published: dict[str, tuple[str, list[Any]]] = {}
        self.printed = printed
        # The committed transactions read so far, for each sink that keeps its records.
        self._read: dict[str, dict[str, list[Any]]] = {}

    def publish(self, sink: str, transaction: str, records: list[Any]) -> None:
        """Receive what a sink sends to the driver when it commits: records to keep, or lines to print."""
        if transaction in self._published:
            return
        if self._sinks[sink].function.keeps:
            # With a folder, the records are stored there; without one, this is the only copy.
            self._published[transaction] = (sink, [] if self._is_durable else records)
        else:
            self._published[transaction] = (sink, [])
            self.printed.add(records)

    def roll_back(self, sweep: Sweep) -> None:
        """Remove leftovers of attempts, for all sinks; raises the first `OSError` after removing everything else."""
        errors: list[OSError] = []
        for operator in self._sinks.values():
            try:
                self._services.sweep(operator, sweep)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def replace(self, later: LaterOutput) -> None:
        """Remove output that was prepared or published after a cut."""
        for operator in self._sinks.values():
            self._services.withdraw(operator, later)

    def release(self) -> None:
        """Nothing will resume this run: release its claims to the folders that it wrote to."""
        for operator in self._sinks.values():
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
        return [record for sink, records in self._published.values() if sink == operator.name for record in records]

"""A world that loses, delays and repeats orders and reports in transit, which `recovery/protocol/reliable_line.py` must
tolerate.

Orders and aborts of a task travel on two lines, so that an abort may overtake its trigger; reports travel on one.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from backedge.engine.simulation.world.host import Host
from backedge.engine.simulation.world.world import World
from backedge.graphs.ids import Attempt, TaskId
from backedge.recovery.protocol.effects import Effect
from backedge.recovery.protocol.orders import Order
from backedge.recovery.protocol.reliable_line import LineEnd, Said

REPEAT_MS = 60
CONFIRMS = Said(0, None)


class Travelling(NamedTuple):
    """A message in transit, with its sender's confirmation."""

    said: Said
    confirmed: int
    for_aborts: bool = False


class Line(NamedTuple):
    """The name of a line of one task in one attempt: for its orders and reports, or for its aborts."""

    attempt: Attempt
    task: TaskId
    for_aborts: bool = False


class LinedWorld(World):
    """`near` are the supervisor's ends of the lines of each attempt, `far` those of the tasks."""

    def __init__(self, *arguments: Any) -> None:
        self.near: defaultdict[Attempt, dict[Line, LineEnd]] = defaultdict(dict)
        self.far: defaultdict[Attempt, dict[Line, LineEnd]] = defaultdict(dict)
        super().__init__(*arguments)

    def _end(self, ends: defaultdict[Attempt, dict[Line, LineEnd]], line: Line) -> LineEnd:
        of_attempt = ends[line.attempt]
        if line not in of_attempt:
            of_attempt[line] = self.parts.line_end(REPEAT_MS)
        return of_attempt[line]

    # -- orders --------------------------------------------------------------------------------------------------

    def give(self, host: Host, order: Order, *, is_abort: bool = False) -> None:
        host.offers = None
        end = self._end(self.near, Line(host.attempt, host.id, is_abort))
        wire = host.aborts if is_abort else host.orders
        wire.append(Travelling(end.say(order, self.now_ms), end.confirm()))

    def _opened_order(self, host: Host, message: Any, *, is_abort: bool = False) -> Order | None:
        line = Line(host.attempt, host.id, is_abort)
        return self._opened(self._end(self.far, line), message, "orders")

    # -- reports -------------------------------------------------------------------------------------------------

    def report(self, attempt: Attempt, task: TaskId, effect: Effect) -> None:
        end = self._end(self.far, Line(attempt, task))
        self.reports.append((attempt, task, Travelling(end.say(effect, self.now_ms), end.confirm())))

    def _opened_report(self, attempt: Attempt, task: TaskId, message: Any) -> Effect | None:
        if self.leader(attempt) is None:
            return None
        return self._opened(self._end(self.near, Line(attempt, task, message.for_aborts)), message, "reports")

    def _opened(self, end: LineEnd, message: Travelling, what: str) -> Any:
        end.on_confirmed(message.confirmed, self.now_ms)
        before = end.repeated, end.early
        if end.accepts(message.said):
            return message.said.what
        self.counts[f"repeated_{what}"] += end.repeated - before[0]
        self.counts[f"early_{what}"] += end.early - before[1]
        return None

    # -- time ----------------------------------------------------------------------------------------------------

    def _do_tick(self) -> None:
        super()._do_tick()
        attempt, hosts = self.supervisor.attempt, self.hosts
        # Nothing is repeated while something is still in transit: steps are not bound to time, and if repetitions
        # arrived more slowly than they are sent, nothing else would ever happen.
        for line, end in self.near[attempt].items():
            host = hosts.get(line.task) if end.has_to_say() else None
            if host is not None and host.attempt == attempt:
                wire = host.aborts if line.for_aborts else host.orders
                if not wire:
                    wire.extend(Travelling(said, end.confirm()) for said in self._due(end, "orders"))
        reporting = {task for sent, task, _ in self.reports if sent == attempt}
        for line, end in self.far[attempt].items():
            if end.has_to_say() and line.task in hosts and line.task not in reporting:
                again = [Travelling(said, end.confirm(), line.for_aborts) for said in self._due(end, "reports")]
                self.reports += [(attempt, line.task, message) for message in again]

    def _due(self, end: LineEnd, what: str) -> list[Said]:
        again = end.due(self.now_ms)
        self.counts[f"{what}_sent_again"] += len(again)
        return again or ([CONFIRMS] if end.owes_confirmation() else [])

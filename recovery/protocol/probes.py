"""When a probe looks whether loops have run dry (rule 10), and what follows from it.

Each probe holds up the loop for a moment, so the pause between probes doubles, and is long while records are known to
circulate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import TaskId
from backedge.recovery.protocol.effects import Report
from backedge.recovery.protocol.orders import Order, TellToEnd
from backedge.recovery.protocol.snapshot_options import SnapshotOptions
from backedge.recovery.protocol.termination import Termination


class Probes:
    """The probes of one attempt. `ended` are the tasks that have ended.

    - told: the components whose heads were told to end.
    - last_ms: when the last probe began; the next one follows after `pause_ms`. last_hop_ms: when records last went
      round a loop.
    """

    def __init__(self, deployment: Deployment, options: SnapshotOptions, now_ms: int) -> None:
        self.termination = Termination(deployment)
        self.options = options
        self.told: set[str] = set()
        self.last_ms = now_ms
        self.pause_ms = options.probe_pause_ms
        self.last_hop_ms = now_ms - options.quiet_ms

    def is_due(self, now_ms: int, ended: Collection[TaskId]) -> bool:
        """Whether a loop may have run dry, and the pause is over."""
        is_hopping = now_ms - self.last_hop_ms < self.options.quiet_ms
        if now_ms - self.last_ms < (self.options.hopping_pause_ms if is_hopping else self.pause_ms):
            return False
        return any(
            c.name not in self.told and not c.endless and self.termination.may_be_dry(c, ended)
            for c in self.termination.free
        )

    def read(self, reports: Mapping[TaskId, Report], ended: Collection[TaskId]) -> list[Order]:
        """A probe is complete: have the heads of loops end that have run dry."""
        orders: list[Order] = []
        for component in self.termination.free:
            if component.endless or component.name in self.told:
                continue
            is_dry = self.termination.is_dry(component, reports, ended)
            if is_dry and self.termination.may_be_dry(component, ended):
                self.told.add(component.name)
                orders += [TellToEnd(head) for head in component.heads if head not in ended]
        pause_ms, pause_ms_max = self.options.probe_pause_ms, self.options.probe_pause_ms_max
        self.pause_ms = pause_ms if orders else min(2 * self.pause_ms, pause_ms_max)
        return orders

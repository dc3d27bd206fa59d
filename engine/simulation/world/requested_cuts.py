"""Requests for savepoints, cuts and stops in a schedule, and the check that none of them is forgotten."""

from __future__ import annotations

import random

from backedge.engine.simulation.checker.record import Violation
from backedge.engine.simulation.world.fault_plan import Outcome
from backedge.engine.simulation.world.lossy_lines import Travelling
from backedge.engine.simulation.world.world import World
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.effects import Decline
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.rounds import Phase


class RequestedCuts:
    """Makes requests, whatever the run is doing.

    - has_rounds: whether the flow has iterations. must_complete: cuts between two rounds that no task may decline.
    """

    def __init__(self, world: World, rng: random.Random, outcome: Outcome) -> None:
        self.world = world
        self.rng = rng
        self.outcome = outcome
        self.has_rounds = any(task.iteration is not None for task in world.deployment.tasks.values())
        self.must_complete: set[tuple[Attempt, Epoch]] = set()

    def savepoint_in_rounds(self, is_live: bool) -> bool:
        """Request a cut between two rounds while there are rounds; in other flows, a savepoint when faults are over."""
        if not self.has_rounds:
            return is_live and self.savepoint()
        heads = [host.core.rounds for host in self.world.hosts.values() if host.core.task.iteration is not None]
        if not any(rounds is not None and rounds.phase is Phase.ROUND for rounds in heads):
            return False
        return self.savepoint(Mode.BETWEEN_ROUNDS)

    def savepoint(self, mode: Mode | None = None) -> bool:
        mode = mode or self.rng.choice((self.world.options.snapshots.mode, Mode.BETWEEN_ROUNDS))
        is_kept = self.world.counts["requests"] % 3 < 2
        return self._ask(RequestKind.SAVEPOINT if is_kept else RequestKind.CUT, mode)

    def stop(self) -> bool:
        mode = Mode.BETWEEN_ROUNDS if self.has_rounds else self.world.options.snapshots.mode
        return self._ask(RequestKind.STOP, mode)

    def _ask(self, kind: RequestKind, mode: Mode) -> bool:
        world = self.world
        must_complete = mode is Mode.BETWEEN_ROUNDS and world.coordinator is not None and self._is_all_in_rounds()
        id = f"{kind.value}-{world.counts['requests']}"
        self.outcome.story.append((kind.value, mode.value))
        world.ask(Request(id, kind, None if kind is RequestKind.CUT else id, mode))
        if must_complete and (coordinator := world.coordinator) is not None:
            opened = [
                cut.epoch for cut in coordinator.open.values() if cut.request is not None and cut.request.id == id
            ]
            self.must_complete.update((coordinator.attempt, epoch) for epoch in opened)
        return True

    def check_requests(self) -> None:
        """Check, after a tick, that each request that waits has a reason to."""
        coordinator, requests = self.world.coordinator, self.world.supervisor.requests
        if coordinator is None or len(coordinator.ended) == len(coordinator.deployment.tasks):
            return  # the final cut answers them
        if coordinator.final is not None or any(c.mode is Mode.BETWEEN_ROUNDS for c in coordinator.open.values()):
            return
        now_ms, retry_at_ms = self.world.now_ms, coordinator.retry_at_ms
        served = [cut.request for cut in coordinator.open.values()]
        waiting = [one for one in requests.unanswered.values() if one not in served]
        lost = [str(request) for request in waiting if now_ms >= retry_at_ms.get(request.id, 0)]
        if lost:
            raise RuntimeError(f"nobody works on {', '.join(lost)}")

    def check_decline(self, report: int) -> None:
        """Check that a cut between two rounds is only declined while an input of the iteration has not ended.

        Once the coordinator has aborted it, some heads take the cut and others do not, and then tasks may decline it.
        """
        attempt, _, effect = self.world.reports[report]
        coordinator = self.world.coordinator
        if isinstance(effect, Travelling):
            effect = effect.said.what
        if not isinstance(effect, Decline) or (attempt, effect.epoch) not in self.must_complete:
            return
        if coordinator is None or effect.epoch not in coordinator.open:
            return
        if "a round" in effect.reason:
            story = f"{effect.reason}, though all inputs of the iteration had ended when it was asked for"
            self.outcome.violations.append(Violation("a cut between two rounds is declined", story, effect.epoch))

    def _is_all_in_rounds(self) -> bool:
        for host in self.world.hosts.values():
            rounds = host.core.rounds
            if rounds is None:
                continue
            if host.core.task.depth == 1 and host.core.task.iteration is not None and rounds.phase is Phase.START:
                return False
            if any(depth == 0 and channel not in rounds.closed for channel, depth in rounds.depths.items()):
                return False
        return self.has_rounds

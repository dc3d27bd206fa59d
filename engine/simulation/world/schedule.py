"""A seeded schedule: picks what happens next, and what goes wrong.

It has two phases. Safety: anything may fail, and the run must still be correct. Liveness: faults stop, nothing waits
for a timeout, and the run must finish within a budget of steps. A slow task stays slow until a cut is complete, which
has a budget of its own, because the delay of a cut must not depend on how long a record takes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from backedge.engine.simulation.checker.record import Violation
from backedge.engine.simulation.world.fault_injection import Faults
from backedge.engine.simulation.world.fault_plan import FaultPlan, Outcome
from backedge.engine.simulation.world.requested_cuts import RequestedCuts
from backedge.engine.simulation.world.world import Happening, World
from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.protocol.effects import Decline
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError
from backedge.recovery.stores.store_errors import StoreError

LIVE_TICK_SHARE = 0.02
NEVER_MS = 10**9
ANSWERED = "every request is answered"
SLOW = ("remove", "withdraw", "answered", "outlived", "write_answers")
ALIKE = ("report", "remove", "withdraw", "land", "compact", "compacted", "outlived")
"""Events that are equally fast, whatever they happen to."""
LAGGING = (0.1, 0.03, 0.01)
COMPACTION = ("compact", "compacted")
COUNTED = {"part": "batch_in_parts", "patience": "overtaking", "turn": "turn"}
USES_RECORDS = ("take", "part", "together", "turn")
SLOW_SHARE = 0.002
CUT_STEPS_MAX, CUT_STEPS_A_CHANNEL = 2_500, 50
SPEEDS = (1.0, 1.0, 1.0, 0.3, 0.03)


class Schedule:
    """Drives one world through one schedule.

    - steps_safe, steps_live: how many steps each phase takes at most.
    - speeds: the share of the picks of an event, or a kind of events, that are kept. patience: how often another event
      may be picked instead.
    - lagging_share: the share of back edges that lag. tick_share: the share of steps in which only time passes.
      compacting_share: the share of the picks of a slow compaction that are kept.
    - requests, faults: what makes requests, and what injects faults.
    - slow: the task whose user code takes long for a record.
    """

    def __init__(
        self, world: World, seed: int, plan: FaultPlan, steps_safe: int, steps_live: int, steps_expected: int
    ) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.plan = plan
        # Faults sometimes stop early, so that liveness is checked for runs that have hardly begun, too.
        self.steps_safe = steps_safe if self.rng.random() < 0.6 else self.rng.choice((0, 60, 200))
        self.steps_live = steps_live
        self.outcome = Outcome(seed)
        self.speeds: dict[Any, float] = {}
        self.patience = self.rng.choice((2, 4, 12))
        # All back edges lag, or none, or some; if some do, one head is far ahead of the other.
        self.lagging_share = self.rng.choice((0.0, 0.4, 0.4, 1.0, 1.0))
        waits_for_cut = self.rng.choice(("not", "any", "own"))
        self.tick_share = 0.2 if plan.slow_compactions else self.rng.choice((0.02, 0.05, 0.1, 0.2))
        self.compacting_share = random.Random(f"compacting {seed}").choice((0.3, 0.1, 0.03))
        self.requests = RequestedCuts(world, self.rng, self.outcome)
        self.faults = Faults(world, self.rng, plan, self.outcome, self.requests, waits_for_cut)
        if self.steps_safe and plan.crashes:
            self.steps_safe = max(self.steps_safe, steps_expected // 2)
        self.faults.plan_crashes(max(1, min(self.steps_safe, steps_expected)))
        self.slow = self._draw_slow()

    def _draw_slow(self) -> TaskId | None:
        """In every third run, pick a task whose user code takes long for a record."""
        tasks = sorted(task.id for task in self.world.deployment.tasks.values() if not task.is_source)
        # A generator of its own: the schedules of flows without such a task do not depend on this draw.
        rng = random.Random(f"slow {self.outcome.seed}")
        if not tasks or self.world.options.snapshots.patience_ms is None or rng.random() > 1 / 3:
            return None
        self.outcome.faults["slow_task"] += 1
        return rng.choice(tasks)

    def _is_slow(self, event: Happening) -> bool:
        """Whether a slow task would process records."""
        return event[0] in USES_RECORDS and event[1] == self.slow

    def run(self) -> Outcome:
        """Run both phases. The outcome has the violations that show at once; the checker looks for others."""
        for _ in self.steps():
            pass
        return self.outcome

    def steps(self) -> Iterator[None]:
        """Run both phases, a step at a time: other pipelines of the job may take steps in between."""
        try:
            yield from self._phase(self.steps_safe, is_live=False)
            if not self.world.is_over:
                self._begin_liveness()
                yield from self._to_a_cut()
                yield from self._phase(self.steps_live, is_live=True)
        except StoreError as error:
            self.outcome.violations.append(Violation("the store keeps what it was given", str(error)))
        except (RuntimeError, LookupError, ValueError) as error:
            self.outcome.violations.append(Violation("the protocol was broken", f"{type(error).__name__}: {error}"))
        else:
            self._judge_end()

    def _judge_end(self) -> None:
        if self.world.is_fenced:
            self.outcome.violations.append(Violation("a healthy run is fenced", "no other run has the job"))
        elif self.world.failure is not None:
            self.outcome.violations.append(Violation("the run failed", self.world.failure))
        elif not self.world.is_over:
            self.outcome.violations.append(
                Violation("the run does not end", f"not finished {self.steps_live} steps after the last fault")
            )
        elif self.world.unanswered:
            names = ", ".join(map(str, self.world.unanswered.values()))
            self.outcome.violations.append(Violation(ANSWERED, f"the run has ended, and not answered {names}"))

    def _phase(self, steps: int, *, is_live: bool) -> Iterator[None]:
        world, rng, faults, requests = self.world, self.rng, self.faults, self.requests
        for _ in range(steps):
            if world.is_over:
                return
            self.outcome.steps += 1
            if not is_live:
                faults.crash_if_due()
            if not is_live and rng.random() < 0.04:
                faults.inject()
            if not is_live and requests.has_rounds:
                faults.leave_request_behind()
            if faults.left["late_savepoint"] and rng.random() < 0.05 and requests.savepoint_in_rounds(is_live):
                faults.left["late_savepoint"] -= 1
            if not is_live:
                faults.wake_if_due()
                faults.fail_in_vain_if_due()
                faults.rescale_if_due()
                faults.give_up_rescale_if_due()
            event = self._pick(is_live)
            self.outcome.story.append(event)
            if event[0] in COUNTED:
                self.outcome.faults[COUNTED[event[0]]] += 1
            if event[0] == "report":
                self.requests.check_decline(event[1])
            elif event[0] == "remove" and world.removals[event[1]][0] < world.supervisor.attempt:
                self.outcome.faults["superseded_removal"] += 1
            try:
                world.apply(event)
            except ChannelIntegrityError as error:
                self.faults.recover(event, error)
            except (LookupError, ValueError) as error:
                if event[0] not in USES_RECORDS:
                    raise
                self.faults.die(event, error)
            if event[0] == "tick" and self.world.unanswered:
                self.requests.check_requests()
            yield

    def _begin_liveness(self) -> None:
        """Stop all faults. Open epochs are given up once; from here on epochs complete without a timeout."""
        world = self.world
        world.options.snapshots = world.supervisor.snapshots = replace(world.options.snapshots, timeout_ms=NEVER_MS)
        world.store.make_reliable()
        # A loop that always has more in it than the budget allows is never cut: here the user raises the budget.
        world.options.flow = replace(world.options.flow, log_budget_bytes=None)
        for host in world.hosts.values():
            host.core.limit_logs(None)
        if world.options.flow.credit_bytes is not None and world.supervisor.attempt in self.faults.gaps and world.hosts:
            # Its channel may be full for good, so no barrier gets through to detect the gap. On Ray, the numbers of the
            # link detect it.
            self.outcome.story.append(("found", "a gap in a link"))
            self.faults.apply(("notice",))
        coordinator = world.coordinator
        if coordinator is None or coordinator.final is not None:
            return
        if coordinator.attempt not in self.faults.disturbed:
            coordinator.options = world.options.snapshots
        # Otherwise a message may be lost that a cut between two rounds waits for. Its timeout ends this wait, and the
        # barrier of the next epoch detects the loss.
        mode = world.options.snapshots.mode
        world.begin_epoch(mode)
        task = next(iter(world.deployment.tasks))
        for epoch in sorted(coordinator.open):
            decline = Decline(epoch, "faults are over")
            world.obey(coordinator.on_report(task, coordinator.attempt, decline, world.now_ms))
            if world.coordinator is not coordinator:
                return

    def _to_a_cut(self) -> Iterator[None]:
        """Run until a cut completes, however slow a task is. A requested cut between rounds would wait for the task."""
        world = self.world
        modes = {request.mode for request in world.unanswered.values()}
        if self.slow is None or world.options.snapshots.patience_ms is None or Mode.BETWEEN_ROUNDS in modes:
            self.slow = None
            return
        before, late, self.faults.left["late_savepoint"] = len(world.record.cuts), self.faults.left["late_savepoint"], 0
        steps_max = CUT_STEPS_MAX + CUT_STEPS_A_CHANNEL * len(world.deployment.channels)
        # Orders that wait at a task come first, and the tasks take turns.
        backlog = max((len(host.orders) + len(host.aborts) for host in world.hosts.values()), default=0)
        steps_max += backlog * len(world.hosts)
        for _ in range(steps_max):
            if world.is_over or len(world.record.cuts) > before:
                self.slow, self.faults.left["late_savepoint"] = None, late
                return
            yield from self._phase(1, is_live=True)
        story = f"none is complete {steps_max} steps after the last fault, and task {self.slow} is slow"
        self.outcome.violations.append(Violation("a cut completes in time", story))

    def _pick(self, is_live: bool) -> Happening:
        world, rng = self.world, self.rng
        if world.dead and (is_live or rng.random() < 0.1):
            return self.faults.notice()
        if rng.random() < (LIVE_TICK_SHARE if is_live else self.tick_share):
            return ("tick",)
        if world.zombies and not is_live and rng.random() < 0.1:
            event = self.faults.zombie_event()
            if event is not None:
                return event
        events = world.enabled()
        if not events:
            return ("tick",)
        if is_live and self.slow is not None and rng.random() > SLOW_SHARE:
            events = [event for event in events if not self._is_slow(event)] or [("tick",)]
        event = rng.choice(events)
        if not is_live:
            for _ in range(self.patience):
                if rng.random() < self._speed(event):
                    break
                event = rng.choice(events)
            if self.plan.slow_compactions:
                while event[0] in COMPACTION and rng.random() >= self.compacting_share:
                    event = rng.choice(events)
        return event

    def _speed(self, event: Happening) -> float:
        key = event[:1] if event[0] in ALIKE else event[:2]
        speed = self.speeds.get(key)
        if speed is None:
            if self._is_slow(event):
                return LAGGING[-1]
            is_back = event[0] in ("receive", "take", "together") and self._is_back(event[-1])
            lags = event[0] in SLOW or (is_back and self.rng.random() < self.lagging_share)
            speed = self.speeds[key] = self.rng.choice(LAGGING if lags else SPEEDS)
        return speed

    def _is_back(self, channel: ChannelId) -> bool:
        found = self.world.deployment.channels.get(channel)
        return channel.restored or (found is not None and found.is_back)

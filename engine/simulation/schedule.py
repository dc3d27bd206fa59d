"""A seeded schedule: picks what happens next, and what goes wrong.

It has two phases. Safety: anything may fail, and the run must still be correct. Liveness: faults stop, nothing waits
for a timeout, and the run must finish within a budget of steps. A slow task stays slow until a cut is complete, which
has a budget of its own, because the delay of a cut must not depend on how long a record takes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.batch import Batch, decode, encode
from engine.columns import as_records
from engine.simulation.lossy_lines import LinedWorld, Travelling
from engine.simulation.record import Violation
from engine.simulation.simulated_store import CreateFault
from engine.simulation.windows import WindowedWorld
from engine.simulation.world import Happening, World
from graphs.ids import Attempt, ChannelId, Epoch, TaskId
from recovery.channels import Queued
from recovery.effects import Decline
from recovery.messages import Data, Mode, marker_in
from recovery.orders import AttemptStart, Manifest
from recovery.protocol_errors import ChannelIntegrityError
from recovery.requests import Request, RequestKind
from recovery.rounds import Phase
from recovery.stores.store_errors import StoreError
from recovery.supervisor import Supervisor

LIVE_TICK_SHARE = 0.02
RESCALED_RUNS, RESCALED_STEPS, TASKS_MAX = 0.4, 0.03, 4
"""The share of runs that are rescaled while they run, and of their steps; the most tasks of an operator."""
NEVER_MS = 10**9
ANSWERED = "every request is answered"
LAGGING = (0.1, 0.03, 0.01)
COUNTED = {"part": "batch_in_parts", "patience": "overtaking", "turn": "turn"}
USES_RECORDS = ("take", "part", "together", "turn")
SLOW_SHARE = 0.002
CUT_STEPS_MAX, CUT_STEPS_A_CHANNEL = 2_500, 50
SPEEDS = (1.0, 1.0, 1.0, 0.3, 0.03)


@dataclass(frozen=True)
class FaultPlan:
    """How many faults of each kind may happen in one run. How many do happen, and when, is drawn.

    Crashes are planned for steps within the expected length of the run. A crash that waits for a cut may come later,
    and does not happen if the run is over by then. `slow_compactions`: compactions take long, and crashes wait for one.
    """

    crashes: int = 3
    coordinator_deaths: int = 1
    transport: int = 1
    write_failures: int = 2
    lost_reports: int = 2
    aborts: int = 3
    savepoints: int = 2
    stops: int = 1
    lines: int = 6
    credits: int = 6
    zombies: bool = True
    rescale_to: int | None = None
    rescales: int = 0
    lost_append_replies: int = 1
    hung_appends: int = 1
    compactions: int = 2
    slow_compactions: bool = False
    failed_claims: int = 2
    unreadable_chains: int = 2
    unreadable_cuts: int = 1
    go_backs: int = 0

    @staticmethod
    def none() -> FaultPlan:
        """No faults."""
        return FaultPlan(
            crashes=0,
            coordinator_deaths=0,
            transport=0,
            write_failures=0,
            lost_reports=0,
            aborts=0,
            savepoints=0,
            stops=0,
            lines=0,
            credits=0,
            zombies=False,
            lost_append_replies=0,
            hung_appends=0,
            compactions=0,
            failed_claims=0,
            unreadable_chains=0,
            unreadable_cuts=0,
        )


@dataclass
class Outcome:
    """The result of one schedule."""

    seed: int
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])
    story: list[Happening] = field(default_factory=list[Happening])


class Schedule:
    """Drives one world through one schedule."""

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
        self.waits_for_cut = self.rng.choice(("not", "any", "own"))
        if plan.slow_compactions:
            self.waits_for_cut = "compaction"
        self.has_rounds = any(task.iteration is not None for task in world.deployment.tasks.values())
        self.tick_share = self.rng.choice((0.02, 0.05, 0.1, 0.2))
        self.left = {
            "kill_coordinator": self.rng.randint(0, plan.coordinator_deaths) if self.rng.random() < 0.3 else 0,
            "transport": plan.transport if self.rng.random() < 0.15 else 0,
            "fail_write": self.rng.randint(0, plan.write_failures),
            "lose_report": self.rng.randint(0, plan.lost_reports) if self.rng.random() < 0.5 else 0,
            "decline": self.rng.randint(0, plan.aborts),
            "savepoint": self.rng.randint(0, plan.savepoints),
            "late_savepoint": self.rng.randint(0, 2 * plan.savepoints),
            "abort_request": self.rng.randint(0, plan.aborts) if self.has_rounds else 0,
            "stop": plan.stops if self.rng.random() < 0.2 else 0,
            "lose_append_reply": self.rng.randint(0, plan.lost_append_replies),
            "hang_append": self.rng.randint(0, plan.hung_appends),
            "fail_claim": self.rng.randint(0, plan.failed_claims),
            "unreadable_chain": self.rng.randint(0, plan.unreadable_chains),
            "unreadable_cut": self.rng.randint(0, plan.unreadable_cuts),
            "go_back": self.rng.randint(0, plan.go_backs),
            "compaction": plan.compactions if world.options.snapshots.files_max > 1 else 0,
            "line": self.rng.randint(0, plan.lines) if self.rng.random() < 0.5 else 0,
            "lose_credit": self.rng.randint(0, plan.credits),
            "window": self.rng.randint(0, plan.credits),
        }
        if self.steps_safe and plan.crashes:
            self.steps_safe = max(self.steps_safe, steps_expected // 2)
        within = max(1, min(self.steps_safe, steps_expected))
        # The next crash is at the end. Most crashes wait for a cut: before the first cut, a crash only starts over.
        self.crash_steps = sorted((self.rng.randrange(within) for _ in range(plan.crashes)), reverse=True)
        self.faults: dict[str, Callable[[], bool]] = {
            "kill_coordinator": self._kill_coordinator,
            "transport": self._disturb_transport,
            "fail_write": self._fail_write,
            "lose_report": self._lose_report,
            "decline": self._decline,
            "savepoint": self._savepoint,
            "stop": self._stop,
            "lose_append_reply": lambda: self._disturb_append("lose_append_reply"),
            "hang_append": lambda: self._disturb_append("hang_append"),
            "fail_claim": self._fail_claim,
            "unreadable_chain": self._hide_chain,
            "unreadable_cut": self._hide_cut,
            "go_back": self._go_back,
            "compaction": self._disturb_compaction,
            "line": self._disturb_line,
            "lose_credit": self._lose_credit,
            "window": self._change_window,
        }
        self.slow = self._draw_slow()
        # A generator of its own: the schedules of runs that are not rescaled do not depend on these draws.
        self.rescaling = random.Random(f"rescale {seed}")
        self.rescales = self.rescaling.randint(1, plan.rescales) if plan.rescales and self._is_rescaled() else 0
        self.disturbed: set[Attempt] = set()
        self.gaps: set[Attempt] = set()
        self.must_complete: set[tuple[Attempt, Epoch]] = set()
        self.cuts_with_request: dict[Epoch, bool] = {}

    def _is_rescaled(self) -> bool:
        return self.rescaling.random() < RESCALED_RUNS

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
        try:
            self._run_phase(self.steps_safe, is_live=False)
            if not self.world.is_over:
                self._begin_liveness()
                self._run_to_a_cut()
                self._run_phase(self.steps_live, is_live=True)
        except (RuntimeError, LookupError, ValueError, StoreError) as error:
            self.outcome.violations.append(Violation("the protocol was broken", f"{type(error).__name__}: {error}"))
            return self.outcome
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
        return self.outcome

    def _run_phase(self, steps: int, *, is_live: bool) -> None:
        world, rng, story = self.world, self.rng, self.outcome.story
        for _ in range(steps):
            if world.is_over:
                return
            self.outcome.steps += 1
            if not is_live:
                self._crash_if_due()
            if not is_live and rng.random() < 0.04:
                self._inject()
            if not is_live and self.has_rounds:
                self._leave_request_behind()
            if self.left["late_savepoint"] and rng.random() < 0.05 and self._savepoint_in_rounds(is_live):
                self.left["late_savepoint"] -= 1
            if self.rescales and not is_live and self.rescaling.random() < RESCALED_STEPS:
                self._rescale()
            event = self._pick(is_live)
            story.append(event)
            if event[0] in COUNTED:
                self.outcome.faults[COUNTED[event[0]]] += 1
            if event[0] == "report":
                self._check_decline(event[1])
            elif event[0] == "remove" and world.removals[event[1]][0] < world.supervisor.attempt:
                self.outcome.faults["superseded_removal"] += 1
            try:
                world.apply(event)
            except ChannelIntegrityError as error:
                self._recover(event, error)
            if event[0] == "tick" and self.world.unanswered:
                self._check_requests()

    def _begin_liveness(self) -> None:
        """Stop all faults. Open epochs are given up once; from here on epochs complete without a timeout."""
        world = self.world
        world.options.snapshots = world.driver.snapshots = replace(world.options.snapshots, timeout_ms=NEVER_MS)
        world.store.make_reliable()
        # A loop that always has more in it than the budget allows is never cut: here the user raises the budget.
        world.options.flow = replace(world.options.flow, log_budget_bytes=None)
        for host in world.hosts.values():
            host.core.limit_logs(None)
        if world.options.flow.credit_bytes is not None and world.supervisor.attempt in self.gaps and world.hosts:
            # Its channel may be full for good, so no barrier gets through to detect the gap. On Ray, the numbers of the
            # link detect it.
            self.outcome.story.append(("found", "a gap in a link"))
            self._apply(("notice",))
        coordinator = world.coordinator
        if coordinator is None or coordinator.final is not None:
            return
        if coordinator.attempt not in self.disturbed:
            coordinator.options = world.options.snapshots
        # Otherwise a message may be lost that a cut between two rounds waits for. Its timeout ends this wait, and the
        # barrier of the next epoch detects the loss.
        mode = world.options.snapshots.mode
        world.obey(coordinator.request(mode, world.now_ms))
        task = next(iter(world.deployment.tasks))
        for epoch in sorted(coordinator.open):
            world.obey(coordinator.on_decline(task, coordinator.attempt, epoch, "faults are over", world.now_ms))
            if world.coordinator is not coordinator:
                return

    def _run_to_a_cut(self) -> None:
        """Run until a cut completes, however slow a task is. A requested cut between rounds would wait for the task."""
        world = self.world
        modes = {mode for mode, _ in world.coordinator.requested} if world.coordinator is not None else set[Mode]()
        modes |= {request.mode for request in world.unanswered.values()}
        if self.slow is None or world.options.snapshots.patience_ms is None or Mode.BETWEEN_ROUNDS in modes:
            self.slow = None
            return
        before, late, self.left["late_savepoint"] = len(world.record.cuts), self.left["late_savepoint"], 0
        steps_max = CUT_STEPS_MAX + CUT_STEPS_A_CHANNEL * len(world.deployment.channels)
        # Orders that wait at a task come first, and the tasks take turns.
        backlog = max((len(host.orders) + len(host.aborts) for host in world.hosts.values()), default=0)
        steps_max += backlog * len(world.hosts)
        for _ in range(steps_max):
            if world.is_over or len(world.record.cuts) > before:
                self.slow, self.left["late_savepoint"] = None, late
                return
            self._run_phase(1, is_live=True)
        story = f"none is complete {steps_max} steps after the last fault, and task {self.slow} is slow"
        self.outcome.violations.append(Violation("a cut completes in time", story))

    def _pick(self, is_live: bool) -> Happening:
        world, rng = self.world, self.rng
        if world.dead and (is_live or rng.random() < 0.1):
            return self._notice()
        if rng.random() < (LIVE_TICK_SHARE if is_live else self.tick_share):
            return ("tick",)
        if world.zombies and not is_live and rng.random() < 0.1:
            event = self._zombie_event()
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
        return event

    def _speed(self, event: Happening) -> float:
        key = event[:1] if event[0] in ("report", "remove", "land", "compact", "compacted") else event[:2]
        speed = self.speeds.get(key)
        if speed is None:
            if self._is_slow(event):
                return LAGGING[-1]
            is_back = event[0] in ("receive", "take", "together") and self._is_back(event[-1])
            lags = event[0] == "remove" or (is_back and self.rng.random() < self.lagging_share)
            lags |= self.plan.slow_compactions and event[0] in ("compact", "compacted")
            speed = self.speeds[key] = self.rng.choice(LAGGING if lags else SPEEDS)
        return speed

    def _is_back(self, channel: ChannelId) -> bool:
        found = self.world.deployment.channels.get(channel)
        return channel.restored or (found is not None and found.is_back)

    # -- faults --------------------------------------------------------------------------------------------------

    def _inject(self) -> None:
        kinds = [kind for kind in self.faults if self.left[kind]]
        if not kinds:
            return
        kind = self.rng.choice(kinds)
        if self.faults[kind]():
            self.left[kind] -= 1
            self.outcome.faults[kind] += 1

    def _crash_if_due(self) -> None:
        if self.crash_steps and self.outcome.steps > self.crash_steps[-1] and self._crash():
            self.crash_steps.pop()
            self.outcome.faults["crash"] += 1

    def _apply(self, event: Happening) -> None:
        self.outcome.story.append(event)
        self.world.apply(event)

    def _crash(self) -> bool:
        candidates = sorted({*self.world.hosts, *self.world.unrestored})
        if not candidates or not self._has_waited():
            return False
        busy = [
            task for task, host in self.world.hosts.items() if host.driver.snapshots.captures or host.core.logs.epochs
        ]
        if busy and self.rng.random() < 0.5:
            candidates = sorted(busy)
        count = 1 if self.rng.random() < 0.8 else min(2, len(candidates))
        self.outcome.faults["crash_during_compaction"] += self._is_compacting()
        last = self.world.store.history[-1:]
        if last and isinstance(last[0].entry, AttemptStart) and last[0].entry.claimant in self.world.record.asked:
            self.outcome.faults["crash_after_going_back"] += 1
        self._apply(("crash", tuple(self.rng.sample(candidates, count))))
        return True

    def _leave_request_behind(self) -> None:
        """Let a request for a cut between two rounds outlive its epoch, and then its attempt, in a marker.

        It is aborted while a marker carries it, the next cut has the marker in a log, and that cut is restored.
        """
        world, rng = self.world, self.rng
        coordinator, cuts = world.coordinator, world.record.cuts
        if coordinator is None:
            return
        if self.left["abort_request"] and any(cut.mode is Mode.BETWEEN_ROUNDS for cut in coordinator.open.values()):
            carried = sorted(self._requests_under_way() & coordinator.open.keys())
            if carried and rng.random() < 0.3:
                self.left["abort_request"] -= 1
                self.outcome.faults["abort_request"] += 1
                self.outcome.story.append(("abort_request", carried[0]))
                task = next(iter(world.deployment.tasks))
                world.obey(
                    coordinator.on_decline(task, coordinator.attempt, carried[0], "by the schedule", world.now_ms)
                )
                if world.coordinator is coordinator:
                    world.obey(coordinator.request(world.options.snapshots.mode, world.now_ms))
        elif self.crash_steps and cuts and self._holds_request(max(cuts)) and rng.random() < 0.5 and self._crash():
            self.crash_steps.pop()
            self.outcome.faults["crash"] += 1
            self.outcome.faults["restored_request"] += 1

    def _requests_under_way(self) -> set[Epoch]:
        world = self.world
        markers = [item.marker for wire in world.wires.values() for _, item in wire if isinstance(item, Data)]
        for host in world.hosts.values():
            for inbox in host.core.inboxes.values():
                markers += [item.marker for item in inbox.queue if isinstance(item, Queued)]
        return {marker.cut_after for marker in markers if marker is not None and marker.cut_after is not None}

    def _holds_request(self, epoch: Epoch) -> bool:
        """Whether a marker in this cut requests a cut between two rounds."""
        if epoch not in self.cuts_with_request:
            snapshots = self.world.record.cuts[epoch].snapshots.values()
            payloads = [entry.payload for snapshot in snapshots for record in snapshot.inputs for entry in record.log]
            payloads += [
                payload
                for snapshot in snapshots
                if snapshot.rounds is not None
                for waiting in snapshot.rounds.aside.values()
                for payload in waiting
            ]
            markers = [marker_in(payload) for payload in payloads]
            self.cuts_with_request[epoch] = any(m is not None and m.cut_after is not None for m in markers)
        return self.cuts_with_request[epoch]

    def _has_waited(self) -> bool:
        """Whether there is what crashes wait for: a compaction, any cut, or one that the current attempt has taken."""
        cuts = self.world.record.cuts
        if self.waits_for_cut == "compaction":
            return self._is_compacting()
        if self.waits_for_cut == "not" or not cuts:
            return self.waits_for_cut == "not"
        return self.waits_for_cut == "any" or cuts[max(cuts)].attempt == self.world.supervisor.attempt

    def _is_compacting(self) -> bool:
        return bool(self.world.compactions or self.world.compaction_reports)

    def _notice(self) -> Happening:
        self._keep_zombies()
        if self.plan.rescale_to is not None and self.rng.random() < 0.5:
            self.world.wanted_parallelism = self.plan.rescale_to
        return ("notice",)

    def _recover(self, event: Happening, error: ChannelIntegrityError) -> None:
        """End the attempt of a disturbed channel: the damage is detected. Otherwise the protocol is at fault."""
        attempt = self.world.hosts[event[1].receiver].attempt
        if attempt not in self.disturbed:
            raise error
        self.outcome.story.append(("found", str(error)))
        if attempt == self.world.supervisor.attempt:
            self._apply(("notice",))

    def _keep_zombies(self) -> None:
        if self.plan.zombies and self.rng.random() < 0.4:
            hosts = [host for host in self.world.hosts.values() if host.is_started]
            self.world.zombies = self.rng.sample(hosts, min(len(hosts), 2))
            for host in self.world.zombies:
                del self.world.hosts[host.id]
                self.world.dead.add(host.id)
            self.outcome.faults["zombie"] += len(self.world.zombies)

    def _zombie_event(self) -> Happening | None:
        index = self.rng.randrange(len(self.world.zombies))
        host = self.world.zombies[index]
        events: list[Happening] = [("take", channel) for channel in host.core.ready()]
        if host.is_source and host.core.life.takes and not host.runtime.exhausted:
            events.append(("produce",))
        events += [("write", epoch) for epoch in host.writes]
        events += [("encode", epoch) for epoch in host.driver.snapshots.to_encode()]
        if host.orders:
            events.append(("order",))
        return ("zombie", index, self.rng.choice(events)) if events else None

    def _kill_coordinator(self) -> bool:
        if self.world.coordinator is None:
            return False
        self._keep_zombies()
        self._apply(("kill_coordinator",))
        return True

    def _go_back(self) -> bool:
        """Another run continues from an older cut. It may fail soon, before it has a cut of its own."""
        # Read the chain anew: the run that is replaced may not know of an entry that has landed late.
        reader = Supervisor("a reader")
        reader.read(self.world.store.chain)
        older = reader.cuts[:-1]
        if self.world.coordinator is None or not older:
            return False
        last = reader.kept[reader.cuts[-1]]
        if not last.transactions & self.world.services.store.prepared.keys() and self.rng.random() < 0.9:
            return False  # wait for a cut whose output is not published yet
        self._keep_zombies()
        self._apply(("go_back", self.rng.choice(older)))
        if self.rng.random() < 0.5:
            self.crash_steps.append(self.outcome.steps + self.rng.randrange(1, 30))
        return True

    def _disturb_append(self, kind: str) -> bool:
        if self.world.pending is None:
            return False
        self._apply((kind,))
        if self.rng.random() < 0.5 and self.world.hosts:
            # The attempt fails before it is known whether the entry exists.
            self.outcome.faults["failure_with_unknown_entry"] += 1
            self._apply(("crash", (self.rng.choice(sorted(self.world.hosts)),)))
            self._apply(self._notice())
        elif self.rng.random() < 0.5:
            self.outcome.faults["failed_repetition"] += 1
            self.world.store.create_fault = CreateFault.FAILS
        return True

    def _fail_claim(self) -> bool:
        """The start of an attempt cannot be recorded. If its outcome was unknown before, it is unknown still."""
        pending = self.world.pending
        if pending is None or not isinstance(pending.entry, AttemptStart):
            return False
        self._apply(("fail_append",))
        return True

    def _hide_chain(self) -> bool:
        """The chain cannot be read when it is read next."""
        self.outcome.story.append(("unreadable", "the chain"))
        self.world.store.unreadable_chains += 1
        return True

    def _hide_cut(self) -> bool:
        """A cut cannot be read when the next one is restored."""
        self.outcome.story.append(("unreadable", "a cut"))
        self.world.store.unreadable_cuts += 1
        return True

    def _disturb_transport(self) -> bool:
        attempt = self.world.supervisor.attempt
        wires: list[tuple[ChannelId, list[int]]] = []
        for channel, wire in self.world.wires.items():
            places = [i for i, (sent, item) in enumerate(wire) if sent == attempt and isinstance(item, Data)]
            if places and not self._is_within_actor(channel):
                wires.append((channel, places))
        if not wires:
            return False
        channel, places = self.rng.choice(sorted(wires))
        wire = self.world.wires[channel]
        place = self.rng.choice(places)
        sent, item = wire[place]
        is_marker = isinstance(item, Data) and item.marker is not None
        kind = self.rng.choice(
            ("lose", "double", *(("damage",) if not is_marker else ()), *(("swap",) if place else ()))
        )
        self.disturbed.add(attempt)
        self.outcome.story.append(("transport", kind, channel))
        self.outcome.faults[kind] += 1
        if kind == "lose":
            self.gaps.add(attempt)
            del wire[place]
        elif kind == "double":
            wire.insert(place, wire[place])
        elif kind == "swap":
            wire[place], wire[place - 1] = wire[place - 1], wire[place]
        elif isinstance(item, Data) and item.marker is None:
            wire[place] = (sent, item._replace(payload=_damaged(item.payload)))
        return True

    def _is_within_actor(self, channel: ChannelId) -> bool:
        found = self.world.deployment.channels.get(channel)
        return found is None or found.within_actor

    def _fail_write(self) -> bool:
        writes = [("fail_write", t, e) for t, h in self.world.hosts.items() for e in h.writes]
        pending = self.world.pending
        is_manifest = pending is not None and isinstance(pending.entry, Manifest)
        events: list[Happening] = [*writes, ("fail_append",)] if is_manifest else [*writes]
        if not events:
            return False
        self._apply(self.rng.choice(events))
        return True

    def _disturb_compaction(self) -> bool:
        """The files are not put into one, or nobody is told."""
        if not self.world.compactions:
            return False
        kind = self.rng.choice(("fail_compaction", "lose_compaction"))
        self._apply((kind, self.rng.randrange(len(self.world.compactions))))
        self.outcome.faults[kind] += 1
        return True

    def _lose_report(self) -> bool:
        if not self.world.reports:
            return False
        self._apply(("lose_report", self.rng.randrange(len(self.world.reports))))
        return True

    def _lose_credit(self) -> bool:
        world = self.world
        waiting = [] if not isinstance(world, WindowedWorld) else [(c, w) for c, w in world.credits.items() if w]
        if not waiting:
            return False
        channel, credits = self.rng.choice(waiting)
        self._apply(("lose_credit", channel, self.rng.randrange(len(credits))))
        return True

    def _change_window(self) -> bool:
        world = self.world
        windows = world.windows() if isinstance(world, WindowedWorld) else {}
        if not windows:
            return False
        self._apply(("window", self.rng.choice(sorted(windows)), self.rng.choice((1, 1, 300, 1_000))))
        return True

    def _disturb_line(self) -> bool:
        """Lose, repeat or delay an order or a report."""
        world, rng = self.world, self.rng
        if not isinstance(world, LinedWorld):
            return False
        orders = [(host.id, wire) for host in world.hosts.values() for wire in (host.orders, host.aborts) if wire]
        kind = rng.choice(("lost", "repeated", "late"))
        if orders and rng.random() < 0.6:
            task, wire = rng.choice(orders)
            place = rng.randrange(len(wire))
            message = wire[place]
            if kind != "repeated":
                del wire[place]
            if kind != "lost":
                wire.append(message)
            what = "an order"
            world.hosts[task].offers = None
        elif world.reports:
            task = (message := world.reports[place := rng.randrange(len(world.reports))])[1]
            if kind != "repeated":
                del world.reports[place]
            if kind != "lost":
                world.reports.append(message)
            what = "a report"
        else:
            return False
        self.outcome.story.append(("line", what, task, kind))
        self.outcome.faults[f"{kind}_{what.split()[1]}"] += 1
        return True

    def _decline(self) -> bool:
        """Abort an epoch at any moment, as if some task had declined it."""
        coordinator = self.world.coordinator
        if coordinator is None or not coordinator.open:
            return False
        epoch = self.rng.choice(sorted(coordinator.open))
        task = self.rng.choice(sorted(self.world.deployment.tasks))
        self.world.report(self.world.supervisor.attempt, task, Decline(epoch, "by the schedule"))
        self.outcome.story.append(("decline", task, epoch))
        return True

    def _check_decline(self, report: int) -> None:
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

    def _savepoint_in_rounds(self, is_live: bool) -> bool:
        """Request a cut between two rounds while there are rounds; in other flows, a savepoint when faults are over."""
        if not self.has_rounds:
            return is_live and self._savepoint()
        heads = [host.core.rounds for host in self.world.hosts.values() if host.core.task.iteration is not None]
        if not any(rounds is not None and rounds.phase is Phase.ROUND for rounds in heads):
            return False
        return self._savepoint(Mode.BETWEEN_ROUNDS)

    def _savepoint(self, mode: Mode | None = None) -> bool:
        mode = mode or self.rng.choice((self.world.options.snapshots.mode, Mode.BETWEEN_ROUNDS))
        is_kept = self.world.counts["requests"] % 3 < 2
        return self._ask(RequestKind.SAVEPOINT if is_kept else RequestKind.CUT, mode)

    def _stop(self) -> bool:
        return self._ask(RequestKind.STOP, self.world.options.snapshots.mode)

    def _rescale(self) -> None:
        """Ask for another number of tasks. A process may die soon: before the cut, while tasks restore, or after."""
        world, rng = self.world, self.rescaling
        self.rescales -= 1
        sizes = tuple(world.placement.deployment(rng.randint(1, TASKS_MAX)).parallelism.items())
        self.outcome.story.append(("rescale", dict(sizes)))
        self.outcome.faults["rescale"] += 1
        world.ask(Request(f"rescale-{self.rescales}", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, sizes))
        if self.crash_steps and rng.random() < 0.5:
            self.crash_steps[-1] = self.outcome.steps + rng.randrange(1, 150)

    def _ask(self, kind: RequestKind, mode: Mode) -> bool:
        """Make a request, whatever the run is doing."""
        world = self.world
        must_complete = mode is Mode.BETWEEN_ROUNDS and world.coordinator is not None and self._is_all_in_rounds()
        id = f"{kind.value}-{world.counts['requests']}"
        self.outcome.story.append((kind.value, mode.value))
        world.ask(Request(id, kind, None if kind is RequestKind.CUT else id, mode))
        opened = [epoch for epoch, request in world.supervisor.requests.open.items() if request.id == id]
        if must_complete:
            self.must_complete.update((world.supervisor.attempt, epoch) for epoch in opened)
        return True

    def _check_requests(self) -> None:
        """Check, after a tick, that each request without an answer has an open epoch or a reason to wait."""
        coordinator, requests = self.world.coordinator, self.world.supervisor.requests
        if coordinator is None or len(coordinator.ended) == len(coordinator.deployment.tasks):
            return  # the final cut answers them
        if coordinator.final is not None:
            return
        lost = [str(request) for epoch, request in requests.open.items() if epoch not in coordinator.open]
        if not any(cut.mode in (Mode.DRAIN, Mode.BETWEEN_ROUNDS) for cut in coordinator.open.values()):
            now_ms, retry_at_ms = self.world.now_ms, coordinator.retry_at_ms
            lost += [str(request) for id, request in requests.waiting.items() if now_ms >= retry_at_ms.get(id, 0)]
        if lost:
            raise RuntimeError(f"nobody works on {', '.join(lost)}")


def _damaged(payload: bytes) -> bytes:
    """A well-formed payload with other records: a receiver that does not verify it decodes it without an error."""
    batch = decode(payload)
    records = as_records(batch.records)
    return encode(Batch([*records, *records], 0))

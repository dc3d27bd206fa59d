"""A seeded schedule: it picks what happens next, and what goes wrong.

Two phases. Safety: everything may go wrong, and nothing wrong may come of it. Liveness: faults stop, nothing is slow
any more, nothing waits for a timeout, and the run must finish within a budget of steps.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.batch import Batch, decode, encode
from engine.columns import as_records
from engine.simulation.record import Violation
from engine.simulation.world import Happening, World
from graphs.ids import Attempt, ChannelId, Epoch
from recovery.effects import Decline
from recovery.errors import ChannelIntegrityError
from recovery.messages import Data, Mode
from recovery.orders import AppendEntry
from recovery.rounds import Phase

LIVE_TICK_SHARE = 0.02
NEVER_MS = 10**9
LAGGING = (0.1, 0.03, 0.01)
SPEEDS = (1.0, 1.0, 1.0, 0.3, 0.03)


@dataclass(frozen=True)
class FaultPlan:
    """How many of each may happen in one run; whether each does, and when, is drawn."""

    crashes: int = 3
    coordinator_deaths: int = 1
    transport: int = 1
    write_failures: int = 2
    lost_reports: int = 2
    aborts: int = 3
    savepoints: int = 2
    zombies: bool = True
    rescale_to: int | None = None

    @staticmethod
    def none() -> FaultPlan:
        """A run in which nothing goes wrong."""
        return FaultPlan(0, 0, 0, 0, 0, 0, 0, zombies=False)


@dataclass
class Outcome:
    """What one schedule came to."""

    seed: int
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])
    story: list[Happening] = field(default_factory=list[Happening])


class Schedule:
    """Drives one world through one schedule."""

    def __init__(self, world: World, seed: int, plan: FaultPlan, steps_safe: int, steps_live: int) -> None:
        self.world = world
        self.rng = random.Random(seed)
        self.plan = plan
        # Where faults stop early, the liveness of a run that has hardly begun is seen too.
        self.steps_safe = steps_safe if self.rng.random() < 0.6 else self.rng.choice((0, 60, 200))
        self.steps_live = steps_live
        self.outcome = Outcome(seed)
        self.speeds: dict[Any, float] = {}
        self.patience = self.rng.choice((2, 4, 12))
        self.loops_lag = self.rng.random() < 0.7
        self.waits_for_cut = self.rng.choice(("not", "any", "own"))
        self.has_rounds = any(task.iteration is not None for task in world.deployment.tasks.values())
        self.tick_share = self.rng.choice((0.02, 0.05, 0.1, 0.2))
        self.left = {
            "crash": self.rng.randint(0, plan.crashes),
            "kill_coordinator": self.rng.randint(0, plan.coordinator_deaths) if self.rng.random() < 0.3 else 0,
            "transport": plan.transport if self.rng.random() < 0.15 else 0,
            "fail_write": self.rng.randint(0, plan.write_failures),
            "lose_report": self.rng.randint(0, plan.lost_reports) if self.rng.random() < 0.5 else 0,
            "decline": self.rng.randint(0, plan.aborts),
            "savepoint": self.rng.randint(0, plan.savepoints),
            "late_savepoint": self.rng.randint(0, plan.savepoints),
        }
        self.faults: dict[str, Callable[[], bool]] = {
            "crash": self._crash,
            "kill_coordinator": self._kill_coordinator,
            "transport": self._disturb_transport,
            "fail_write": self._fail_write,
            "lose_report": self._lose_report,
            "decline": self._decline,
            "savepoint": self._savepoint,
        }
        self.disturbed: set[Attempt] = set()
        self.must_complete: set[tuple[Attempt, Epoch]] = set()

    def run(self) -> Outcome:
        """Both phases; violations of the protocol that show at once are in the outcome."""
        try:
            self._run_phase(self.steps_safe, is_live=False)
            if not self.world.is_over:
                self._begin_liveness()
                self._run_phase(self.steps_live, is_live=True)
        except (RuntimeError, LookupError, ValueError) as error:
            self.outcome.violations.append(Violation("the protocol was broken", f"{type(error).__name__}: {error}"))
            return self.outcome
        if self.world.failure is not None:
            self.outcome.violations.append(Violation("the run failed", self.world.failure))
        elif not self.world.is_over:
            self.outcome.violations.append(
                Violation("the run does not end", f"not finished {self.steps_live} steps after the last fault")
            )
        return self.outcome

    def _run_phase(self, steps: int, *, is_live: bool) -> None:
        world, rng, story = self.world, self.rng, self.outcome.story
        for _ in range(steps):
            if world.is_over:
                return
            self.outcome.steps += 1
            if not is_live and rng.random() < 0.04:
                self._inject()
            if self.left["late_savepoint"] and rng.random() < 0.05 and self._savepoint_in_rounds(is_live):
                self.left["late_savepoint"] -= 1
            event = self._pick(is_live)
            story.append(event)
            if event[0] == "report":
                self._check_decline(event[1])
            try:
                world.apply(event)
            except ChannelIntegrityError as error:
                self._recover(event, error)

    def _begin_liveness(self) -> None:
        """From here on nothing may wait for a timeout: what is open is given up once, and what begins must complete."""
        world = self.world
        world.options.snapshots = replace(world.options.snapshots, timeout_ms=NEVER_MS)
        coordinator = world.coordinator
        if coordinator is None or coordinator.final is not None:
            return
        coordinator.options = world.options.snapshots
        mode = world.options.snapshots.mode
        world.obey(coordinator.request(mode, world.now_ms))
        task = next(iter(world.deployment.tasks))
        for epoch in sorted(coordinator.open):
            world.obey(coordinator.on_decline(task, coordinator.attempt, epoch, "faults are over", world.now_ms))
            if world.coordinator is not coordinator:
                return

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
        event = rng.choice(events)
        if not is_live:
            for _ in range(self.patience):
                if rng.random() < self._speed(event):
                    break
                event = rng.choice(events)
        return event

    def _speed(self, event: Happening) -> float:
        key = event[:2] if event[0] != "report" else event[:1]
        speed = self.speeds.get(key)
        if speed is None:
            is_back = self.loops_lag and event[0] in ("receive", "take") and self._is_back(event[-1])
            speed = self.speeds[key] = self.rng.choice(LAGGING if is_back else SPEEDS)
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

    def _apply(self, event: Happening) -> None:
        self.outcome.story.append(event)
        self.world.apply(event)

    def _crash(self) -> bool:
        candidates = sorted({*self.world.hosts, *self.world.unrestored})
        if not candidates or not self._has_waited():
            return False
        busy = [task for task, host in self.world.hosts.items() if host.captures or host.core.logs.epochs]
        if busy and self.rng.random() < 0.5:
            candidates = sorted(busy)
        count = 1 if self.rng.random() < 0.8 else min(2, len(candidates))
        self._apply(("crash", tuple(self.rng.sample(candidates, count))))
        return True

    def _has_waited(self) -> bool:
        """Whether there is the cut that crashes wait for: any, or one that the attempt has taken itself."""
        cuts = self.world.record.cuts
        if self.waits_for_cut == "not" or not cuts:
            return self.waits_for_cut == "not"
        return self.waits_for_cut == "any" or cuts[max(cuts)].attempt == self.world.supervisor.attempt

    def _notice(self) -> Happening:
        self._keep_zombies()
        if self.plan.rescale_to is not None and self.rng.random() < 0.5:
            self.world.wanted_parallelism = self.plan.rescale_to
        return ("notice",)

    def _recover(self, event: Happening, error: ChannelIntegrityError) -> None:
        """A disturbed channel is found out: its attempt is over. Undisturbed, the error is the protocol's own."""
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
        if host.is_source and not host.core.is_ending and not host.core.ended and not host.runtime.exhausted:
            events.append(("produce",))
        events += [("write", epoch) for epoch in host.writes if epoch in host.encoded]
        events += [("encode", epoch) for epoch in host.captures if epoch not in host.encoded]
        if host.orders:
            events.append(("order",))
        return ("zombie", index, self.rng.choice(events)) if events else None

    def _kill_coordinator(self) -> bool:
        if self.world.coordinator is None:
            return False
        self._keep_zombies()
        self._apply(("kill_coordinator",))
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
        writes = [("fail_write", t, e) for t, h in self.world.hosts.items() for e in h.writes if e in h.encoded]
        manifests = [("fail_append",) for append in self.world.appends if _is_manifest(append)]
        events: list[Happening] = [*writes, *manifests]
        if not events:
            return False
        self._apply(self.rng.choice(events))
        return True

    def _lose_report(self) -> bool:
        if not self.world.reports:
            return False
        self._apply(("lose_report", self.rng.randrange(len(self.world.reports))))
        return True

    def _decline(self) -> bool:
        """An abort at any moment, as if some task had declined."""
        coordinator = self.world.coordinator
        if coordinator is None or not coordinator.open:
            return False
        epoch = self.rng.choice(sorted(coordinator.open))
        task = self.rng.choice(sorted(self.world.deployment.tasks))
        self.world.reports.append((self.world.supervisor.attempt, task, Decline(epoch, "by the schedule")))
        self.outcome.story.append(("decline", task, epoch))
        return True

    def _check_decline(self, report: int) -> None:
        """Nothing but an input that has not ended can stand in the way of a cut between two rounds."""
        attempt, _, effect = self.world.reports[report]
        if not isinstance(effect, Decline) or (attempt, effect.epoch) not in self.must_complete:
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
        """A cut between two rounds is asked for while there are rounds; any other when faults are over."""
        if not self.has_rounds:
            return is_live and self._savepoint()
        heads = [host.core.rounds for host in self.world.hosts.values() if host.core.task.iteration is not None]
        if not any(rounds is not None and rounds.phase is Phase.ROUND for rounds in heads):
            return False
        return self._savepoint(Mode.BETWEEN_ROUNDS)

    def _savepoint(self, mode: Mode | None = None) -> bool:
        coordinator = self.world.coordinator
        if coordinator is None or coordinator.final is not None:
            return False
        mode = mode or self.rng.choice((self.world.options.snapshots.mode, Mode.BETWEEN_ROUNDS))
        if mode is Mode.BETWEEN_ROUNDS and self._is_all_in_rounds():
            self.must_complete.add((coordinator.attempt, coordinator.next_epoch))
        self.outcome.story.append(("savepoint", mode.value))
        self.world.obey(coordinator.request(mode, self.world.now_ms, f"savepoint-{coordinator.next_epoch}"))
        return True


def _is_manifest(append: AppendEntry) -> bool:
    return hasattr(append.entry, "files")


def _damaged(payload: bytes) -> bytes:
    """Other records than were sent, in good order: a receiver that trusts them decodes them without a word."""
    batch = decode(payload)
    records = as_records(batch.records)
    return encode(Batch([*records, *records], 0))

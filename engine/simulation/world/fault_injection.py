"""Injects faults into a schedule: crashes, lost and damaged messages, a store that fails, requests that are aborted."""

from __future__ import annotations

import random

from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.batches.columns import Columns, concat
from backedge.engine.simulation.world.fault_plan import FaultPlan, Outcome
from backedge.engine.simulation.world.lossy_lines import LinedWorld
from backedge.engine.simulation.world.requested_cuts import RequestedCuts
from backedge.engine.simulation.world.simulated_store import CreateFault
from backedge.engine.simulation.world.world import Happening, World
from backedge.graphs.ids import Attempt, ChannelId, Epoch, TaskId
from backedge.recovery.protocol.chain_view import ChainView
from backedge.recovery.protocol.channels import Queued
from backedge.recovery.protocol.effects import Decline
from backedge.recovery.protocol.messages import Data, Mode, marker_in
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.protocol.protocol_errors import ChannelIntegrityError
from backedge.recovery.protocol.requests import Request, RequestKind
from backedge.recovery.protocol.supervisor import Stage

RESCALED_RUNS, RESCALED_STEPS, TASKS_MAX = 0.4, 0.03, 4
"""The share of runs that are rescaled while they run, and of their steps; the most tasks of an operator."""

GIVEN_UP_STEPS = 0.02
"""The share of the steps of a rescale's restore at which it turns out to be impossible."""

IN_VAIN = 0.25
"""How many of the runs that go back fail before a task of theirs has run."""

WOKEN_STEPS = 0.02
"""The share of the steps at which a supervisor wakes up that was taken for dead."""


class Faults:
    """The faults of one schedule.

    - left: how many faults of each kind may still happen. The method `_inject_KIND` makes one happen, if it can.
    - crash_steps: the steps at which crashes are due, the next one at the end. waits_for_cut: what they wait for,
      because before the first cut a crash only starts over.
    - disturbed: attempts whose messages were disturbed. gaps: those in which one was lost.
    - rescales: how often the run may still be rescaled while it runs.
    - cuts_with_request: for each cut, whether a marker in it requests a cut between two rounds.
    """

    def __init__(
        self,
        world: World,
        rng: random.Random,
        plan: FaultPlan,
        outcome: Outcome,
        requests: RequestedCuts,
        waits_for_cut: str,
    ) -> None:
        self.world = world
        self.rng = rng
        self.plan = plan
        self.outcome = outcome
        self.requests = requests
        self.waits_for_cut = waits_for_cut
        if plan.slow_compactions:
            self.waits_for_cut = random.Random(f"compactions {outcome.seed}").choice(("compaction", "compacted"))
        self.left = {
            "kill_coordinator": self.rng.randint(0, plan.coordinator_deaths) if self.rng.random() < 0.3 else 0,
            "transport": plan.transport if self.rng.random() < 0.15 else 0,
            "fail_write": self.rng.randint(0, plan.write_failures),
            "lose_report": self.rng.randint(0, plan.lost_reports) if self.rng.random() < 0.5 else 0,
            "decline": self.rng.randint(0, plan.aborts),
            "savepoint": self.rng.randint(0, plan.savepoints),
            "late_savepoint": self.rng.randint(0, 2 * plan.savepoints),
            "abort_request": self.rng.randint(0, plan.aborts) if requests.has_rounds else 0,
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
        self.crash_steps: list[int] = []
        self.disturbed: set[Attempt] = set()
        self.gaps: set[Attempt] = set()
        self.cuts_with_request: dict[Epoch, bool] = {}
        # A generator of its own: the schedules of runs that are not rescaled do not depend on these draws.
        self.rescaling = random.Random(f"rescale {outcome.seed}")
        is_rescaled = plan.rescales and self.rescaling.random() < RESCALED_RUNS
        self.replacing = random.Random(f"replace {outcome.seed}")
        self.sleeping = random.Random(f"sleep {outcome.seed}")
        self.failing = random.Random(f"fail in vain {outcome.seed}")
        self.goes_back_in_vain = False
        world.dies_after_stop = plan.coordinator_deaths > 0 and random.Random(f"stop {outcome.seed}").random() < 0.5
        self.rescales = self.rescaling.randint(1, plan.rescales) if is_rescaled else 0

    def plan_crashes(self, within: int) -> None:
        """Draw the steps of the crashes, among the first `within`."""
        self.crash_steps = sorted((self.rng.randrange(within) for _ in range(self.plan.crashes)), reverse=True)

    def inject(self) -> None:
        kinds = [kind for kind, left in self.left.items() if left and hasattr(self, f"_inject_{kind}")]
        if not kinds:
            return
        kind = self.rng.choice(kinds)
        if getattr(self, f"_inject_{kind}")():
            self.left[kind] -= 1
            self.outcome.faults[kind] += 1

    def give_up_rescale_if_due(self) -> None:
        """Have a function of the user's raise while the tasks of a rescale are restored."""
        supervisor = self.world.supervisor
        if supervisor.stage is Stage.RESTORING and supervisor.chain.sizes and self.rescaling.random() < GIVEN_UP_STEPS:
            self.outcome.faults["unrestorable"] += 1
            self.apply(("unrestorable",))

    def rescale_if_due(self) -> None:
        """Ask for another number of tasks. A process may die soon: before the cut, while tasks restore, or after."""
        world, rng = self.world, self.rescaling
        if not self.rescales or rng.random() >= RESCALED_STEPS:
            return
        self.rescales -= 1
        sizes = list(world.placement.deployment(rng.randint(1, TASKS_MAX)).parallelism.items())
        # Some, but seldom all: rescales of several clients name different operators.
        asked = tuple(sorted(rng.sample(sizes, rng.randint(1, len(sizes)))))
        self.outcome.story.append(("rescale", dict(asked)))
        self.outcome.faults["rescale"] += 1
        world.ask(Request(f"rescale-{self.rescales}", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, asked))
        if self.crash_steps and rng.random() < 0.5:
            self.crash_steps[-1] = self.outcome.steps + rng.randrange(1, 150)

    def crash_if_due(self) -> None:
        if self.crash_steps and self.outcome.steps > self.crash_steps[-1] and self._crash():
            self.crash_steps.pop()
            self.outcome.faults["crash"] += 1

    def apply(self, event: Happening) -> None:
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
        self.apply(("crash", tuple(self.rng.sample(candidates, count))))
        return True

    def _has_waited(self) -> bool:
        """Whether there is what crashes wait for: a compaction, any cut, or one that the current attempt has taken."""
        cuts = self.world.record.cuts
        if self.waits_for_cut == "compaction":
            return self._is_compacting()
        if self.waits_for_cut == "compacted":
            return self.world.counts["cuts_with_compactions"] > 0
        if self.waits_for_cut == "not" or not cuts:
            return self.waits_for_cut == "not"
        return self.waits_for_cut == "any" or cuts[max(cuts)].attempt == self.world.supervisor.attempt

    def _is_compacting(self) -> bool:
        return bool(self.world.compactions or self.world.compaction_reports)

    def notice(self) -> Happening:
        self._keep_zombies()
        if self.plan.rescale_to is not None and self.rng.random() < 0.5:
            self.world.wanted_parallelism = self.plan.rescale_to
        return ("notice",)

    def recover(self, event: Happening, error: ChannelIntegrityError) -> None:
        """End the attempt of a disturbed channel: the damage is detected. Otherwise the protocol is at fault."""
        attempt = self.world.hosts[event[1] if isinstance(event[1], TaskId) else event[1].receiver].attempt
        if attempt not in self.disturbed:
            raise error
        self.outcome.story.append(("found", str(error)))
        if attempt == self.world.supervisor.attempt:
            self.apply(("notice",))

    def die(self, event: Happening, error: Exception) -> None:
        """A process dies of what a disturbed channel delivered, before digests are compared.

        An error in any other attempt is raised again: no fault explains it.
        """
        host = self.world.hosts.get(event[1])
        if host is None or host.attempt not in self.disturbed:
            raise error
        self.outcome.faults["death_by_damage"] += 1
        self.outcome.story.append(("found", f"{type(error).__name__}: {error}"))
        self.apply(("crash", (host.id,)))

    def _keep_zombies(self) -> None:
        if self.plan.zombies and self.rng.random() < 0.4:
            hosts = [host for host in self.world.hosts.values() if host.is_started]
            self.world.zombies = self.rng.sample(hosts, min(len(hosts), 2))
            for host in self.world.zombies:
                del self.world.hosts[host.id]
                self.world.dead.add(host.id)
            self.outcome.faults["zombie"] += len(self.world.zombies)

    def zombie_event(self) -> Happening | None:
        index = self.rng.randrange(len(self.world.zombies))
        host = self.world.zombies[index]
        events: list[Happening] = [("take", channel) for channel in host.core.ready()]
        if host.core.life.takes and host.runtime.has_unread:
            events.append(("produce",))
        events += [("write", epoch) for epoch in host.writes]
        events += [("encode", epoch) for epoch in host.driver.snapshots.to_encode()]
        events += [("answer", call) for what, call in host.calls() if what == "answered"]
        if host.unwritten:
            events.append(("write_answers",))
        if host.orders:
            events.append(("order",))
        return ("zombie", index, self.rng.choice(events)) if events else None

    def _inject_kill_coordinator(self) -> bool:
        if self.world.coordinator is None:
            return False
        self._keep_zombies()
        is_asleep = self.sleeping.random() < 0.5
        self.outcome.faults["stop_coordinator"] += is_asleep
        self.apply(("stop_coordinator",) if is_asleep else ("kill_coordinator",))
        return True

    def wake_if_due(self) -> None:
        """Let a supervisor go on that was taken for dead. It may find some of its tasks dead."""
        is_asleep = any(not sleeper.is_awake for sleeper in self.world.sleepers)
        if is_asleep and self.sleeping.random() < WOKEN_STEPS:
            self.apply(("wake_coordinator", self.sleeping.random() < 0.5))

    def _inject_go_back(self) -> bool:
        """Another run continues from an older cut. It may fail soon, before it has a cut of its own."""
        # Read the chain anew: the run that is replaced may not know of an entry that has landed late.
        reader = ChainView("a reader")
        for number, entry in self.world.store.chain:
            reader.learn(number, entry)
        older = reader.cuts[:-1]
        if self.world.coordinator is None or not older:
            return False
        last = reader.kept[reader.cuts[-1]]
        if not last.transactions & self.world.services.store.prepared.keys() and self.rng.random() < 0.9:
            return False  # wait for a cut whose output is not published yet
        self._keep_zombies()
        epoch = self.rng.choice(older)
        if self.replacing.random() < 0.5:
            self.apply(("replace", epoch, self.replacing.random() < 0.5))
        else:
            self.apply(("go_back", epoch))
            self.goes_back_in_vain = self.failing.random() < IN_VAIN
        if self.rng.random() < 0.5:
            self.crash_steps.append(self.outcome.steps + self.rng.randrange(1, 30))
        return True

    def fail_in_vain_if_due(self) -> None:
        """Have a run that goes back fail for good before a task of it has run."""
        supervisor = self.world.supervisor
        if not self.goes_back_in_vain or supervisor.stage is not Stage.RESTORING:
            return
        self.goes_back_in_vain = False
        # A successor does not know whether a task of its predecessor ran.
        is_first = supervisor.came_from is not None and not supervisor.has_run
        if is_first and supervisor.chain.replaces is None and not self.world.siblings:
            self._keep_zombies()
            self.outcome.faults["fail_in_vain"] += 1
            self.apply(("fail_in_vain",))

    def _inject_lose_append_reply(self) -> bool:
        return self._disturb_append("lose_append_reply")

    def _inject_hang_append(self) -> bool:
        return self._disturb_append("hang_append")

    def _inject_savepoint(self) -> bool:
        return self.requests.savepoint()

    def _inject_stop(self) -> bool:
        return self.requests.stop()

    def _disturb_append(self, kind: str) -> bool:
        if self.world.pending is None:
            return False
        self.apply((kind,))
        if self.rng.random() < 0.5 and self.world.hosts:
            # The attempt fails before it is known whether the entry exists.
            self.outcome.faults["failure_with_unknown_entry"] += 1
            self.apply(("crash", (self.rng.choice(sorted(self.world.hosts)),)))
            self.apply(self.notice())
        elif self.rng.random() < 0.5:
            self.outcome.faults["failed_repetition"] += 1
            self.world.store.create_fault = CreateFault.FAILS
        return True

    def _inject_fail_claim(self) -> bool:
        """The start of an attempt cannot be recorded. If its outcome was unknown before, it is unknown still."""
        pending = self.world.pending
        if pending is None or not isinstance(pending.entry, AttemptStart):
            return False
        self.apply(("fail_append",))
        return True

    def _inject_unreadable_chain(self) -> bool:
        """The chain cannot be read when it is read next."""
        self.outcome.story.append(("unreadable", "the chain"))
        self.world.store.unreadable_chains += 1
        return True

    def _inject_unreadable_cut(self) -> bool:
        """A cut cannot be read when the next one is restored."""
        self.outcome.story.append(("unreadable", "a cut"))
        self.world.store.unreadable_cuts += 1
        return True

    def _inject_transport(self) -> bool:
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

    def _inject_fail_write(self) -> bool:
        writes = [("fail_write", t, e) for t, h in self.world.hosts.items() for e in h.writes]
        pending = self.world.pending
        is_manifest = pending is not None and isinstance(pending.entry, Manifest)
        events: list[Happening] = [*writes, ("fail_append",)] if is_manifest else [*writes]
        if not events:
            return False
        self.apply(self.rng.choice(events))
        return True

    def _inject_compaction(self) -> bool:
        """The files are not put into one, or nobody is told."""
        if not self.world.compactions:
            return False
        kind = self.rng.choice(("fail_compaction", "lose_compaction"))
        self.apply((kind, self.rng.randrange(len(self.world.compactions))))
        self.outcome.faults[kind] += 1
        return True

    def _inject_lose_report(self) -> bool:
        if not self.world.reports:
            return False
        self.apply(("lose_report", self.rng.randrange(len(self.world.reports))))
        return True

    def _inject_lose_credit(self) -> bool:
        waiting = [(channel, credits) for channel, credits in self.world.credits.items() if credits]
        if not waiting:
            return False
        channel, credits = self.rng.choice(waiting)
        self.apply(("lose_credit", channel, self.rng.randrange(len(credits))))
        return True

    def _inject_window(self) -> bool:
        windows = self.world.windows()
        if not windows:
            return False
        self.apply(("window", self.rng.choice(sorted(windows)), self.rng.choice((1, 1, 300, 1_000))))
        return True

    def _inject_line(self) -> bool:
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

    def _inject_decline(self) -> bool:
        """Abort an epoch at any moment, as if some task had declined it."""
        coordinator = self.world.coordinator
        if coordinator is None or not coordinator.open:
            return False
        epoch = self.rng.choice(sorted(coordinator.open))
        task = self.rng.choice(sorted(self.world.deployment.tasks))
        self.world.report(self.world.supervisor.attempt, task, Decline(epoch, "by the schedule"))
        self.outcome.story.append(("decline", task, epoch))
        return True

    def leave_request_behind(self) -> None:
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
                decline = Decline(carried[0], "by the schedule")
                world.obey(coordinator.on_report(task, coordinator.attempt, decline, world.now_ms))
                if world.coordinator is coordinator:
                    world.begin_epoch(world.options.snapshots.mode)
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


def _damaged(payload: bytes) -> bytes:
    """A well-formed payload with other records: a receiver that does not verify it decodes it without an error.

    Each record comes twice, as two objects: functions may change what they get, and a shared one would break them.
    """
    records = decode(payload).records
    twice = concat([records, records]) if isinstance(records, Columns) else [*records, *decode(payload).records]
    return encode(Batch(twice, 0))

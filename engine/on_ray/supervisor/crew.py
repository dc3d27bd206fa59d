"""The actors of a run: started, found again by name, replaced when they die.

An actor that dies is replaced by a spare, which is already running, or by a new one. The outcome of an actor's part in
an attempt is reported through `on_over`, from another thread.

An actor may have to wait for a machine, which an autoscaling cluster takes minutes to start. Meanwhile `on_wait` is
called about once a second with the waiting time and the actor; an exception that it raises ends the wait.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.cluster import Needs
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter
from backedge.engine.on_ray.supervisor.deaths import WatchedProcess, tell_death
from backedge.engine.on_ray.supervisor.silence import Doing
from backedge.engine.on_ray.transport.control_messages import Arrival, Begin, Meeting, Outcome
from backedge.engine.on_ray.transport.mailbox import Keys
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt
from backedge.graphs.task_errors import describe
from backedge.recovery.protocol.protocol_errors import FencedError

OnOver = Callable[[str, Any, Outcome], None]
OnWait = Callable[[float, str], None]
PLACE_TIMEOUT_S = 600.0
LOOK_S = 1.0


class CrewError(RuntimeError):
    """An actor could not be started, or died before it took part."""


class NoRoomError(RuntimeError):
    """The cluster has no room for an actor."""


def needs_of(deployment: Deployment) -> dict[str, Needs]:
    """The actors of a deployment, and the resources that each needs."""
    found: dict[str, Needs] = {}
    for task in deployment.tasks.values():
        wanted = deployment.plan.operators[task.operators[0]].resources
        custom = tuple(sorted((wanted.custom or {}).items()))
        tasks = (*found[task.actor].tasks, str(task.id)) if task.actor in found else (str(task.id),)
        found[task.actor] = Needs(wanted.num_cpus or 0, wanted.num_gpus or 0, custom, tasks)
    return found


class Crew:
    """The actors of one run.

    - arrivals: what each living actor has said of its process and its mailbox.
    - is_superseded: a successor may lead the run, so the first actors are left to it, and to the process that has
      started them.
    - _actors: the handles of the actors, by name. _needs: the resources that the deployment wants for each.
    - _spares: handles of running actors without a name. _spares_wanted: how many there should be.
    - _prepared: actors for a rescale, started before the run is interrupted.
    - _taking_part: the outcome of each actor's part in the latest attempt, pending or done.
    - _planned: the actors whose processes a planned fault kills.
    - _processes: the processes of actors on this host, whose exit status can be read after their end.
    """

    def __init__(self, starter: ActorStarter, spares: int, on_over: OnOver, on_wait: OnWait) -> None:
        self._starter = starter
        self._job = starter.job
        self._spares_wanted = spares
        self._on_over = on_over
        self._on_wait = on_wait
        self._actors: dict[str, Any] = dict(starter.first)
        self._needs: Mapping[str, Needs] = {}
        self._spares: list[Any] = []
        self._prepared: dict[str, Any] = {}
        self._taking_part: dict[str, Future[Outcome]] = {}
        self.arrivals: dict[str, Arrival] = {}
        self.is_superseded = False
        self._processes: dict[str, WatchedProcess] = {}
        self._planned: set[str] = set()

    def fill(self, needs: Mapping[str, Needs]) -> None:
        """Provide an actor for each name: existing ones stay, spares replace those that died."""
        self._needs = needs
        for name in self._actors.keys() - needs.keys():
            self.dismiss(name)
        for name, wanted in needs.items():
            if name in self._actors:
                continue
            if name in self._prepared:
                self._actors[name] = self._prepared.pop(name)
                continue
            spare = self._living_spare() if wanted.are_none else None
            self._actors[name] = spare or self._starter.start(name, wanted)

    def _living_spare(self) -> cluster.Actor | None:
        """A spare that is not known to be dead: a host takes its spares with it, and each would fail an attempt."""
        while self._spares:
            spare = self._spares.pop()
            answer = spare.look.remote()
            if not cluster.is_over(answer, LOOK_S) or cluster.succeeded(answer):
                return spare
            cluster.kill(spare)
        return None

    def prepare(self, needs: Mapping[str, Needs]) -> dict[str, Future[Doing]]:
        """Start the actors that are missing for a rescale, and leave the run alone meanwhile.

        Returns an answer of each, which comes when its process is there.
        """
        for name, wanted in needs.items():
            if name not in self._actors and name not in self._prepared:
                self._prepared[name] = self._starter.start(name, wanted)
        return {name: cluster.future(self._prepared[name].look.remote()) for name in needs if name in self._prepared}

    def lacking_prepared(self, name: str, needs: Needs) -> str:
        """What a prepared actor waits for."""
        return self._lacks(f"actor {self._job}/{name}", needs)

    def drop_prepared(self) -> None:
        """End the prepared actors that no attempt has used."""
        for actor in self._prepared.values():
            cluster.kill(actor)
        self._prepared.clear()

    def fill_spares(self) -> None:
        """Start the spares, once no other actor waits for a machine."""
        while len(self._spares) < self._spares_wanted:
            self._spares.append(self._starter.start(f"spare-{self._starter.started}", Needs()))

    def arrive(self, attempt: Attempt, keys: Keys, folder: Path) -> dict[str, Arrival]:
        """Let all actors open their mailboxes for an attempt, reachable over the network if they are on several hosts.

        `folder` is where those on this host have their sockets.

        Waits for every actor, even if some have died: a host takes all its actors with it, which is one failure; and an
        actor that is asked again must not open two mailboxes at a time.
        """
        on_network = cluster.machines() > 1
        self._have_arrive(Meeting(attempt, keys, on_network, cluster.place(), folder))
        if not on_network and cluster.machines() > 1:
            # A machine has joined meanwhile, and some actors may be on it.
            self._have_arrive(Meeting(attempt, keys, True, cluster.place(), folder))
        return dict(self.arrivals)

    def _have_arrive(self, meeting: Meeting) -> None:
        refs = {name: actor.arrive.remote(meeting) for name, actor in self._actors.items()}
        try:
            self._wait_for(refs)
        finally:
            # Also after a wait that ended early, because stopped processes must be ended, too.
            dead = self._note_arrivals(refs)
        if dead:
            raise CrewError("; ".join(dead))

    def _note_arrivals(self, refs: Mapping[str, Any]) -> list[str]:
        """Record the arrivals; return a message about each dead actor."""
        waiting = cluster.unanswered(list(refs.values()), 0)
        dead: list[str] = []
        for name in [name for name, ref in refs.items() if ref not in waiting]:
            try:
                self._note_arrival(name, cluster.get(refs[name]))
            except cluster.RayError as error:
                # Another supervisor has them in a later attempt: this one has stood still.
                self.is_superseded |= isinstance(getattr(error, "cause", None), FencedError)
                self.lose(name)
                dead.append(f"actor {self._job}/{name} could not be started: {cluster.first_line(error)}")
        return dead

    def _note_arrival(self, name: str, arrival: Arrival) -> None:
        self.arrivals[name] = arrival
        if name not in self._processes and arrival.place == cluster.place():
            self._processes[name] = WatchedProcess(arrival.pid)

    def _wait_for(self, refs: Mapping[str, Any]) -> None:
        """Wait until each has arrived or is dead."""
        began_s = time.monotonic()
        while waiting := cluster.unanswered(list(refs.values()), LOOK_S):
            waited_s = time.monotonic() - began_s
            lacking = self._lacking([name for name, ref in refs.items() if ref in waiting])
            if waited_s >= PLACE_TIMEOUT_S:
                raise NoRoomError(f"given up after {waited_s:.0f} s: {lacking}")
            self._on_wait(waited_s, lacking)

    def _lacking(self, names: Sequence[str]) -> str:
        """The resources that these actors wait for."""
        actors = f"actor {self._job}/{names[0]}" + (f", of {len(names)} that wait," if len(names) > 1 else "")
        return self._lacks(actors, self._needs[names[0]])

    def _lacks(self, actors: str, needs: Needs) -> str:
        if needs.are_none:
            return f"{actors} has no process yet: Ray is slow to start it, or has no memory left"
        return f"{actors} needs a machine with {needs.told()}: add one to the cluster, or ask for less at its operator"

    def begin(self, name: str, begin: Begin) -> None:
        future: Future[Outcome] = cluster.future(self._actors[name].take_part.remote(begin))
        self._taking_part[name] = future
        future.add_done_callback(lambda done: self._on_done(name, begin.attempt, done))

    def _on_done(self, name: str, attempt: Any, done: Future[Outcome]) -> None:
        self._on_over(name, attempt, self._outcome(name, done))

    def _outcome(self, name: str, done: Future[Outcome]) -> Outcome:
        try:
            return done.result()
        except cluster.RayError as error:
            return _outcome_of(error) or Outcome("died", self._told_death(name, error))

    def take_outcomes(self) -> dict[str, Outcome]:
        """How actors have ended their parts in the latest attempt, once for each part that is over.

        `on_over` is called with the same, but perhaps a moment later.
        """
        over = [name for name, future in self._taking_part.items() if future.done()]
        return {name: self._outcome(name, self._taking_part.pop(name)) for name in over}

    def _told_death(self, name: str, error: cluster.RayError) -> str:
        process = self._processes.get(name)
        status = None if process is None else process.status()
        is_planned = name in self._planned
        told = tell_death(self.arrivals.get(name), status, error, is_planned=is_planned)
        return f"the process of actor {name} died{told}"

    def on_planned_kill(self, name: str) -> None:
        """A planned fault is about to kill the process of this actor."""
        self._planned.add(name)

    def is_to_die(self, name: str) -> bool:
        """Whether a planned fault kills the process of this actor, whose death is not known yet."""
        return name in self._planned

    def look(self, name: str) -> Future[Doing] | None:
        """What an actor is doing, once its process answers; None if it is dead."""
        actor = self._actors.get(name)
        return None if actor is None else cluster.future(actor.look.remote())

    def taking_part(self) -> list[str]:
        """Actors whose part in an attempt is not over."""
        return [name for name, future in self._taking_part.items() if not future.done() and name in self._actors]

    def random_member(self, chance: random.Random) -> str | None:
        names = sorted(self.taking_part())
        return chance.choice(names) if names else None

    def lose(self, name: str) -> None:
        """This actor is dead, or cannot be reached; then nothing is left of it."""
        actor = self._actors.pop(name, None)
        if actor is not None and not self._is_anothers(name, actor):
            cluster.kill(actor)
        self._taking_part.pop(name, None)
        self._forget_process(name)

    def _is_anothers(self, name: str, actor: cluster.Actor) -> bool:
        return self.is_superseded and actor is self._starter.first.get(name)

    def dismiss(self, name: str) -> None:
        """End this actor, whatever it is doing."""
        actor = self._actors.pop(name, None)
        self._taking_part.pop(name, None)
        if actor is not None and self._is_anothers(name, actor):
            self._forget_process(name)
            return
        process = self._processes.get(name)
        if process is not None:
            # Ray asks the process to exit, which a stopped process does not notice.
            process.kill()
        if actor is not None:
            cluster.kill(actor)
        self._forget_process(name)

    def _forget_process(self, name: str) -> None:
        self.arrivals.pop(name, None)
        self._planned.discard(name)
        process = self._processes.pop(name, None)
        if process is not None:
            process.close()

    def dismiss_all(self) -> None:
        for name in list(self._actors):
            self.dismiss(name)
        for spare in self._spares:
            cluster.kill(spare)
        self._spares.clear()
        self.drop_prepared()


def _outcome_of(error: cluster.RayError) -> Outcome | None:
    """The outcome of an attempt whose actor could not begin it, for instance because it could not load its arguments.

    None if it has not raised: the process is gone.
    """
    cause: BaseException | None = getattr(error, "cause", None)
    return None if cause is None else Outcome("broken", f"{describe(cause)}:\n{error}")

"""Hosts the tasks of one actor, from attempt to attempt: healthy actors roll back in place."""

from __future__ import annotations

import gc
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from backedge.engine.io.files.services import FileServices
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor.actor_loop import ActorLoop
from backedge.engine.on_ray.actor.labelled_output import label_output
from backedge.engine.on_ray.actor.shared_versions import SharedVersions
from backedge.engine.on_ray.actor.supervisor_watch import SupervisorWatch, end_with
from backedge.engine.on_ray.actor.task_memory import keep_freed_memory, prefer_huge_pages
from backedge.engine.on_ray.job_store import TasksInFolder, open_services, open_store
from backedge.engine.on_ray.supervisor.shared_constants import share_constants
from backedge.engine.on_ray.supervisor.silence import Doing, place_of
from backedge.engine.on_ray.transport.control_messages import SUPERVISOR, Arrival, Begin, Meeting, Outcome
from backedge.engine.on_ray.transport.mailbox import Mailbox
from backedge.engine.task.kept_inputs import Journal
from backedge.graphs.ids import Attempt, TaskId
from backedge.graphs.task_errors import describe, foreign_place
from backedge.graphs.versions import use_versions
from backedge.recovery.protocol.protocol_errors import FencedError
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.restore.plan import RestorePlan

GC_THRESHOLD = 100_000
SWITCH_S = 0.0005
LEAVE_LOOK_S = 0.05


def journals_of(begin: Begin, store: TasksInFolder | None) -> dict[TaskId, Journal]:
    """The journals of those tasks of an actor whose inputs are kept."""
    kept = [
        task.id
        for task in begin.deployment.tasks.values()
        if task.actor == begin.actor and not begin.options.keep_inputs.isdisjoint(task.operators)
    ]
    if store is None or not kept:
        return {}
    try:
        flow = store.inputs.keep_flow(
            cluster.pickled((begin.deployment, begin.options.seed, dict(begin.options.constants)))
        )
    except OSError as error:
        print(f"backedge: the inputs of {', '.join(map(str, kept))} are not kept: {error}", file=sys.stderr)
        return {}
    return {task: Journal(task, begin.attempt, begin.restored, store.inputs, flow) for task in kept}


def _outcome_of(error: Exception) -> Outcome:
    """What an error does that no rule foresees.

    What a source, sink or operator of others raises counts as the death of the process, and so does a disk or network
    that fails, or memory that is used up, for which a kernel may as well have killed it: a restore may succeed, and the
    run gives up after some of them. A mistake of ours would come again.
    """
    place = foreign_place(error)
    if place:
        return Outcome("failed", f"{describe(error)} ({place})")
    if isinstance(error, OSError | MemoryError):
        return Outcome("failed", describe(error))
    told = "".join(traceback.format_exception(error))
    return Outcome("broken", f"{describe(error)}, which is a mistake in Backedge; please report it with this:\n{told}")


class TaskHost:
    """A process that hosts tasks, or a spare that waits to replace one.

    - _mailbox: of the attempt `_met`, the last one in which its supervisor wants this process to take part.
    - _newest: the newest attempt for which a mailbox was opened. A supervisor that wakes up late asks for earlier ones.
    - _taking_part, _loop: held and set while it does.
    - _watch: watches the supervisor otherwise.
    - _versions: what its tasks publish and read, in the last attempt whose flow has versions.
    """

    def __init__(self, supervisor: cluster.RunSupervisor | None) -> None:
        if supervisor is not None:
            end_with(supervisor)
        self._mailbox: Mailbox | None = None
        self._met: Attempt | None = None
        self._newest = Attempt(0)
        self._taking_part = threading.Lock()
        self._loop: ActorLoop | None = None
        self._watch: SupervisorWatch | None = None
        self._thread = 0
        self._versions: SharedVersions | None = None
        # Records come and go by the hundred thousand and seldom refer to each other. Existing objects stay, and the
        # search for reference cycles among the others can wait for more of them (measured: 15 % of a loop's time).
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 20, 50)
        keep_freed_memory()
        # The thread that writes snapshots needs the lock many times per snapshot and must not wait 5 ms each time.
        sys.setswitchinterval(SWITCH_S)
        # Before the user's modules are loaded: a handler of `logging` keeps the output that it finds.
        label_output()

    def arrive(self, meeting: Meeting) -> Arrival:
        """Open the mailbox of the next attempt."""
        if meeting.attempt < self._newest:
            raise FencedError(f"attempt {meeting.attempt} is over: this process has met others for {self._newest}")
        self._newest = meeting.attempt
        if self._mailbox is not None:
            self._mailbox.close()
        place = cluster.place()
        folder = meeting.folder if place == meeting.place else None
        self._met = meeting.attempt
        self._mailbox = Mailbox(place, cluster.own_address() if meeting.on_network else None, meeting.keys, folder)
        return Arrival(os.getpid(), place, self._mailbox.address, cluster.own_address(), cluster.own_log())

    def look(self) -> Doing:
        """What this process is doing; called from another thread than the one that runs the tasks."""
        return place_of(self._thread)

    def leave(self) -> None:
        """Leave the attempt of a supervisor that has died, also if its order to take part is still to come."""
        self._met = None
        while not self._taking_part.acquire(timeout=LEAVE_LOOK_S):
            if self._loop is not None:
                self._loop.leave()
        self._taking_part.release()

    def offer(self, attempt: Attempt, of: str, number: int) -> Any:
        """Offer a version to a process of another host; called from another thread than the one that runs the tasks."""
        versions = self._versions
        return versions.offer(of, number) if versions is not None and versions.attempt == attempt else None

    def take_part(self, begin: Begin) -> Outcome:
        """Run the tasks of one attempt until it is over."""
        if begin.attempt != self._met:
            # Before the wait for the lock, too: it would keep a thread of this actor until the other attempt is over.
            return Outcome("stopped")
        with self._taking_part:
            if begin.attempt != self._met:
                return Outcome("stopped")
            try:
                return self._take_part(begin)
            except Exception as error:  # noqa: BLE001 - a source, sink or operator of others may raise anything
                return _outcome_of(error)
            finally:
                self._loop = None

    def _take_part(self, begin: Begin) -> Outcome:
        self._thread = threading.get_ident()
        prefer_huge_pages()
        if self._mailbox is None:
            raise RuntimeError("an actor can only take part in an attempt after `arrive`")
        if self._watch is not None:
            self._watch.end()
        options = begin.options
        cluster.adopt_script_classes()
        tasks = [str(task.id) for task in begin.deployment.tasks.values() if task.actor == begin.actor]
        cluster.name_process(f"{options.job}: {', '.join(tasks)}")
        share_constants(begin.deployment.plan.name, begin.constants)

        def make_services(deliver: Callable[[str, str, list[Any]], None]) -> FileServices:
            return open_services(options, deliver, begin.attempt)

        try:
            is_beside = begin.addresses[SUPERVISOR].place == cluster.place()
            store = open_store(options, begin.deployment.plan, is_beside)

            def take_back(plan: RestorePlan) -> TaskRestore:
                if store is None:
                    raise RuntimeError(f"task {plan.task} should restore its state, but the run keeps no snapshots")
                return store.take_back(plan, begin.files, begin.deployment)

            if begin.versions is not None:
                self._versions = SharedVersions(begin.attempt, begin.versions, store)
                use_versions(begin.deployment.plan.name, self._versions)
            journals = journals_of(begin, store)
            self._loop = ActorLoop(begin, self._mailbox, store, make_services, take_back, journals)
            return self._loop.run()
        finally:
            self._mailbox.close()
            self._watch = None if begin.leader is None else SupervisorWatch(begin.leader)

"""The actors of one attempt as threads of this process: real mailboxes and loops, and the test is the supervisor.

What is sent from one actor to another can be changed on its way, by message: so a transport that loses, doubles, swaps
or damages.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, NamedTuple

from backedge import Flow
from backedge.engine.on_ray.actor.actor_loop import ActorLoop
from backedge.engine.on_ray.job_store import open_services
from backedge.engine.on_ray.planned_faults import Kill
from backedge.engine.on_ray.transport.control_messages import (
    SUPERVISOR,
    Begin,
    Outcome,
    Published,
    Restored,
    Stop,
    TaskOptions,
    TaskReport,
)
from backedge.engine.on_ray.transport.frames import Kind, Message, pack_note, unpack_header
from backedge.engine.on_ray.transport.mailbox import Address, Keys, Link, Mailbox
from backedge.graphs.expansion import Actors, expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import TaskSnapshot
from backedge.recovery.protocol.answers import Known, Segments
from backedge.recovery.protocol.effects import Acknowledge, AcknowledgeEnd
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Complete, StartTasks, Trigger
from backedge.recovery.protocol.reliable_line import LineEnd, Said
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.restore.plan import RestorePlan
from backedge.recovery.stores.task_files import StateLayer
from tests.gates import HANG_S

Disturb = Callable[[Message], Iterable[Message]]


class InMemory(NamedTuple):
    """What stands for the files of a snapshot."""

    is_settled: bool
    layer: StateLayer = StateLayer(Attempt(1), None, Epoch(1), None, ())


class NoAnswers:
    """A journal that has none, and is given none."""

    job_id = "job"
    segments = Segments()

    def read(self, operator: str, restored: Epoch) -> tuple[Known, ...]:
        return ()


class Snapshots:
    """Keeps snapshots in memory; or fails, as often as it is told to."""

    def __init__(self, failures: int = 0, *, is_waited_for: bool = True) -> None:
        self.is_waited_for = is_waited_for
        self.kept: dict[tuple[TaskId, Epoch | None], TaskSnapshot] = {}
        self.discarded: list[tuple[TaskId, Epoch]] = []
        self.failures = failures

    answers = NoAnswers()

    def write_task(self, attempt: Attempt, epoch: Epoch | None, snapshot: TaskSnapshot) -> InMemory:
        if self.failures:
            self.failures -= 1
            raise OSError(28, "No space left on device")
        self.kept[snapshot.task, epoch] = snapshot
        return InMemory(self.is_waited_for)

    def discard_task(self, attempt: Attempt, epoch: Epoch, task: TaskId) -> None:
        self.discarded.append((task, epoch))


class Disturbed:
    """A link that does something to what it carries."""

    def __init__(self, link: Link, disturb: Disturb) -> None:
        self._link = link
        self._disturb = disturb

    def send(self, message: Message) -> None:
        for changed in self._disturb(message):
            self._link.send(changed)

    post = send

    def offer_memory(self) -> None:
        """Never: what it carries is to pass here."""


class Attending:
    """One attempt of a flow. Within `with` its actors run; leaving it stops them."""

    def __init__(
        self,
        flow: Flow,
        parallelism: int = 1,
        actors: Actors = "task",
        *,
        attempt: int = 1,
        parts: Mapping[TaskId, TaskRestore | None] | None = None,
        store: Any = None,
        options: TaskOptions | None = None,
        disturb: Mapping[tuple[str, str], Disturb] | None = None,
        kills: tuple[Kill, ...] = (),
        processed: Mapping[TaskId, int] | None = None,
        host: str | None = None,
        reroute: Callable[[str, str, Address], Address] | None = None,
    ) -> None:
        self.deployment = expand(flow.plan(), parallelism, actors)
        self.attempt = Attempt(attempt)
        self.names = sorted({task.actor for task in self.deployment.tasks.values()})
        self.reports: list[tuple[str, Any]] = []
        self.outcomes: dict[str, Outcome] = {}
        self.loops: dict[str, ActorLoop] = {}
        self._parts = parts or {}
        self._store = store
        self._options = options or TaskOptions()
        self._disturb = disturb or {}
        self._kills = kills
        self._processed = processed or {}
        self.lines = {name: LineEnd() for name in self.names}
        keys = Keys.new()
        self._reroute = reroute
        self._mailbox = Mailbox("here", host, keys)
        self._boxes = {name: Mailbox(name if host else "here", host, keys) for name in self.names}
        self._links = self._mailbox.links({name: box.address for name, box in self._boxes.items()})
        self._threads = {name: Thread(target=self._run, args=(name,), name=name) for name in self.names}

    def _run(self, name: str) -> None:
        box = self._boxes[name]
        addresses = {other: self._boxes[other].address for other in self.names if other != name}
        addresses[SUPERVISOR] = self._mailbox.address
        if self._reroute is not None:
            addresses = {other: self._reroute(name, other, address) for other, address in addresses.items()}
        own = [id for id, task in self.deployment.tasks.items() if task.actor == name]
        plans = {id: None if self._parts.get(id) is None else RestorePlan(id) for id in own}
        options, kills, processed = self._options, self._kills, self._processed
        begin = Begin(self.attempt, name, self.deployment, plans, addresses, options, kills=kills, processed=processed)
        plain_links = box.links

        def links(to: Mapping[str, Any], sender: int = 0, silence_ms: int | None = None) -> dict[str, Any]:
            found: dict[str, Any] = dict(plain_links(to, sender, silence_ms))
            return {other: self._way(link, name, other) for other, link in found.items()}

        box.links = links  # type: ignore[method-assign]
        try:
            make_services = partial(open_services, self._options, attempt=begin.attempt)
            loop = ActorLoop(begin, box, self._store, make_services, self._take_back)
            self.loops[name] = loop
            self.outcomes[name] = loop.run()
        finally:
            box.close()
            self._mailbox.wake()

    def _take_back(self, plan: RestorePlan) -> TaskRestore:
        restored = self._parts[plan.task]
        assert restored is not None
        return restored

    def _way(self, link: Link, sender: str, receiver: str) -> Any:
        disturb = self._disturb.get((sender, receiver))
        return link if disturb is None else Disturbed(link, disturb)

    def __enter__(self) -> Attending:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._mailbox.close()

    # -- what a supervisor does ----------------------------------------------------------------------------------

    def tell(self, actor: str, *orders: Any) -> None:
        line = self.lines[actor]
        self._send_orders(actor, [line.say(order, 0) for order in orders])

    def _send_orders(self, actor: str, said: list[Said]) -> None:
        note = (self.lines[actor].confirm(), said)
        self._links[actor].send(pack_note(Kind.ORDERS, self.attempt, note))

    def send(self, actor: str, message: Message) -> None:
        """Any message at all."""
        self._links[actor].send(message)

    def begin(self) -> None:
        """Wait until all are restored, then have them run."""
        self.until(lambda: len(self.restored()) == len(self.deployment.tasks), "all tasks are restored")
        self.start(*self.names)

    def start(self, *actors: str) -> None:
        for actor in actors:
            self.tell(actor, StartTasks(self.attempt))

    def trigger(self, epoch: int, mode: Mode = Mode.ALIGNED) -> None:
        """What a coordinator tells sources and heads."""
        for task in self.deployment.tasks.values():
            if task.is_source or task.is_head:
                self.tell(task.actor, Trigger(task.id, Epoch(epoch), mode))

    def order(self, task: TaskId, order: Any) -> None:
        self.tell(self.deployment.tasks[task].actor, order)

    def complete(self, epoch: int) -> None:
        """Have the sinks publish what they have prepared by then."""
        for (task, acknowledged), report in self.acknowledged().items():
            if acknowledged == epoch or acknowledged is None:
                self.order(task, Complete(task, Epoch(epoch), report.transactions))

    def stop(self) -> None:
        """Have everyone leave, and wait for that."""
        for name, thread in self._threads.items():
            if thread.is_alive():
                self.tell(name, Stop())
        for thread in self._threads.values():
            thread.join(HANG_S)
            assert not thread.is_alive(), f"actor {thread.name} does not stop"

    # -- what a supervisor hears ---------------------------------------------------------------------------------

    def hear(self, timeout_ms: int) -> None:
        for header, payload in self._mailbox.receive(512, timeout_ms):
            kind, attempt, _, _ = unpack_header(header)
            if kind == Kind.REPORT and attempt == self.attempt:
                actor, confirmed, said = pickle.loads(payload)
                self.lines[actor].on_confirmed(confirmed, 0)
                if said.number == 0 or self.lines[actor].accepts(said):
                    self.reports.append((actor, said.what))
        for actor, line in self.lines.items():
            if line.owes_confirmation():
                self._send_orders(actor, [])

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until it holds; a test that waits in vain says for what."""
        deadline_s = time.monotonic() + HANG_S
        while not holds():
            assert time.monotonic() < deadline_s, f"not in time: {what}; reports: {self.reports[-5:]}, {self.outcomes}"
            self.hear(timeout_ms=50)

    def restored(self) -> set[TaskId]:
        return {task for _, report in self.reports if isinstance(report, Restored) for task in report.tasks}

    def acknowledged(self) -> dict[tuple[TaskId, Epoch | None], Any]:
        """What each task has said of an epoch; of its end under None."""
        found: dict[tuple[TaskId, Epoch | None], Any] = {}
        for _, report in self.reports:
            if isinstance(report, TaskReport) and isinstance(report.effect, Acknowledge | AcknowledgeEnd):
                epoch = report.effect.epoch if isinstance(report.effect, Acknowledge) else None
                found[report.task, epoch] = report.effect.report
        return found

    def has_acknowledged(self, epoch: int) -> bool:
        """Whether each task has, or has ended."""
        known = self.acknowledged()
        return all((task, epoch) in known or (task, None) in known for task in self.deployment.tasks)

    def have_ended(self) -> bool:
        return all((task, None) in self.acknowledged() for task in self.deployment.tasks)

    def effects(self, kind: type[Any]) -> list[tuple[TaskId, Any]]:
        found = [report for _, report in self.reports if isinstance(report, TaskReport)]
        return [(report.task, report.effect) for report in found if isinstance(report.effect, kind)]

    def published(self) -> list[Any]:
        return [record for _, report in self.reports if isinstance(report, Published) for record in report.records]


def options(**changed: Any) -> TaskOptions:
    """Small batches, so that there is something to disturb."""
    return replace(TaskOptions(read_records_max=10, take_records_max=10), **changed)

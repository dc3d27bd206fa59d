"""The supervisor's lines to the actors of an attempt: members, orders and reports.

Orders to one actor leave together, once per turn. Like those of the actors, the mailbox is created for each attempt.
Orders and reports travel on lines (`recovery/protocol/reliable_line.py`), so none is lost if a connection breaks.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter
from backedge.engine.on_ray.supervisor.crew import Crew, OnWait, needs_of
from backedge.engine.on_ray.transport.control_messages import CONNECT_TIMEOUT_S, SUPERVISOR, Begin, Outcome, Stop
from backedge.engine.on_ray.transport.frames import Kind, pack_note, unpack_header
from backedge.engine.on_ray.transport.mailbox import Keys, Link, Mailbox
from backedge.engine.on_ray.transport.socket_folder import SocketFolder
from backedge.graphs.deployment import Deployment
from backedge.graphs.ids import Attempt, TaskId
from backedge.recovery.protocol.reliable_line import LineEnd, Said
from backedge.recovery.restore.plan import RestorePlan

MESSAGES_MAX = 512
STOP_TIMEOUT_S = 5.0
STOP_PAUSE_MS = 5
CONFIRM_MS = 100

Over = tuple[str, Attempt, Outcome]
"""An actor's part in an attempt is over."""


class Switchboard:
    """Connects one supervisor with its actors.

    - crew: the actors. attempt: the attempt that they take part in; 0 before the first.
    - overs: which actors have ended their part, and how; Ray's thread appends, the supervisor's takes.
    - stale: the number of messages that belong to earlier attempts.
    - _folder: has the sockets of all processes on this host that take part in the attempt.
    - _links: the connections to the mailboxes of the actors. _lines: the ends of the lines on them.
    - _orders: orders to send with the next `flush`. All three by actor, for one attempt.
    - _looked_at_ms: when orders were last looked through for unconfirmed ones.
    - _unheard: the actors that have not reported in this attempt, which they must have done by `_heard_by_s`.
    """

    def __init__(self, starter: ActorStarter, spares: int, on_wait: OnWait) -> None:
        self.crew = Crew(starter, spares, self._on_over, on_wait)
        self.attempt = Attempt(0)
        self.overs: deque[Over] = deque()
        self.stale = 0
        self._folder = SocketFolder()
        self._mailbox = self._opened(cluster.place(), None, Keys.new())
        self._links: dict[str, Link] = {}
        self._orders: dict[str, list[Said]] = {}
        self._lines: dict[str, LineEnd] = {}
        self._looked_at_ms = 0
        self._unheard: set[str] = set()
        self._heard_by_s = 0.0

    def begin(self, to_all: Begin) -> None:
        """Let all actors of a deployment take part in an attempt. `CrewError` if one cannot.

        Each gets `to_all` with its own name and the addresses of its peers, and with what its own tasks restore.
        """
        attempt, deployment = to_all.attempt, to_all.deployment
        self.attempt = attempt
        self._links = {}
        self._orders = {}
        self._lines = {}
        self._unheard = set()
        self.overs.clear()
        self.crew.fill(needs_of(deployment))
        keys = Keys.new()
        self._folder.remove()
        self._folder = SocketFolder()
        arrivals = self.crew.arrive(attempt, keys, self._folder.path)
        place = cluster.place()
        on_network = any(arrival.place != place for arrival in arrivals.values())
        self._mailbox.close()
        self._mailbox = self._opened(place, cluster.own_address() if on_network else None, keys)
        self._links = self._mailbox.links({name: arrival.address for name, arrival in arrivals.items()})
        self._lines = {name: LineEnd() for name in arrivals}
        peers = _peers(deployment)
        of_actors: dict[str, dict[TaskId, RestorePlan | None]] = {}
        for task, part in to_all.restores.items():
            of_actors.setdefault(deployment.tasks[task].actor, {})[task] = part
        for name in arrivals:
            addresses = {SUPERVISOR: self._mailbox.address}
            addresses |= {peer: arrivals[peer].address for peer in peers.get(name, ())}
            restores = of_actors.get(name, {})
            read = {task for part in restores.values() if part is not None for task in part.tasks}
            files = {task: to_all.files[task] for task in read}
            begin = replace(to_all, actor=name, restores=restores, addresses=addresses, files=files)
            self.crew.begin(name, begin)
        self._unheard = set(arrivals)
        self._heard_by_s = time.monotonic() + CONNECT_TIMEOUT_S

    def _opened(self, place: str, host: str | None, keys: Keys) -> Mailbox:
        """A mailbox that does not poll, because its messages are not urgent: the cores are for the tasks."""
        return Mailbox(place, host, keys, self._folder.path, stays_awake=False)

    def all_are_connected(self) -> None:
        self._folder.remove()

    def actors(self) -> list[str]:
        """The actors that take part."""
        return list(self._links)

    # -- sending -------------------------------------------------------------------------------------------------

    def tell(self, actor: str, order: Any) -> None:
        """Queue an order, to be sent with the next `flush`."""
        if actor in self._lines:
            self._orders.setdefault(actor, []).append(self._lines[actor].say(order, _now_ms()))

    def flush(self) -> None:
        """Send queued orders, and repeat those that were not confirmed in time."""
        orders, self._orders = self._orders, {}
        for actor, listed in orders.items():
            self._send(actor, listed)
        now_ms = _now_ms()
        if now_ms - self._looked_at_ms >= CONFIRM_MS:
            self._looked_at_ms = now_ms
            for actor, line in self._lines.items():
                again = line.due(now_ms)
                if again or line.owes_confirmation():
                    self._send(actor, again)

    def _send(self, actor: str, orders: list[Said]) -> None:
        confirmed = self._lines[actor].confirm()
        self._links[actor].send(pack_note(Kind.ORDERS, self.attempt, (confirmed, orders)))

    # -- receiving -----------------------------------------------------------------------------------------------

    def reports(self, timeout_ms: int = 0) -> Iterator[tuple[str, Any]]:
        """The reports of the actors of this attempt; waits until something arrives or the timeout is over."""
        for header, payload in self._mailbox.receive(MESSAGES_MAX, timeout_ms):
            kind, attempt, _, _ = unpack_header(header)
            if kind == Kind.REPORT and attempt == self.attempt:
                actor, confirmed, said = pickle.loads(payload)
                line = self._lines[actor]
                line.on_confirmed(confirmed, _now_ms())
                if said.number == 0 or line.accepts(said):
                    self._unheard.discard(actor)
                    yield actor, said.what
            elif kind != Kind.WAKE:
                self.stale += 1

    def silent(self) -> list[str]:
        """The actors that have had time to report in this attempt but have not."""
        return sorted(self._unheard) if self._unheard and time.monotonic() > self._heard_by_s else []

    def _on_over(self, actor: str, attempt: Any, outcome: Outcome) -> None:
        # Called from Ray's thread.
        self.overs.append((actor, attempt, outcome))
        self._mailbox.wake()

    # -- ending --------------------------------------------------------------------------------------------------

    def stop_all(self, timeout_s: float = STOP_TIMEOUT_S) -> Iterator[tuple[str, Any]]:
        """Let all actors leave the attempt; end those that do not in time. Returns their last reports."""
        for actor in self.crew.taking_part():
            self.tell(actor, Stop())
        self.flush()
        deadline_s = time.monotonic() + timeout_s
        while (left := self.crew.taking_part()) and time.monotonic() < deadline_s:
            yield from self.reports(STOP_PAUSE_MS)
            self.flush()
        for actor in left:
            self.crew.dismiss(actor)
        yield from self.reports()
        self.overs.clear()
        # Not from `overs`: Ray's thread may append the last one a moment later, and with it are the actor's counts.
        for actor, outcome in self.crew.take_outcomes().items():
            if outcome.end == "died":
                self.crew.lose(actor)
            elif outcome.counts.by_task:  # otherwise it raised, and has counted nothing
                yield actor, outcome

    def close(self) -> None:
        self.crew.dismiss_all()
        self._mailbox.close()
        self._folder.remove()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _peers(deployment: Deployment) -> dict[str, set[str]]:
    """For each actor, the actors with which it exchanges batches or credit."""
    peers: dict[str, set[str]] = {}
    for channel in deployment.channels.values():
        sender = deployment.tasks[channel.id.sender].actor
        receiver = deployment.tasks[channel.id.receiver].actor
        if sender != receiver:
            peers.setdefault(sender, set()).add(receiver)
            peers.setdefault(receiver, set()).add(sender)
    return peers

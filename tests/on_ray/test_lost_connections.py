"""A connection that is reset loses messages: between actors that fails the attempt, to the supervisor it does no harm.

The actors run in threads of this process and talk over TCP, through a proxy of ours that resets its connections.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

import pytest
from msgspec.structs import replace

from backedge import Collect, Flow, Generate
from backedge.engine.on_ray.transport.control_messages import SUPERVISOR
from backedge.engine.on_ray.transport.frames import Kind, pack_note
from backedge.engine.on_ray.transport.mailbox import Address, Keys, Mailbox
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.effects import AcknowledgeEnd
from tests.on_ray.in_process import Attending, Snapshots, options

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Stands in front of a TCP address; `reset` breaks the connections through it. Later ones are let through."""

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = host, int(port)
        self._listener = socket.create_server((HOST, 0))
        self._ends: list[socket.socket] = []
        self.connections = 0
        self.resets = 0
        self.address = f"tcp://{HOST}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
                self.connections += 1
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)

    def reset(self) -> None:
        """Break what is connected, with what is on its way."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.resets += len(ends) // 2

    def close(self) -> None:
        self._listener.close()
        self.reset()


class Proxies:
    """Proxies in front of the mailboxes of some actors, made when they are first needed."""

    def __init__(self, sender: str | None, receiver: str) -> None:
        self._sender, self._receiver = sender, receiver
        self.made: list[Proxy] = []

    def reroute(self, sender: str, receiver: str, address: Address) -> Address:
        if receiver != self._receiver or self._sender not in (None, sender) or address.remote is None:
            return address
        proxy = Proxy(address.remote)
        self.made.append(proxy)
        return replace(address, remote=proxy.address)

    def reset(self) -> None:
        for proxy in self.made:
            proxy.reset()

    def close(self) -> None:
        for proxy in self.made:
            proxy.close()

    @property
    def resets(self) -> int:
        return sum(proxy.resets for proxy in self.made)


def numbers(count: int | None) -> Flow:
    flow = Flow("numbers")
    flow.read(Generate(lambda number: number, count), name="numbers").rebalance().write(Collect(), name="done")
    return flow


@pytest.mark.slow
def test_a_connection_between_two_actors_that_is_reset_fails_the_attempt():
    flow = numbers(None)
    proxies = Proxies("numbers/0", "done/0")
    run = Attending(flow, host=HOST, reroute=proxies.reroute, options=options())
    with run:
        run.begin()
        run.until(lambda: bool(proxies.made) and proxies.made[0].connections == 1, "the actors are connected")
        proxies.reset()
        run.until(lambda: "numbers/0" in run.outcomes, "the sender has given up")
        outcome = run.outcomes["numbers/0"]
        assert outcome.end == "failed"
        assert "the connection to actor done/0 has broken" in outcome.reason
    assert proxies.resets == 1
    proxies.close()


@pytest.mark.slow
def test_connections_to_the_supervisor_that_are_reset_lose_no_report():
    flow = numbers(500)
    proxies = Proxies(None, SUPERVISOR)
    run = Attending(flow, host=HOST, reroute=proxies.reroute, store=Snapshots(), options=options())
    with run:
        run.begin()
        while not run.have_ended():
            proxies.reset()
            ended = len(run.effects(AcknowledgeEnd))
            run.until(lambda ended=ended: len(run.effects(AcknowledgeEnd)) > ended, "another task has ended")
        run.complete(1)
        run.until(lambda: len(run.published()) == 500, "all output is published")
    assert proxies.resets >= 2
    assert sorted(run.published()) == list(range(500))
    proxies.close()


@pytest.fixture
def boxes():
    keys = Keys.new()
    opened = Mailbox("here", None, keys), Mailbox("here", None, keys)
    yield opened
    for box in opened:
        box.close()


def test_a_frame_that_is_missing_on_a_link_is_noted(boxes: tuple[Mailbox, Mailbox]):
    ours, theirs = boxes
    link = theirs.link(ours.address, sender=3, name="ours")
    message = pack_note(Kind.HELLO, Attempt(1), "theirs")
    link.send(message)
    assert len(ours.receive(1, 1_000)) == 1
    link._number += 1  # as if the second frame had been lost
    link.send(message)
    assert len(ours.receive(1, 1_000)) == 1
    assert ours.lost == ["frame 3 of actor number 3 arrived after frame 1: those between are lost"]


def test_the_loss_of_the_last_frame_is_seen_by_the_heartbeat_behind_it(boxes: tuple[Mailbox, Mailbox]):
    ours, theirs = boxes
    link = theirs.link(ours.address, sender=3, name="ours")
    link._number += 1  # as if the first frame had been lost, and nothing followed
    theirs.look_after_links(Attempt(1))
    assert len(ours.receive(1, 1_000)) == 1
    assert len(ours.lost) == 1


def test_heartbeats_are_sent_only_behind_something(boxes: tuple[Mailbox, Mailbox]):
    ours, theirs = boxes
    link = theirs.link(ours.address, sender=3, name="ours")
    link.send(pack_note(Kind.HELLO, Attempt(1), "theirs"))
    for _ in range(5):
        theirs.look_after_links(Attempt(1))
    link.send(pack_note(Kind.HELLO, Attempt(1), "theirs"))
    found: list[object] = []
    while len(found) < 3:
        found += ours.receive(10, 1_000)
    assert len(found) == 3, "a heartbeat between the two"
    assert ours.lost == []

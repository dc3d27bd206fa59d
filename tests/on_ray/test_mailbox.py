"""One mailbox a process: open to those of its attempt, on the host's own address alone, and gone without a trace."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import zmq

from backedge.engine.on_ray.transport.frames import NO_CHANNEL, WAKE, Kind, Message, pack_header
from backedge.engine.on_ray.transport.mailbox import Address, Keys, Link, Mailbox
from backedge.graphs.ids import Attempt
from tests.gates import HANG_S, wait_for

HOST = "127.0.0.1"
DEADLINE_MS = int(1000 * HANG_S)
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
KEYS = Keys.new()


@pytest.fixture
def opened() -> Iterator[list[Mailbox]]:
    """Mailboxes that a test has opened, closed behind it."""
    boxes: list[Mailbox] = []
    yield boxes
    for box in boxes:
        box.close()


def here(opened: list[Mailbox], place: str = "here", host: str | None = None, keys: Keys = KEYS) -> Mailbox:
    opened.append(Mailbox(place, host, keys))
    return opened[-1]


def received(box: Mailbox, count: int, sender: Mailbox | None = None) -> list[Message]:
    """`count` messages, as soon as they are there. Serves the sender's mailbox meanwhile, if given."""
    found: list[Message] = []
    deadline_s = time.monotonic() + DEADLINE_MS / 1000
    while len(found) < count:
        assert time.monotonic() < deadline_s, f"{len(found)} of {count} messages arrived"
        if sender is not None:
            sender.receive(1)
        new = box.receive(count - len(found), DEADLINE_MS if sender is None else 1)
        found += [message for message in new if message != WAKE]
    return [tuple(message) for message in found]


def message(number: int, payload: bytes = b"") -> Message:
    return pack_header(Kind.BATCH, Attempt(1), NO_CHANNEL, number), payload


def folder_of(box: Mailbox) -> Path:
    return Path(box.address.local.removeprefix("ipc://")).parent


# -- within a host -------------------------------------------------------------------------------------------------


def test_what_is_posted_leaves_together_when_the_mailbox_is_flushed_and_in_order(opened: list[Mailbox]):
    one, other = here(opened), here(opened)
    link = one.link(other.address)
    sent = [message(number, b"x" * (number % 5)) for number in range(500)]
    for posted in sent:
        link.post(posted)
    assert other.receive(1_000, 50) == [], "nothing leaves before"
    one.flush()
    arrived = other.receive(1, DEADLINE_MS)
    assert [tuple(one_of_them) for one_of_them in arrived] == sent, "all of it as one message"
    one.flush()
    assert other.receive(1_000, 50) == [], "nothing leaves twice"


def test_a_large_message_that_is_posted_leaves_at_once_behind_the_small_ones(opened: list[Mailbox]):
    one, other = here(opened), here(opened)
    link = one.link(other.address)
    sent = [message(1, b"small"), message(2, b"large" * 10_000), message(3, b"small")]
    for posted in sent:
        link.post(posted)
    assert received(other, 2) == sent[:2]
    one.flush()
    assert received(other, 1) == sent[2:]


@pytest.mark.parametrize("sender", [0, 1], ids=["the supervisor", "an actor"])
def test_a_payload_of_many_megabytes_arrives_whole(opened: list[Mailbox], sender: int):
    one, other = here(opened), here(opened)
    link = one.link(other.address, sender)
    payload = os.urandom(30_000_000)
    link.send(message(1, payload))
    link.send(message(2))
    assert received(other, 2, sender=one) == [message(1, payload), message(2)]


def test_large_payloads_go_through_shared_memory_once_it_is_opened_in_order_with_the_others(
    opened: list[Mailbox], monkeypatch: pytest.MonkeyPatch
):
    one, other = here(opened), here(opened)
    link = one.link(other.address, sender=1)
    payload = os.urandom(100_000)
    sizes: list[int] = []
    send = link._send_frame

    def counted(frame: bytes, payload: bytes = b"") -> None:
        sizes.append(len(frame) + len(payload))
        send(frame, payload)

    monkeypatch.setattr(Link, "_send_frame", lambda _, *parts: counted(*parts))
    for start in (1, 101):
        sizes.clear()
        sent = [message(number, payload if number % 3 else b"small") for number in range(start, start + 100)]
        for posted in sent:
            link.post(posted)
        one.flush()
        assert received(other, 100, sender=one) == sent
    assert len(sizes) == 1 and sizes[0] < 10_000, "notes alone, all of them together"


def test_what_finds_no_room_in_shared_memory_goes_over_the_link_in_order(
    opened: list[Mailbox], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("backedge.engine.on_ray.transport.shared_ring.RING_BYTES", 250_000)
    one, other = here(opened), here(opened)
    link = one.link(other.address, sender=1)
    for start in (1, 101):
        sent = [message(number, bytes([number]) * 100_000) for number in range(start, start + 20)]
        for posted in sent:
            link.post(posted)
        one.flush()
        assert received(other, 20, sender=one) == sent
    assert other.lost == []


def test_no_memory_is_offered_to_another_host_or_to_the_supervisor(opened: list[Mailbox]):
    one, other = here(opened, "here", HOST), here(opened, "there", HOST)
    links = one.link(other.address, sender=1), one.link(here(opened).address)
    for link in links:
        link.post(message(1, b"x" * 100_000))
        assert link._ring is None
    assert received(other, 1) == [message(1, b"x" * 100_000)]


def test_sending_never_waits_for_the_receiver_and_keeps_the_order(opened: list[Mailbox]):
    one, other = here(opened), here(opened)
    link = one.link(other.address)
    sent = [message(number, b"x" * (number % 100)) for number in range(20_000)]
    for one_of_them in sent:
        link.send(one_of_them)
    assert received(other, len(sent)) == sent


def test_sending_to_an_actor_of_this_host_never_waits_either_and_all_arrives_when_there_is_room(opened: list[Mailbox]):
    one, other = here(opened), here(opened)
    link = one.link(other.address, sender=1)
    sent = [message(number, os.urandom(300) * (1 + number % 7 * 100)) for number in range(500)]
    for large in sent:
        link.send(large)
    assert one._writers, "more than the socket has room for"
    assert received(other, 500, sender=one) == sent
    assert not one._writers and other.lost == []


def test_frames_for_an_actor_that_is_gone_are_dropped(opened: list[Mailbox]):
    one, other = here(opened), here(opened)
    link = one.link(other.address, sender=1)
    other.close()
    for number in range(3):
        link.send(message(number, b"x" * 1_000_000))
    late = one.link(other.address, sender=1)
    late.send(message(1))
    assert one.receive(1) == [] and not one._writers


def test_an_actor_that_leaves_in_the_middle_of_a_frame_is_forgotten(opened: list[Mailbox]):
    one, other, third = here(opened), here(opened), here(opened)
    one.link(other.address, sender=1).send(message(1, b"x" * 10_000_000))
    assert other.receive(1, 20) == []
    one.close()
    third.link(other.address, sender=2).send(message(2))
    assert received(other, 1) == [message(2)]
    assert len(other._readers) == 1


def test_the_folder_is_gone_when_all_are_connected_and_messages_still_come(opened: list[Mailbox]):
    one, other = here(opened), here(opened)
    link = one.link(other.address)
    link.send(message(1))
    received(other, 1)
    folder = folder_of(other)
    other.all_are_connected()
    assert not folder.exists()
    link.send(message(2))
    assert received(other, 1) == [message(2)]


def test_a_mailbox_for_its_own_host_is_not_to_be_reached_from_another(opened: list[Mailbox]):
    with pytest.raises(ValueError, match="only accepts its own host, but this is"):
        here(opened, "there", HOST).link(here(opened).address)


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may open as many files as it is allowed to ask for, or enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_supervisor_has_a_link_to_each_of_a_thousand_actors_and_more(opened: list[Mailbox]):
    """ZeroMQ has 1,023 sockets for a context that asks for no more, and needs three for a link to another host."""
    box, other = here(opened), here(opened)
    for _ in range(1_100):
        box.link(Address("here", "ipc:///nowhere/box"))
    box.link(other.address).send(message(1))
    assert received(other, 1) == [message(1)]


def test_waking_ends_a_wait_and_does_no_harm_when_all_is_over():
    box = Mailbox("here", None, KEYS)
    box.wake()
    assert box.receive(1, DEADLINE_MS) == [WAKE]
    assert box.receive(1) == []
    box.close()
    box.wake()


def test_opening_and_closing_leaves_neither_a_descriptor_nor_a_file_behind():
    def open_and_close() -> None:
        one, other = Mailbox("here", HOST, KEYS), Mailbox("there", HOST, KEYS)
        one.link(other.address).send(message(1))
        received(other, 1)
        one.close()
        other.close()

    open_and_close()
    descriptors, files = len(os.listdir("/proc/self/fd")), set(os.listdir(tempfile.gettempdir()))
    for _ in range(5):
        open_and_close()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert set(os.listdir(tempfile.gettempdir())) == files


def test_one_who_sends_all_the_time_does_not_keep_another_from_being_heard(opened: list[Mailbox]):
    box, near, far = here(opened, host=HOST), here(opened), here(opened, "there", HOST)
    near_link, far_link = near.link(box.address), far.link(box.address)
    far_link.send(message(0))
    for _ in range(10_000):
        near_link.send(message(1))
        near_link.send(message(1))
        if message(0) in box.receive(1, DEADLINE_MS):
            return
    raise AssertionError("the other was never heard")


# -- between hosts -------------------------------------------------------------------------------------------------


def test_two_hosts_talk_under_the_keys_of_the_attempt(opened: list[Mailbox]):
    one, other = here(opened, "here", HOST), here(opened, "there", HOST)
    there, back = one.link(other.address), other.link(one.address)
    for number in range(500):
        there.send(message(number))
    assert received(other, 500) == [message(number) for number in range(500)]
    back.send(message(1, b"thanks"))
    assert received(one, 1) == [message(1, b"thanks")]


def test_a_mailbox_listens_only_on_its_own_address_and_without_other_hosts_on_no_port(opened: list[Mailbox]):
    before = listening()
    assert here(opened).address.remote is None and listening() == before
    box = here(opened, "here", HOST)
    assert box.address.remote is not None
    new = listening() - before
    assert [f"tcp://{address}" for address in new] == [box.address.remote]


def stranger(context: zmq.Context[zmq.Socket[bytes]], address: Address, keys: Keys | None) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.PUSH)
    socket.linger = 0
    if keys is not None:
        socket.curve_serverkey = address.server_key or b""
        socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.connect(address.remote or "")
    return socket


@contextmanager
def heard(box: Mailbox, what: int) -> Iterator[zmq.Socket[bytes]]:
    """Hears what happens where a mailbox listens."""
    port = box._box.socket
    events = port.get_monitor_socket(what)
    try:
        yield events
    finally:
        port.disable_monitor()
        events.close()


@pytest.mark.parametrize("keys", [None, Keys.new()], ids=["no key", "the key of another attempt"])
def test_a_stranger_is_refused_and_the_mailbox_goes_on(opened: list[Mailbox], keys: Keys | None):
    box, friend = here(opened, "here", HOST), here(opened, "there", HOST)
    with heard(box, REFUSED) as events, zmq.Context() as context:
        socket = stranger(context, box.address, keys)
        socket.send_multipart([b"let me", b"in"])
        assert events.poll(DEADLINE_MS), "nobody was refused"
        socket.close()
    friend.link(box.address).send(message(7, b"friend"))
    assert received(box, 1) == [message(7, b"friend")]
    assert box.receive(10) == []


def test_who_takes_the_mailbox_for_another_is_refused(opened: list[Mailbox]):
    box, friend = here(opened, "here", HOST), here(opened, "there", HOST)
    wrong = Address("here", box.address.local, box.address.remote, Keys.new().public)
    with heard(box, REFUSED) as events:
        friend.link(wrong).send(message(1, b"let me in"))
        assert events.poll(DEADLINE_MS), "nobody was refused"
    friend.link(box.address).send(message(7, b"friend"))
    assert received(box, 1) == [message(7, b"friend")]


@pytest.mark.parametrize(
    "spoken",
    [b"GET / HTTP/1.0\r\n\r\n", b"\x00" * 64, b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"],
    ids=["HTTP", "zeros", "half a greeting"],
)
def test_bytes_that_are_no_zeromq_do_no_harm(opened: list[Mailbox], spoken: bytes):
    box, friend = here(opened, "here", HOST), here(opened, "there", HOST)
    port = int((box.address.remote or "").rpartition(":")[2])
    with socket.create_connection((HOST, port), DEADLINE_MS / 1000) as plain:
        plain.sendall(spoken)
        with suppress(OSError):  # it may have been thrown out already
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(4096):
                continue
    friend.link(box.address).send(message(7, b"friend"))
    assert received(box, 1) == [message(7, b"friend")]
    assert box.receive(10) == []


def listening() -> set[str]:
    """The addresses on which this process listens, as HOST:PORT."""
    own = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_there(name)}
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in own:
                host, port = local.split(":")
                dotted = ".".join(str(byte) for byte in reversed(bytes.fromhex(host)))
                found.add(f"{dotted}:{int(port, 16)}")
    return found


def _is_there(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


# -- watched links -------------------------------------------------------------------------------------------------


def test_a_process_that_accepts_a_connection_and_says_nothing_is_silent(
    opened: list[Mailbox], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """So does one that is stopped: the kernel accepts for it."""
    monkeypatch.setattr("backedge.engine.on_ray.transport.mailbox.SILENT_PART_MS_MIN", 30)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "box"))
        stopped.listen()
        link = here(opened).link(Address("here", f"ipc://{tmp_path}/box"), silence_ms=3 * 30)
        wait_for(link.is_silent, "it is silent")


def test_a_process_is_silent_when_its_connection_is_lost_and_not_before(
    opened: list[Mailbox], monkeypatch: pytest.MonkeyPatch
):
    now_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: now_s, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr("backedge.engine.on_ray.transport.mailbox.time", clock)
    other = here(opened)
    link = here(opened).link(other.address, silence_ms=DEADLINE_MS)
    now_s += HANG_S
    wait_for(lambda: not link.is_silent(), "it is connected")
    now_s += HANG_S
    assert not link.is_silent()
    other.close()

    def is_silent_later() -> bool:
        nonlocal now_s
        now_s += HANG_S
        return link.is_silent()

    wait_for(is_silent_later, "the connection is lost")


# -- awake ---------------------------------------------------------------------------------------------------------


def test_who_has_just_had_a_message_does_not_sleep_before_the_next(
    opened: list[Mailbox], monkeypatch: pytest.MonkeyPatch
):
    ours, other = here(opened), here(opened)
    link = other.link(ours.address)
    looked: list[int] = []

    def look() -> None:
        looked.append(len(looked))
        if len(looked) == 3:
            link.send(message(2))

    monkeypatch.setattr("backedge.engine.on_ray.transport.mailbox.AWAKE_NS", DEADLINE_MS * 1_000_000)
    monkeypatch.setattr("os.sched_yield", look)
    link.send(message(1))
    assert received(ours, 1) == [message(1)]
    assert looked == [], "who has had nothing sleeps until there is something"
    assert ours.receive(1) == [], "a look in passing changes nothing"
    assert ours.receive(1, timeout_ms=1) == [message(2)], "it would have slept for a millisecond alone"
    assert len(looked) >= 3


def test_who_is_in_no_hurry_sleeps_at_once(opened: list[Mailbox], monkeypatch: pytest.MonkeyPatch):
    ours, other = Mailbox("here", None, KEYS, stays_awake=False), here(opened)
    opened.append(ours)
    looked: list[int] = []
    monkeypatch.setattr("backedge.engine.on_ray.transport.mailbox.AWAKE_NS", 1_000_000)
    monkeypatch.setattr("os.sched_yield", lambda: looked.append(len(looked)))
    other.link(ours.address).send(message(1))
    assert received(ours, 1) == [message(1)]
    assert ours.receive(1, timeout_ms=1) == [] and looked == []

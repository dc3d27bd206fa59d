"""Large payloads travel through shared memory between processes of a host, and the digest shows that they are whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, Generate, Range
from backedge.engine.on_ray.transport import shared_ring
from backedge.engine.on_ray.transport.shared_ring import Place, RingReceiver, RingSender
from backedge.graphs.ids import TaskId
from tests.every import every
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import finish, killed
from tests.on_ray.in_process import Attending, Snapshots, options

Ring = tuple[RingSender, RingReceiver]


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    """Both ends of a memory with room for 1,000 bytes."""
    monkeypatch.setattr(shared_ring, "RING_BYTES", 1_000)
    sender = RingSender()
    receiver = RingReceiver.opened(sender.offer)
    assert receiver is not None
    yield sender, receiver
    sender.close()
    receiver.close()


@every("seed", range(20))
def test_what_is_taken_is_what_was_put_however_far_the_receiver_is_behind(ring: Ring, seed: int):
    sender, receiver = ring
    drawn = random.Random(seed)
    waiting: deque[tuple[Place, bytes]] = deque()
    refused = 0
    for _ in range(500):
        if waiting and drawn.random() < 0.45:
            place, payload = waiting.popleft()
            assert receiver.take(place) == payload
            continue
        payload = drawn.randbytes(drawn.randrange(1, 400))
        place = sender.put(payload)
        if place is None:
            refused += 1
        else:
            waiting.append((place, payload))
    for place, payload in waiting:
        assert receiver.take(place) == payload
    assert refused, "it was never full"


def test_payloads_begin_at_the_same_place_while_nothing_else_waits(ring: Ring):
    sender, receiver = ring
    places: set[Place] = set()
    for _ in range(10):
        place = sender.put(b"x" * 300)
        assert place is not None
        receiver.take(place)
        places.add(place)
    assert len(places) == 1


def test_a_payload_larger_than_the_memory_is_refused(ring: Ring):
    sender, _ = ring
    assert sender.put(b"x" * 1_001) is None
    assert sender.put(b"x" * 1_000) is not None


def test_nothing_is_put_into_memory_that_the_receiver_has_not_opened():
    sender = RingSender()
    assert sender.put(b"payload") is None
    sender.close()


def test_a_file_that_is_not_the_offered_memory_is_not_opened():
    one, other = RingSender(), RingSender()
    path, name = one.offer.split()
    assert RingReceiver.opened(f"{path} {other.offer.split()[1]}") is None
    assert RingReceiver.opened(f"{path}9 {name}") is None
    assert one.put(b"payload") is None
    one.close()
    other.close()


def test_a_sender_that_is_killed_leaves_no_file_behind(evidence: Evidence):
    folders = [folder for folder in ("/dev/shm", tempfile.gettempdir()) if os.path.isdir(folder)]
    before = [set(os.listdir(folder)) for folder in folders]
    script = (
        "from backedge.engine.on_ray.transport.shared_ring import RingSender\n"
        "ring = RingSender()\nprint(ring.offer, flush=True)\n"
        "input()\nprint(ring.put(b'payload'), flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        receiver = RingReceiver.opened(process.stdout.readline().strip())
        assert receiver is not None
        process.stdin.write("\n")
        process.stdin.flush()
        start, end = process.stdout.readline().strip("()\n").split(", ")
        process.kill()
        evidence.happened("senders that were killed", process.wait() == -signal.SIGKILL)
    payload = receiver.take((int(start), int(end)))
    assert payload == b"payload", "it was sent"
    evidence.survived("payloads of it that arrived whole", payload == b"payload")
    receiver.close()
    left = [set(os.listdir(folder)) - files for folder, files in zip(folders, before, strict=True)]
    assert not any("backedge" in name for names in left for name in names)


def large_batches() -> Flow:
    """Records that are larger than what goes over the link itself."""
    flow = Flow("large")
    numbers = flow.read(Generate(lambda position: bytes([position % 256]) * 100_000), name="numbers")
    numbers.rebalance().write(Collect(), name="kept")
    return flow


def test_memory_that_somebody_writes_to_fails_the_attempt(monkeypatch: pytest.MonkeyPatch, evidence: Evidence):
    damaged = 0

    class Damaged(RingReceiver):
        def take(self, place: Place) -> bytes:
            nonlocal damaged
            if damaged == 0:
                damaged += 1
                self._memory.mapped[place[1] - 1] ^= 1
            return super().take(place)

    monkeypatch.setattr(shared_ring, "RingReceiver", Damaged)
    store = Snapshots()
    with Attending(large_batches(), store=store, options=options()) as run:
        run.begin()
        run.until(lambda: damaged > 0 or "kept/0" in run.outcomes, "a payload has come through shared memory")
        run.trigger(1)
        run.until(lambda: "kept/0" in run.outcomes, "the sink has left")
        outcome = run.outcomes["kept/0"]
    assert outcome.end == "failed" and "ChannelIntegrityError in actor kept/0" in outcome.reason
    evidence.happened("payloads damaged in shared memory", damaged)
    evidence.survived("attempts that failed before a cut", (TaskId("kept", 0), 1) not in store.kept)


def test_without_memory_to_share_all_goes_over_the_link(monkeypatch: pytest.MonkeyPatch):
    def fail(_: str) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", fail)
    with Attending(large_batches(), options=options()) as run:
        run.begin()
        run.until(lambda: run.loops["kept/0"].counts.records >= 100, "100 batches have come")
        assert run.loops["numbers/0"].channels.links["kept/0"]._ring is None


def test_memory_is_open_before_the_tasks_begin_where_they_send_something():
    with Attending(large_batches()) as run:
        run.until(lambda: len(run.restored()) == 2, "all tasks are restored")
        run.until(lambda: bool(run.loops["kept/0"].mailbox._rings), "the receiver has opened the sender's memory")
        assert run.loops["numbers/0"].channels.links["kept/0"]._put(b"payload") is not None
        assert run.loops["kept/0"].channels.links["numbers/0"]._ring is None, "nothing is sent that way"


HeavyRecord = tuple[int, int, bytes, bool]
HEAVY_BYTES = 50_000


def heavy_trips(count: int, gate: Gate) -> Flow:
    """Every number makes five trips with a payload, and notes whether the process of the body shares memory."""
    flow = Flow("heavy")
    again = flow.loop("again")
    numbers = flow.read(Gated(Range(count), gate, count // 2), name="numbers")
    begun = numbers.map(lambda number: (number, 0, bytes([number % 256]) * HEAVY_BYTES, False), name="begin")

    def grow(rounds: int, record: HeavyRecord) -> tuple[int, HeavyRecord]:
        number, _, payload, has_shared = record
        has_shared |= f"memfd:{shared_ring.PREFIX}" in Path("/proc/self/maps").read_text()
        return rounds + 1, (number, rounds + 1, payload, has_shared)

    grown = begun.merge(again).key_by(lambda record: record[0]).stateful_map(grow, initial=0, name="grow")
    done, rest = grown.rebalance().split(lambda record: record[1] >= 5, name="enough")
    again.feed(rest.rebalance())
    done.rebalance().write(Collect(), name="done")
    return flow


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_processes_that_die_while_they_share_memory_lose_nothing(tmp_path: Path, evidence: Evidence):
    gate, kills = Gate(tmp_path / "gate"), ["grow@epoch=2", "enough@epoch=4"]
    options: dict[str, Any] = {"snapshots": tmp_path / "cuts", "every": 0.2, "actors": "task", "spares": 1}
    _, result = finish(heavy_trips(100, gate), gate=gate, kills=kills, **options)
    evidence.happened("processes that died", len(killed(result)))
    found = result.outputs["done"]
    evidence.happened("records that were in a process that shares memory", sum(has_shared for *_, has_shared in found))
    wanted = [(number, 5, bytes([number % 256]) * HEAVY_BYTES) for number in range(100)]
    evidence.same([record[:3] for record in found], wanted)
    evidence.cuts(tmp_path / "cuts")

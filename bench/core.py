"""The cost of a batch in the protocol core, and of a step of the simulator.

A batch takes four calls of the core: `sent` at the sender; `receive`, `take` and `on_processed` at the receiver. No
user code runs, nothing is encoded and nothing travels, so only bookkeeping is measured.

- batch: over a regular channel. back edge: from a head to itself. open log: the same while an epoch is captured and its
  barrier has not returned, so every batch is added to the loop log (already encoded). round: over a channel inside an
  iteration.
- These channels are within an actor, where batches are counted but not digested. across: batch with the digest, which
  computes crc32 over every byte at both ends; the limit applies to the time minus that of the same crc32 alone.
- 1000: batches of 1,000 records instead of 1. One nanosecond per record would make a batch half as expensive again.

Peers: a deque with numbered batches, the least that a channel can be, and crc32 alone. The limits are multiples of that
deque, measured in the same turns, because limits in microseconds would judge the machine.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from zlib_ng.zlib_ng import crc32

from backedge import Collect, Flow, Items, Plan, Stream
from backedge.engine.batches.batch import Batch, encode
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.messages import End, Mode
from backedge.recovery.protocol.task import TaskCore
from bench import schedules
from bench.measuring import Case, Limit, Report, Samples, interleaved
from bench.options import Options
from proof.runner import processes

Record = dict[str, Any]

BATCH_DEQUES_MAX = 50
STEP_DEQUES_MAX = 1_000
GROWTH_MAX = 1.15
RECORDS = 1_000
BATCHES = 10_000
ATTEMPT = Attempt(1)
KINDS = ("batch", "back edge", "open log", "round")


def run(options: Options) -> Report:
    """Measure the core and the simulator in the same turns."""
    with processes(schedules.PROCESSES) as pool:
        crew = schedules.Crew(pool)
        found = interleaved(cases(options.seed) | schedules.cases(crew, options.seed), options.turns)
    measured = (*KINDS, schedules.STEP)
    ratios = {f"{name} / bare deque": found[name].over(found["bare deque"]) for name in measured}
    ratios |= {f"{name}, 1000 / {name}": found[f"{name}, 1000"].over(found[name]) for name in KINDS}
    ratios["plain_interpreter / small"] = found[schedules.PEER].over(found["small_per_s"])
    return Report(
        bench="core",
        unit="us a batch or step; *_per_s: schedules a second on 2 cores",
        turns=options.turns,
        figures={name: samples for name, samples in found.items() if name not in PEERS},
        peers={name: found[name] for name in PEERS},
        ratios=ratios,
        limits=limits(found),
    )


def limits(found: dict[str, Samples]) -> tuple[Limit, ...]:
    """A batch costs at most 50 times the bare deque, without the digest, a step 1,000 times, a record nothing."""
    deque_us = found["bare deque"]
    costs = {name: found[name].over(deque_us) for name in KINDS}
    for records in ("", ", 1000"):
        across = found[f"across{records}"].median - found[f"crc32{records}"].median
        costs[f"across{records}, digest aside"] = across / deque_us.median
    step = found[schedules.STEP].over(deque_us)
    growths = {name: found[f"{name}, 1000"].over(found[name]) for name in KINDS}
    return (
        *(
            Limit(f"{name}: {cost:.0f} times a bare deque, at most {BATCH_DEQUES_MAX}", cost <= BATCH_DEQUES_MAX)
            for name, cost in costs.items()
        ),
        Limit(f"simulated step: {step:.0f} times a bare deque, at most {STEP_DEQUES_MAX:,}", step <= STEP_DEQUES_MAX),
        *(
            Limit(f"{name}: {growth:.2f} times that with 1,000 records, under {GROWTH_MAX}", growth < GROWTH_MAX)
            for name, growth in growths.items()
        ),
    )


# -- the cores that a batch passes -------------------------------------------------------------------------------


def turn(state: int, record: Record) -> tuple[int, Record]:
    """Never called: no user code runs here."""
    return state + 1, record


def _loop() -> Plan:
    flow = Flow("loop")
    again = flow.loop("again", of=Record)
    turned = (
        flow.read(Items[Record]([]), name="in").merge(again).key_by("key").stateful_map(turn, initial=0, name="turn")
    )
    done, more = turned.split(lambda record: record["left"] == 0)
    again.feed(more)
    done.write(Collect(), name="done")
    return flow.plan()


def _rounds() -> Plan:
    def body(stream: Stream[Record]) -> Stream[Record]:
        return stream.key_by("key").stateful_map(turn, initial=0, name="turn")

    flow = Flow("rounds")
    flow.iterate(flow.read(Items[Record]([]), name="in"), body, rounds=2, name="iterate").write(Collect(), name="done")
    return flow.plan()


class Passage:
    """One channel, with the cores at its ends: batches go through it, one at a time.

    `kind` is one of KINDS; "open log" leaves an epoch open at the head for as long as the passage lives.
    """

    def __init__(self, kind: str, actors: Literal["task", "slice"], core: type[TaskCore] = TaskCore) -> None:
        deployment = expand(_rounds() if kind == "round" else _loop(), 1, actors)
        is_back = kind in ("back edge", "open log")
        receiver = TaskId("turn", 0)
        entering = deployment.tasks[receiver].inputs
        self.channel = next(c.id for c in entering if c.is_back == is_back)
        cores = {id: core(task, ATTEMPT, encode) for id, task in deployment.tasks.items()}
        for each in cores.values():
            each.start(busy=False)
        self.sender, self.receiver = cores[self.channel.sender], cores[receiver]
        if kind == "open log":
            regular = next(c.id for c in entering if not c.is_back)
            self.receiver.receive(regular, ATTEMPT, End(0, 0))
            self.receiver.on_trigger(Epoch(1), Mode.ALIGNED)

    def pass_on(self, payload: Any, batches: int) -> float:
        """Microseconds per batch."""
        channel, attempt = self.channel, ATTEMPT
        sent, receive = self.sender.sent, self.receiver.receive
        take, on_processed = self.receiver.take, self.receiver.on_processed
        started = time.process_time()
        for _ in range(batches):
            receive(channel, attempt, sent(channel, payload))
            take(channel)
            on_processed(channel)
        return (time.process_time() - started) / batches * 1e6


# -- the cases ---------------------------------------------------------------------------------------------------


def cases(seed: int, core: type[TaskCore] = TaskCore, batches: int = BATCHES) -> dict[str, Case]:
    """Everything measured in turns, including peers. Each turn has its own cores."""
    rng = random.Random(seed)
    found: dict[str, Case] = {"bare deque": lambda: _bare_deque(batches)}
    for records, mark in ((1, ""), (RECORDS, f", {RECORDS}")):
        batch = Batch([{"id": id, "key": rng.randrange(100), "left": 3} for id in range(records)])
        payload = encode(batch)
        for kind in KINDS:
            found[kind + mark] = _case(kind, "slice", core, payload if kind == "open log" else batch, batches)
        found["across" + mark] = _case("batch", "task", core, payload, batches)
        found["crc32" + mark] = _digest_of(payload, batches)
    return found


PEERS = ("bare deque", "crc32", "crc32, 1000", schedules.PEER)


def _case(kind: str, actors: Literal["task", "slice"], core: type[TaskCore], payload: Any, batches: int) -> Case:
    return lambda: Passage(kind, actors, core).pass_on(payload, batches)


def _bare_deque(batches: int) -> float:
    queue: deque[tuple[int, Any]] = deque()
    started = time.process_time()
    for sent in range(1, batches + 1):
        queue.append((sent, None))
        received, _ = queue.popleft()
        if received != sent:
            raise RuntimeError(f"batch {received} came where {sent} was due")
    return (time.process_time() - started) / batches * 1e6


def _digest_of(payload: bytes, batches: int) -> Callable[[], float]:
    def measure() -> float:
        sent = received = 0
        started = time.process_time()
        for _ in range(batches):
            sent = crc32(payload, sent)
            received = crc32(payload, received)
        return (time.process_time() - started) / batches * 1e6

    return measure

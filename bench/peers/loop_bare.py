"""The loop by hand: two processes over pyzmq (ipc) and pickle, head in one and body in the other, and no engine.

They call the same user functions as ours does, a batch at a time. The batches are cut once and then travel on as they
are; how large is found out first, so that the peer is at its best. Nothing is counted, logged or kept.
"""

from __future__ import annotations

import pickle
import tempfile
import time
from functools import cache
from multiprocessing.connection import Connection

import zmq

from bench.peers.sides import run_sides
from bench.workloads import LoopRecord, LoopWorkload, climb, is_done, loop_key, tally

BATCHES_TRIED = (500, 1_000, 2_000, 5_000, 10_000, 25_000)
TRIAL_S = 0.7
STOP = b""
Socket = zmq.Socket[bytes]


def run(workload: LoopWorkload) -> float:
    """Hops a second, at the best size of batches."""
    return measure(workload, best_batch(workload.records, workload.seed, min(TRIAL_S, workload.seconds)))


@cache
def best_batch(records: int, seed: int, seconds: float) -> int:
    """The size of batches at which the peer is fastest."""
    trial = LoopWorkload(records=records, repetitions=3_000, seed=seed, seconds=seconds, warm_up_s=seconds / 2)
    tried = [size for size in BATCHES_TRIED if size <= records] or [records]
    return max(tried, key=lambda size: measure(trial, size))


def measure(workload: LoopWorkload, batch: int) -> float:
    """Hops a second, with batches of this size."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        (hops_per_s,) = run_sides(_side, [("head", workload, batch, folder), ("body", workload, batch, folder)], 1)
    return hops_per_s


def _side(tell: Connection, which: str, workload: LoopWorkload, batch: int, folder: str) -> None:
    if which == "head":
        head(workload, batch, folder, tell)
    else:
        body(folder)


def sockets(folder: str, own: str, other: str) -> tuple[Socket, Socket]:
    """Where one side receives, and where it sends. Neither ever blocks a sender."""
    context = zmq.Context[Socket]()
    receiving, sending = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    receiving.rcvhwm = sending.sndhwm = 0
    receiving.bind(f"ipc://{folder}/{own}")
    sending.connect(f"ipc://{folder}/{other}")
    return receiving, sending


def head(workload: LoopWorkload, batch: int, folder: str, tell: Connection) -> None:
    """One side: holds the records, and does what the head does."""
    receiving, sending = sockets(folder, "head", "body")
    records = workload.start()
    for at in range(0, len(records), batch):
        sending.send(pickle.dumps(list(map(climb, records[at : at + batch])), 5))
    hops, counted_from, began_s = 0, 0, 0.0
    warm_at_s = time.perf_counter() + workload.warm_up_s
    while True:
        back: list[LoopRecord] = pickle.loads(receiving.recv())
        hops += len(back)
        sending.send(pickle.dumps(list(map(climb, back)), 5))
        now_s = time.perf_counter()
        if began_s:
            if now_s - began_s >= workload.seconds:
                break
        elif now_s >= warm_at_s:
            counted_from, began_s = hops, now_s
    tell.send((hops - counted_from) / (now_s - began_s))
    sending.send(STOP)


def body(folder: str) -> None:
    """The other side: keeps the state, and does what the body does."""
    receiving, sending = sockets(folder, "body", "head")
    states: dict[int, int] = {}
    seen, done = states.get, 0
    while payload := receiving.recv():
        passed: list[LoopRecord] = []
        for record in pickle.loads(payload):
            key = loop_key(record)
            states[key], record = tally(seen(key, 0), record)
            passed.append(record)
        back = [record for record in passed if not is_done(record)]
        done += len(passed) - len(back)
        sending.send(pickle.dumps(back, 5))
    sending.close(0)

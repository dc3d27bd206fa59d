"""The keyed count by hand: two processes over pyzmq (ipc) and pickle, and no engine.

Each reads its half of the input and splits every batch by key: its own part is counted at once, the other's is sent. So
that neither runs away, a process that is some batches ahead waits for the other. The size of batches is found out
first, so that the peer is at its best.
"""

from __future__ import annotations

import pickle
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import compress
from multiprocessing.connection import Connection

import zmq

from bench.peers.loop_bare import Socket, sockets
from bench.peers.sides import run_sides
from bench.workloads import Counted, CountWorkload, count_word, is_told, word_key

BATCHES_TRIED = (1_000, 4_000, 16_000)
TRIAL_S = 0.7
AHEAD_MAX = 8
LINGER_S = 0.5


def run(workload: CountWorkload) -> float:
    """Records a second, at the best size of batches."""
    return measure(workload, best_batch(replace(workload, seconds=min(TRIAL_S, workload.seconds), warm_up_s=0.4)))


@cache
def best_batch(trial: CountWorkload) -> int:
    """The size of batches at which the peer is fastest."""
    return max(BATCHES_TRIED, key=lambda size: measure(trial, size))


def measure(workload: CountWorkload, batch: int) -> float:
    """Records a second, with batches of this size."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return sum(run_sides(_side, [(index, workload, batch, folder) for index in range(2)], 2))


class _Owners(dict[str, int]):
    """key -> which of the two keeps it, found once a key."""

    def __missing__(self, key: str) -> int:
        owner = self[key] = zlib.crc32(key.encode()) % 2
        return owner


class Counting:
    """The counts of one process."""

    def __init__(self) -> None:
        self.states: dict[str, int] = {}
        self.told: list[Counted] = []
        self.records = 0

    def take(self, words: list[str]) -> None:
        """Count a batch."""
        states, seen = self.states, self.states.get
        counted: list[Counted] = []
        for word in words:
            key = word_key(word)
            states[key], one = count_word(seen(key, 0), word)
            counted.append(one)
        self.told += filter(is_told, counted)
        self.records += len(words)


class Window:
    """The time that counts: behind a warm-up, which begins when the other process is there.

    It goes on counting a moment longer, or the other one would have to wait for it before its own time is up.
    """

    def __init__(self, workload: CountWorkload) -> None:
        self._seconds, self._warm_up_s = workload.seconds, workload.warm_up_s
        self._there_s = self._began_s = self._ended_s = 0.0
        self._counted_from = 0
        self.is_over = False
        self.records_per_s = 0.0

    def look(self, records: int) -> bool:
        """How many have been counted by now; True once, when the time is up."""
        now_s = time.perf_counter()
        self._there_s = self._there_s or now_s
        if self._ended_s:
            self.is_over = now_s - self._ended_s > LINGER_S
        elif self._began_s:
            if now_s - self._began_s >= self._seconds:
                self._ended_s = now_s
                self.records_per_s = (records - self._counted_from) / (now_s - self._began_s)
                return True
        elif now_s - self._there_s >= self._warm_up_s:
            self._counted_from, self._began_s = records, now_s
        return False


def _side(tell: Connection, index: int, workload: CountWorkload, batch: int, folder: str) -> None:
    receiving, sending = sockets(folder, str(index), str(1 - index))
    owner_of = _Owners().__getitem__
    make, counting = workload.make(), Counting()
    position, sent, received = index, 0, 0
    window = Window(workload)
    while not window.is_over:
        words = [make(at) for at in range(position, position + 2 * batch, 2)]
        position += 2 * batch
        owners = list(map(owner_of, map(word_key, words)))
        sending.send(pickle.dumps(list(compress(words, map((1 - index).__eq__, owners))), 5))
        sent += 1
        counting.take(list(compress(words, map(index.__eq__, owners))))
        received += _receive(receiving, sent - received, counting.take)
        if received and window.look(counting.records):
            tell.send(window.records_per_s)


def _receive(receiving: Socket, ahead: int, take: Callable[[list[str]], None]) -> int:
    """Take what has come; wait for the other one only when it is far behind."""
    received = 0
    while True:
        if ahead - received < AHEAD_MAX and not receiving.poll(0, zmq.POLLIN):
            return received
        if not receiving.poll(1_000, zmq.POLLIN):
            return received  # the other one is through
        take(pickle.loads(receiving.recv()))
        received += 1

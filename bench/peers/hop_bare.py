"""One record between two Ray actors by hand: blocking sockets of pyzmq (ipc), pickle, and nothing else."""

from __future__ import annotations

import os
import pickle
import tempfile

from backedge.engine.on_ray.cluster import ray
from bench.ours import keep_apart
from bench.peers.loop_bare import STOP, sockets
from bench.workloads import HopRecord, HopWorkload, hop, us_a_hop


class Side:
    """One of the two actors."""

    def __init__(self, folder: str, own: str, other: str) -> None:
        self.receiving, self.sending = sockets(folder, own, other)

    def echo(self) -> None:
        """Send back whatever comes, unpacked and packed again."""
        while payload := self.receiving.recv():
            self.sending.send(pickle.dumps(hop(pickle.loads(payload)), 5))

    def ping(self, record: HopRecord, seconds: float) -> float:
        """Send the record round until time is up."""
        while record[0] < 1 or record[2] - record[1] < seconds:
            self.sending.send(pickle.dumps(record, 5))
            record = pickle.loads(self.receiving.recv())
        self.sending.send(STOP)
        return us_a_hop(record)

    def is_there(self, core: int | None) -> None:
        """Answers when the actor has started, and from then on stays on that core if it is told one."""
        if core is not None:
            keep_apart(os.getpid(), core)


def run(workload: HopWorkload) -> float:
    """Microseconds for a message there and one back."""
    actor = ray.remote(Side).options(num_cpus=0)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        here, there = actor.remote(folder, "here", "there"), actor.remote(folder, "there", "here")
        try:
            cores = (0, 1) if workload.apart else (None, None)
            ray.get([here.is_there.remote(cores[0]), there.is_there.remote(cores[1])])
            echoing = there.echo.remote()
            us = ray.get(here.ping.remote(workload.start(), workload.seconds))
            ray.get(echoing)
        finally:
            ray.kill(here)
            ray.kill(there)
    return us

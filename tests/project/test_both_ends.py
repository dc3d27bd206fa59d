"""Files of tests are handed out from both ends of their order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from xdist.remote import Producer

from tests.both_ends import FromBothEnds

FILES = ("spark.py", "computes.py", "short.py", "ray.py")


class Worker:
    """A worker that keeps what it is given."""

    def __init__(self) -> None:
        self.gateway = SimpleNamespace(id="gw")
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_the_first_worker_takes_files_from_the_front_and_another_from_the_end():
    options = SimpleNamespace(tx=["popen", "popen"], loadscopereorder=False)
    config = SimpleNamespace(option=options, getvalue=vars(options).get)
    workers = [Worker(), Worker()]
    tests = [f"{file}::test_{number}" for file in FILES for number in range(3)]
    schedule = cast(Any, FromBothEnds)(config, Producer("log", enabled=False))
    for worker in workers:
        schedule.add_node(worker)
        schedule.add_node_collection(worker, tests)
    schedule.schedule()
    assert [worker.given for worker in workers] == [[0, 1, 2], [9, 10, 11]]
    for worker in workers:
        schedule.mark_test_complete(worker, worker.given[0])
    assert [worker.given[3:] for worker in workers] == [[3, 4, 5], [6, 7, 8]]

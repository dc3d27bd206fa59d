"""Makes the faults of a schedule happen, each at its time, with what the tests of faults have."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Lock
from typing import Any

from backedge import Job, RequestFailedError, RunFailedError
from backedge.engine.on_ray import cluster
from tests.databases.fault_proxy import FaultProxy, Strike, only_cut
from tests.databases.postgres_process import PostgresProcess
from tests.objects.faulty_http import FaultyServer, Kind
from tests.on_ray.leftovers import name_of
from tests.on_ray.standing_still import let_stand_still
from tests.on_ray.test_full_disk import fill
from tests.on_ray.test_rows_into_postgres import MARKED_STEPS, OTHER_STEPS, PREPARED_STEPS
from tests.soak.lanes import Lane, pid_of_supervisor
from tests.soak.machine.sitecustomize import COUNT, FIGURES, SIZE
from tests.soak.report import Progress
from tests.soak.schedule import Planned

FIND_S = 60.0
HOUR_S = 3600.0
SLOW_FSYNC_S = 0.3
AT_ONCE = 32
METHODS = ("GET", "PUT", "POST", "HEAD", "DELETE")
LIBC = ctypes.CDLL(None, use_errno=True)
PIDFD_GETFD = 438


class NobodyError(Exception):
    """There is nothing that the fault could befall."""


class Machine:
    """The slow disk and the wrong clock that all processes of the cluster meet, by tests/soak/machine/sitecustomize.py.

    `slow_s`: how much longer an fsync takes. `ahead_s`: how much the clock is ahead.
    """

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), SIZE)
        self._figures = [0.0, 0.0]

    def set(self, ahead_s: float | None = None, slow_s: float | None = None) -> None:
        """Change the one that is given."""
        given = zip((ahead_s, slow_s), self._figures, strict=True)
        self._figures = [old if new is None else new for new, old in given]
        FIGURES.pack_into(self._shared, 0, *self._figures)

    def met(self, which: int) -> int:
        """How often a process met the wrong clock, 0, or the slow disk, 1."""
        return COUNT.unpack_from(self._shared, FIGURES.size + which * COUNT.size)[0]


@dataclass
class World:
    """What faults befall."""

    lanes: dict[str, Lane]
    machine: Machine
    server: PostgresProcess
    database: FaultProxy
    store: FaultyServer
    disk: Path


class Faults:
    """`begin` makes the planned faults happen until the soak is over; `finish` waits for those that last."""

    def __init__(self, world: World, progress: Progress) -> None:
        self._world = world
        self._progress = progress
        self._threads = ThreadPoolExecutor(AT_ONCE, "fault")
        self._of_store = Lock()
        self._of_disk = Lock()
        self._of_database = Lock()

    def begin(self, planned: Sequence[Planned]) -> None:
        # All threads now: those that came later, when many faults last, would look like a leak.
        together = Barrier(AT_ONCE)
        list(self._threads.map(lambda _: together.wait(), range(AT_ONCE)))
        self._threads.submit(self._strike_all, planned)

    def finish(self) -> None:
        self._threads.shutdown(wait=True)
        self._world.machine.set(ahead_s=0.0)

    def _strike_all(self, planned: Sequence[Planned]) -> None:
        for each in planned:
            if self._progress.over.wait(max(0.0, each.at_s - self._progress.now_s)):
                return
            self._threads.submit(self._strike, each)

    def _strike(self, planned: Planned) -> None:
        has_happened, why = False, ""
        try:
            has_happened = self._acts()[planned.fault](planned)
        # A run that fails while it is stopped is judged by its lane.
        except (
            NobodyError,
            RequestFailedError,
            RunFailedError,
            cluster.RayError,
            TimeoutError,
            ProcessLookupError,
        ) as error:
            why = f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}"
        except Exception as error:  # noqa: BLE001 - in a thread, where nobody would hear of it
            self._progress.fail(planned.fault, repr(error))
        self._progress.note_fault(planned.fault, planned.target, has_happened, why)

    def _acts(self) -> dict[str, Callable[[Planned], bool]]:
        return {
            "task killed": lambda planned: _kill(self._task(planned)),
            "supervisor killed": lambda planned: _kill(self._supervisor(planned)),
            "driver killed": self._kill_driver,
            "task stands still": lambda planned: self._stand_still(planned, self._task(planned)),
            "supervisor stands still": lambda planned: self._stand_still(planned, self._supervisor(planned)),
            "connections reset": lambda planned: reset_connections(self._task(planned)) > 0,
            "stopped and resumed": lambda planned: self._job(planned).stop().state == "stopped",
            "rescaled": lambda planned: self._job(planned).rescale(1 + int(3 * planned.chance)) > 0,
            "disk full": self._fill_disk,
            "disk slow": self._slow_disk,
            "clock jumps": self._set_clock,
            "reply of the store lost": lambda planned: self._disturb_store(planned, "lost reply", ("PUT",)),
            "request of the store lost": lambda planned: self._disturb_store(planned, "lost request", METHODS),
            "store busy": lambda planned: self._disturb_store(planned, 503, METHODS),
            "store away": lambda planned: self._disturb_store(planned, "lost request", METHODS, times=1_000_000),
            "client of the database killed": lambda planned: self._strike_database(planned, _kill_client),
            "database killed": lambda planned: self._strike_database(planned, self._restart_database),
            "connection to the database reset": lambda planned: self._strike_database(planned, only_cut),
        }

    # -- who ---------------------------------------------------------------------------------------------------------

    def _find(self, found: Callable[[Lane], Any], lane: Lane) -> Any:
        """What a running flow has; wait for it while it is between two lives."""
        deadline_s = time.monotonic() + FIND_S
        while time.monotonic() < deadline_s and not self._progress.over.is_set():
            with suppress(TimeoutError, cluster.RayError):
                if (one := found(lane)) is not None:
                    return one
            time.sleep(0.2)
        raise NobodyError(f"{lane.name} does not run")

    def _job(self, planned: Planned) -> Job:
        return self._find(lambda lane: lane.job, self._world.lanes[planned.target])

    def _task(self, planned: Planned) -> int:
        def alive(lane: Lane) -> int | None:
            job = lane.job
            pids = [] if job is None else [pid for _, pid in sorted(job.status().pids.items())]
            pids = [pid for pid in pids if name_of(pid).startswith("ray::")]
            return pids[int(planned.chance * len(pids))] if pids else None

        return self._find(alive, self._world.lanes[planned.target])

    def _supervisor(self, planned: Planned) -> int:
        def alive(lane: Lane) -> int | None:
            job = lane.job
            return None if job is None else pid_of_supervisor(job)

        return self._find(alive, self._world.lanes[planned.target])

    # -- what --------------------------------------------------------------------------------------------------------

    def _kill_driver(self, planned: Planned) -> bool:
        lane = self._world.lanes[planned.target]
        started = self._find(lambda lane: lane.driver if lane.job is not None else None, lane)
        if started.poll() is not None:
            raise NobodyError("the driver of this run is dead already")
        started.kill()
        return started.wait() == -signal.SIGKILL

    def _stand_still(self, planned: Planned, pid: int) -> bool:
        try:
            let_stand_still([pid])
            self._progress.over.wait(planned.lasts_s)
        except FileNotFoundError as error:
            raise NobodyError("it was gone at that moment") from error
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        return True

    def _fill_disk(self, planned: Planned) -> bool:
        with self._of_disk:
            filler = fill(self._world.disk)
            size = filler.stat().st_size
            self._progress.over.wait(planned.lasts_s)
            filler.unlink()
            return size > 0

    def _slow_disk(self, planned: Planned) -> bool:
        before = self._world.machine.met(1)
        self._world.machine.set(slow_s=SLOW_FSYNC_S)
        self._progress.over.wait(planned.lasts_s)
        self._world.machine.set(slow_s=0.0)
        return self._world.machine.met(1) > before

    def _set_clock(self, planned: Planned) -> bool:
        """It stays so until the next jump: for processes that start then, it is the only time there is."""
        before = self._world.machine.met(0)
        self._world.machine.set(ahead_s=HOUR_S * (2 * planned.chance - 1))
        self._progress.over.wait(planned.lasts_s)
        return self._world.machine.met(0) > before

    def _disturb_store(self, planned: Planned, kind: Kind, methods: Sequence[str], times: int = 0) -> bool:
        """The next requests of each method, as long as it lasts."""
        with self._of_store:
            number = times or 1 + int(4 * planned.chance)
            plans = [self._world.store.plan(method, "", kind, number) for method in methods]
            self._progress.over.wait(planned.lasts_s)
            self._world.store.reset()
        return sum(plan.happened for plan in plans) > 0

    def _strike_database(self, planned: Planned, action: Callable[[int], object]) -> bool:
        life = self._find(lambda lane: lane.life if lane.job is not None else None, self._world.lanes[planned.target])
        steps = (*(PREPARED_STEPS if life.is_prepared else MARKED_STEPS), *OTHER_STEPS)
        step = steps[int(planned.chance * 1000) % len(steps)]
        strike = Strike(step, "before" if planned.chance * 10 % 1 < 0.5 else "after", action)
        self._world.database.plan(strike)
        while not strike.has_happened.wait(0.5):
            if self._progress.over.is_set():
                raise NobodyError(f"no client came to {step}")
        return True

    def _restart_database(self, client: int) -> None:
        with self._of_database:
            self._world.server.kill()
            self._world.server.start()


def _kill(pid: int) -> bool:
    os.kill(pid, signal.SIGKILL)
    return True


def _kill_client(client: int) -> None:
    """Not the driver, which looks at the table before it starts: its connection is cut."""
    if client != os.getpid():
        with suppress(ProcessLookupError):  # another fault has killed it, and its connection is cut
            _kill(client)


def reset_connections(pid: int) -> int:
    """Break the connections of a process to others of its run, from outside; how many. Its sockets stay open."""
    watched = os.pidfd_open(pid)
    count = 0
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if not os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:"):
                    continue
                copy = LIBC.syscall(PIDFD_GETFD, watched, int(name), 0)
                if copy < 0:
                    continue
                with socket.socket(fileno=copy) as end:
                    ends = f"{end.getsockname()} {end.getpeername()}"
                    if end.family == socket.AF_UNIX and "/backedge-" in ends:
                        end.shutdown(socket.SHUT_RDWR)
                        count += 1
    finally:
        os.close(watched)
    return count

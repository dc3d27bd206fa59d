"""Rays for tests: the shared one, one of a module, clusters that jobs are submitted to. Each leaves nothing behind."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.on_ray import cluster
from tests.gates import HANG_S, wait_for
from tests.jobs.forked_workers import ForkedWorkers

DAY_S = 86_400
CPUS = "1"
"""Of a cluster that takes jobs: with many, each task of a run has a process of its own."""
NOT_YET = "No available agent to submit job"
READY = "This command will now block forever"
INSTALLED = Path(__file__).parents[1] / "extending" / "installed"


@contextmanager
def short_folder() -> Iterator[str]:
    """A temporary folder for Ray, whose sockets do not bear the long names that pytest gives to folders."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def collect_what_ray_leaves() -> None:
    """Ray leaves files and sockets to the garbage collector, whose warnings would hit any test that comes later."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


QUIET_RAY = {
    # It looks for new logs ten times a second, in a folder that has those of all workers there ever were.
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",
    "LOG_NAME_UPDATE_INTERVAL_S": str(DAY_S),
    "REPORTER_UPDATE_INTERVAL_MS": str(1000 * DAY_S),
    "AUTOSCALER_UPDATE_INTERVAL_S": str(DAY_S),
    # Workers that belong to no driver yet would need a template of their own.
    "RAY_prestart_worker_first_driver": "0",
}
"""What the daemons of the shared Ray do for people who watch it takes as much processor time as some tests."""


class SharedRay:
    """A Ray of this process, with the environment in which it starts; after `end`, `start` starts another one.

    Its Pythons find modules in `folders`.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = (*folders, INSTALLED)
        self._workers: ForkedWorkers | None = None

    def start(self) -> None:
        """Connect this process, unless it is connected."""
        if cluster.is_connected():
            return
        # The name is short enough for Ray's sockets.
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        with pytest.MonkeyPatch.context() as environment:
            # For the workers, too, the distribution of tests/extending/installed is one that is installed.
            environment.setenv("PYTHONPATH", os.pathsep.join(map(str, self._folders)))
            self._workers = ForkedWorkers(folder)
            for variable, value in QUIET_RAY.items():
                environment.setenv(variable, value)
            # What Ray starts workers with.
            environment.setattr(sys, "executable", self._workers.python)
            cluster.ray.init(
                address="local",
                num_cpus=2,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=False,
                _temp_dir=folder,
            )
        # As `connect` does: what Ray says of a death would be among the output that tests read.
        cluster._tell_deaths_once()

    def end(self) -> None:
        """End it, if it is there."""
        if self._workers is None:
            return
        cluster.disconnect()
        self._workers.end()
        collect_what_ray_leaves()
        shutil.rmtree(self._workers.folder, ignore_errors=True)
        self._workers = None


def processes() -> dict[int, tuple[int, str]]:
    """The parent and the command of every process that runs."""
    found: dict[int, tuple[int, str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        # Some end meanwhile.
        with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stat, open(f"/proc/{pid}/cmdline", "rb") as command:
            state, parent = stat.read().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                found[int(pid)] = int(parent), command.read().replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def descendants(ancestor: int) -> list[int]:
    """The processes below one."""
    return list(commands_below(ancestor))


def commands_below(ancestor: int) -> dict[int, str]:
    """The processes below one, with their commands."""
    listed = processes()
    found = [ancestor]
    for pid in found:
        found += [child for child, (parent, _) in listed.items() if parent == pid]
    return {pid: listed[pid][1] for pid in found[1:]}


def check_gone(pids: set[int]) -> None:
    """Fails unless all of these end within some time."""
    wait_for(lambda: not pids & processes().keys(), f"all of these end: {[processes().get(pid) for pid in pids]}")


class Submitted:
    """A cluster that takes jobs, started as `ray start --head` by one Python, and what its users do."""

    def __init__(self, python: Path, folder: str) -> None:
        self._python = python
        self.folder = folder
        home = {"RAY_AUTH_MODE": "token", "RAY_TMPDIR": folder, "PIP_NO_INDEX": "1"}
        # Three by default: a driver that is stopped takes one, and on a machine that is busy with other tests more.
        home["RAY_JOB_STOP_WAIT_TIME_S"] = "30"
        # By default the daemon starts four workers at once, whether or not a job needs them.
        home["RAY_prestart_worker_first_driver"] = "0"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PIP_", "PYTHON"))}
        self.environment = {**kept, **home, "PATH": f"{python.parent}:{os.environ['PATH']}"}
        self.address = self._start()

    def _start(self) -> str:
        head, client, dashboard, agent = _free_ports(4)
        self.environment["RAY_API_SERVER_ADDRESS"] = f"http://127.0.0.1:{dashboard}"
        self._ray("get-auth-token", "--generate")
        # Those that are fixed unless told otherwise: another Ray on this host may have them.
        ports = ["--port", head, "--ray-client-server-port", client, "--dashboard-port", dashboard]
        ports += ["--dashboard-agent-listen-port", agent]
        options = ["--head", "--num-cpus", CPUS, "--temp-dir", self.folder, *map(str, ports)]
        words = [*self._command, "start", "--block", "--disable-usage-stats", *options]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._daemon = subprocess.Popen(words, env=self.environment, cwd=self.folder, text=True, **pipes)
        said = ""
        for line in self._daemon.stdout or ():
            said += re.sub(r"\x1b\[\d+m", "", line)
            if READY in line:
                return re.findall(r"--address='([^']+)'", said)[0]
        raise RuntimeError(f"the cluster did not start: {said}")

    @property
    def _command(self) -> list[str]:
        return [str(self._python), "-m", "ray.scripts.scripts"]

    def _ray(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *words], env=self.environment, capture_output=True, text=True, timeout=HANG_S
        )

    def job(self, *words: str) -> str:
        """`ray job ...`; what it says."""

        def said() -> str | None:
            done = self._ray("job", *words)
            text = re.sub(r"\x1b\[\d+m", "", done.stdout + done.stderr)
            return None if NOT_YET in text else text

        return str(wait_for(said, "the cluster takes jobs"))

    def actors(self) -> list[str]:
        """The processes of actors that are not Ray's own."""
        own = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::JobSupervisor")
        return [
            command
            for command in commands_below(self._daemon.pid).values()
            if command.startswith("ray::") and not command.startswith(own)
        ]

    def wait_for(self, path: Path) -> None:
        """Until a job has made this file."""
        wait_for(path.exists, f"a job makes {path}")

    def close(self) -> None:
        """End it, and see that all of it ends."""
        started = {self._daemon.pid, *descendants(self._daemon.pid)}
        self._daemon.send_signal(signal.SIGTERM)
        self._daemon.communicate(timeout=HANG_S)
        check_gone(started)


@contextmanager
def submitted(python: Path) -> Iterator[Submitted]:
    """A cluster that takes jobs, for as long as the block."""
    with short_folder() as folder:
        found = Submitted(python, folder)
        try:
            yield found
        finally:
            found.close()


def last_json(output: str) -> dict[str, Any]:
    """The last line that is a JSON object."""
    return json.loads([line for line in output.splitlines() if line.startswith("{")][-1])


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()

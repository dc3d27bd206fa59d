"""The Ray that tests share forks its workers, as `forked_workers.py` says, and notices when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backedge.engine.on_ray import cluster
from tests.jobs.forked_workers import ROOT
from tests.jobs.rays import check_gone, commands_below
from tests.on_ray.leftovers import parent_of


class Worker:
    """Says what it is."""

    def look(self) -> tuple[int, str, bool, str]:
        return os.getpid(), sys.executable, "backedge.engine.on_ray.actor.task_host" in sys.modules, os.getcwd()


DRIVER = """
import ray
from tests.jobs.test_forked_workers import Worker

ray.init(address="auto", log_to_driver=False)
workers = [ray.remote(num_cpus=0)(Worker).remote() for _ in range(2)]
print(ray.get_runtime_context().get_job_id(), *[ray.get(worker.look.remote())[0] for worker in workers], flush=True)
input()
"""


def forked() -> dict[int, str]:
    """The workers that were forked, with their titles."""
    below = commands_below(os.getpid())
    templates = [pid for pid, command in below.items() if "forked_workers.py" in command]
    return {pid: command for pid, command in below.items() if pid not in templates and parent_of(pid) in templates}


def test_workers_are_forked_with_their_modules_and_their_deaths_are_noticed(local_ray: None):
    actor = cluster.ray.remote(num_cpus=0)(Worker).remote()
    pid, executable, has_modules, folder = cluster.ray.get(actor.look.remote())
    assert forked()[pid].startswith("ray::Worker")
    assert (executable, has_modules) == (sys.executable, True) and Path(folder).is_dir()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(cluster.ray.exceptions.ActorDiedError):
        cluster.ray.get(actor.look.remote())
    # Ray may notice while the process is still ending.
    check_gone({pid})


def test_workers_of_another_driver_are_forked_from_a_template_of_its_own(local_ray: None):
    context = cluster.ray.get_runtime_context()
    environment = {**os.environ, "RAY_ADDRESS": context.gcs_address, "PYTHONPATH": str(ROOT)}
    command, pipe = [sys.executable, "-c", DRIVER], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as driver:
        assert driver.stdout is not None
        job, *pids = driver.stdout.readline().split()
        assert job != context.get_job_id()
        workers = forked()
        assert [workers[int(pid)].split(".")[0] for pid in pids] == ["ray::Worker"] * 2
        assert len({parent_of(int(pid)) for pid in pids}) == 1
        driver.communicate("\n")

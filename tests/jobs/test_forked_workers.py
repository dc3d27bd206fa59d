"""The Ray that tests share forks its workers, as `forked_workers.py` says, and notices when one dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from engine.on_ray import cluster
from tests.jobs.rays import commands_below


class Worker:
    """Says what it is."""

    def look(self) -> tuple[int, str, bool, str]:
        return os.getpid(), sys.executable, "engine.on_ray.actor.task_host" in sys.modules, os.getcwd()


def forked() -> dict[int, str]:
    """The workers that were forked, with their titles."""
    below = commands_below(os.getpid())
    (template,) = [pid for pid, command in below.items() if "forked_workers.py" in command]
    return {pid: command for pid, command in commands_below(template).items() if pid != template}


def test_workers_are_forked_with_their_modules_and_their_deaths_are_noticed(local_ray: None):
    actor = cluster.ray.remote(num_cpus=0)(Worker).remote()
    pid, executable, has_modules, folder = cluster.ray.get(actor.look.remote())
    assert forked()[pid].startswith("ray::Worker")
    assert (executable, has_modules) == (sys.executable, True) and Path(folder).is_dir()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(cluster.ray.exceptions.ActorDiedError):
        cluster.ray.get(actor.look.remote())
    assert pid not in forked()

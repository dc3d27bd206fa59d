"""Ray for a benchmark: the existing one, or a local one with its own home, which ends with the process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from backedge.engine.on_ray import cluster

NICENESS = "RAY_worker_niceness"
UNCOMPILED = "PYTHONDONTWRITEBYTECODE"
ROOT = str(Path(__file__).resolve().parent.parent)


@contextmanager
def session() -> Generator[None]:
    """A connected Ray. Its processes can import `bench`, although it is not installed.

    A local one runs them with normal priority, as the peers run; Ray's default is a niceness of 15. They keep what they
    compile, as an installed package has it; otherwise each process of ours would compile it again, for half a second.
    """
    before = {name: os.environ.get(name) for name in ("HOME", "PYTHONPATH", NICENESS, UNCOMPILED)}
    was_connected = cluster.is_connected()
    os.environ["HOME"] = _home()
    os.environ.setdefault(NICENESS, "0")
    os.environ.pop(UNCOMPILED, None)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, before["PYTHONPATH"])))
    try:
        cluster.connect()
        yield
    finally:
        if not was_connected:
            cluster.disconnect()
        _reset(before)


@contextmanager
def one_thread() -> Generator[None]:
    """Let processes that start meanwhile compute in one thread each. An existing Ray does so by itself for actors."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        _reset(before)


def _reset(before: dict[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@cache
def _home() -> str:
    """One home for all sessions of this process: Ray keeps its token there, and reads it only once."""
    home = tempfile.mkdtemp(prefix="bench-home-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home

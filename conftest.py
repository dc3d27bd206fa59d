"""Every test run has a home and a temporary folder of its own, so that no test sees or touches the user's.

Files of tests are in memory where that has room. Tests of stores, sinks and cuts would wait for the disk most of their
time, and what a disk may do is shown with disks that fail on purpose. Each test process starts at most one Spark and
one Ray: starting one takes seconds.
"""

# pyright: basic

from __future__ import annotations

import doctest
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

import backedge
from tests.faults.evidence import Audit, Evidence
from tests.spark.java_classes import java_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

    from tests.jobs.rays import SharedRay

# Also where pytest is called without make: a process of a run that has to compile our modules takes 0.3 s longer.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

STARTED = {"spark", "local_ray", "postgres", "server_as_installed", "broker", "readable"}
"""Fixtures that start servers, or have a client wait for them: seconds together."""

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 4 << 30

SPARK_FOR_FEW_ROWS = {
    "adaptive.enabled": "false",
    "codegen.wholeStage": "false",
    "codegen.factoryMode": "NO_CODEGEN",
    "shuffle.partitions": "1",
}
"""Planning again after each stage and compiling code take longer than queries over a few hundred rows."""


_is_of_module = doctest.DocTestFinder._from_module  # type: ignore[attr-defined]


def _is_shown_as_public(finder: doctest.DocTestFinder, module: ModuleType, found: object) -> bool:
    """Whether a module defines something. The `__module__` of a public name says where users import it from."""
    is_public = getattr(found, "__module__", None) == "backedge"
    return _is_of_module(finder, module, found) or (
        is_public and vars(backedge)["_HOMES"].get(getattr(found, "__name__", "")) == module.__name__
    )


doctest.DocTestFinder._from_module = _is_shown_as_public  # type: ignore[attr-defined]


def has_room() -> bool:
    """Whether there is a file system in memory that holds what tests write, programs included."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MEMORY_BYTES_MIN:
        return False
    return not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC


def pytest_configure() -> None:
    """Choose the folder below which pytest and `own_home_and_temporary_folder` make theirs.

    A shell has what it starts in the background ignore SIGINT, which all that tests start would inherit.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if has_room():
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Audits take Spark, and seconds each."""
    parser.addoption("--audit-cuts", action="store_true", help="audit the cuts that tests of faults leave behind")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while thousands of tests are collected, and later not among them: they stay to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Search only files with examples for doctests: pytest would import all others and search every object in them."""
    collectors = yield
    if file_path.suffix != ".py" or b">>>" in file_path.read_bytes():
        return collectors
    return [collector for collector in collectors if type(collector) is pytest.Module]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Hand out whole files from both ends of the order in which they are collected."""
    from tests.both_ends import FromBothEnds

    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that are long or start something as slow, whether or not they say so, and order files by their needs.

    Spark is at the front and Ray at the end, for different workers. Files that take long come before short ones, which
    are in the middle: the last ones that are left.
    """
    of_file: dict[Path, set[str]] = {}
    for item in items:
        fixtures = STARTED & set(getattr(item, "fixturenames", ()))
        if fixtures:
            item.add_marker("slow")
        known = of_file.setdefault(item.path, set())
        known |= fixtures
        if item.get_closest_marker("long"):
            item.add_marker("slow")
        if item.get_closest_marker("slow"):
            known.add("slow")
    computing = [path for path, known in of_file.items() if known and known.isdisjoint({"spark", "local_ray"})]
    before = set(computing[::2])
    items.sort(key=lambda item: _place(of_file[item.path], item.path in before))


def _place(known: set[str], is_before: bool) -> int:
    """The place in the order of a file with these needs: Spark, long, short, long, Ray."""
    if "spark" in known:
        return 0
    if "local_ray" in known:
        return 4
    if not known:
        return 2
    return 1 if is_before else 3


@pytest.fixture(scope="session", autouse=True)
def own_home_and_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    # A short path: Ray makes sockets in it, whose paths may have 107 bytes.
    temporary = tempfile.mkdtemp(prefix="tests-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HOME", str(home))
        for variable in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            environment.delenv(variable, raising=False)
        environment.setenv("TMPDIR", temporary)
        # Ray's default of 15 starves its processes while other tests compute: minutes for what takes seconds.
        environment.setenv("RAY_worker_niceness", "0")
        for variable, options in java_options().items():
            environment.setenv(variable, options)
        # tempfile remembers the folder that it found first.
        environment.setattr(tempfile, "tempdir", None)
        yield
    shutil.rmtree(temporary, ignore_errors=True)


@pytest.fixture(scope="session")
def spark(own_home_and_temporary_folder: None) -> Iterator[SparkSession]:
    from backedge.recovery.spark.sessions.spark_session import close_session, open_session

    with pytest.MonkeyPatch.context() as environment:
        for variable in ("MASTER", "SPARK_REMOTE", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"):
            environment.delenv(variable, raising=False)
        session = open_session("tests", master="local[2]")
    for setting, value in SPARK_FOR_FEW_ROWS.items():
        session.conf.set(f"spark.sql.{setting}", value)
    yield session
    close_session(session)


@pytest.fixture(scope="session")
def shared_ray(own_home_and_temporary_folder: None) -> Iterator[SharedRay]:
    """For a module that starts a Ray of its own: `end` this one first."""
    from tests.jobs.rays import SharedRay

    ray = SharedRay()
    yield ray
    ray.end()


@pytest.fixture(scope="module")
def local_ray(shared_ray: SharedRay) -> None:
    """The Ray of this test process, connected."""
    shared_ray.start()


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Ray is found: commands look for one on all of this machine, where other tests run theirs and kill them."""
    from backedge.inspecting import jobs

    monkeypatch.setattr(jobs, "_runs_on_the_cluster", lambda **_: None)


@pytest.fixture
def evidence(request: pytest.FixtureRequest) -> Evidence:
    """What the test measures of its fault; it travels with the report of the test."""
    found = Evidence(_auditing(request) if request.config.getoption("audit_cuts") else None)
    request.node.user_properties.append(("evidence", found.notes))
    return found


def _auditing(request: pytest.FixtureRequest) -> Audit:
    def audit_all(folder: str, key: bytes | None) -> int:
        from backedge.recovery.spark.audit.audit_job import audit
        from backedge.recovery.spark.cut_tables.job_folder import JobFolder

        verdict = audit(request.getfixturevalue("spark"), JobFolder.open(folder, key), "all")
        if not verdict.passed:
            raise AssertionError("\n".join(verdict.lines()))
        return len(verdict.epochs)

    return audit_all

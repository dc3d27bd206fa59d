"""What is missing on this machine or on the cluster: each check returns a finding, with the command that repairs it.

The checks are given what they judge, so that each can be tried with another machine's figures.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Literal, NamedTuple

from backedge.graphs.wording import counted
from backedge.printing import duration, size
from backedge.recovery.spark.sessions.java import VERSION_MIN, check_java
from backedge.recovery.spark.spark_errors import JavaError
from backedge.recovery.stores.folder_store import local_path
from backedge.recovery.stores.job_identity import jobs_in
from backedge.recovery.stores.run_status import RunStatus
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import scheme_of, store_at

PYTHON_MIN, PYTHON_MAX = (3, 11), (3, 14)
SHARED_BYTES_MIN = 1_000_000_000
MEMORY_BYTES_MIN = 2_000_000_000
FILES_MIN = 4_096
SKEW_S_MAX = 1.0
BROWSERS = ("chromium", "google-chrome", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
EXTRAS_OF_DEVELOPERS = ("dev", "docs", "bench")
"""What only those need who change Backedge. `doctor` reports all other extras."""
TLS_FILES = ("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT")

State = Literal["ok", "optional", "missing"]
"""optional: only some flows or commands need it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check has found. `fix` is the command that repairs it, empty if all is well."""

    what: str
    state: State
    told: str
    fix: str = ""


def python_finding(version: Sequence[int]) -> Finding:
    told = ".".join(map(str, version[:3]))
    if PYTHON_MIN <= tuple(version[:2]) <= PYTHON_MAX:
        return Finding("Python", "ok", told)
    return Finding("Python", "missing", f"{told}, and 3.11 to 3.14 are supported", "python3.13 -m venv .venv")


def package_findings(requirements: Sequence[str], version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """Whether the packages that Backedge requires are installed, and those of its extras."""
    seen: set[str] = set()
    for requirement in requirements:
        wanted = re.match(r"([\w.-]+)(?:\[[\w,.-]+\])?>=([\d.]+)(?:.*extra == [\"']([\w-]+)[\"'])?", requirement)
        if wanted is None:
            raise ValueError(f"{requirement!r} is a requirement of another form than NAME>=VERSION: teach `doctor` it")
        name, least, extra = wanted.groups()
        # An extra may repeat a package, with parts of its own.
        if extra in EXTRAS_OF_DEVELOPERS or name in seen:
            continue
        seen.add(name)
        found = version_of(name)
        if found is not None and _numbers(found) >= _numbers(least):
            yield Finding(name, "ok", found)
            continue
        told = f"{'not installed' if found is None else found}, and {least} or newer is needed"
        fix = f"pip install 'backedge[{extra}]'" if extra else f"pip install --upgrade '{name}>={least}'"
        yield Finding(name, "optional" if extra else "missing", told, fix)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]


def java_finding() -> Finding:
    """Whether Spark can start."""
    try:
        check_java()
    except JavaError as error:
        fact, _, _ = str(error).partition(": ")
        fix = f"sudo apt-get install openjdk-{VERSION_MIN}-jre-headless  # macOS: brew install openjdk@{VERSION_MIN}"
        return Finding("Java", "missing", fact, fix)
    return Finding("Java", "ok", "found; `audit`, `compare` and `prepare` can start Spark")


def shared_memory_finding(folder: Path) -> Finding | None:
    """Whether there is room for what processes share in memory. None where a system has no such folder."""
    if not folder.is_dir():
        return None
    total = shutil.disk_usage(folder).total
    if total >= SHARED_BYTES_MIN:
        return Finding(str(folder), "ok", size(total))
    told = f"{size(total)}, and Ray's objects and the channels need {size(SHARED_BYTES_MIN)}"
    return Finding(str(folder), "missing", told, f"sudo mount -o remount,size=2G {folder}  # Docker: --shm-size=2g")


def memory_finding(meminfo: str, limit: str) -> Finding:
    """Whether memory is available, by /proc/meminfo and by the limit of this process's control group ("max": none)."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    available = int(found[1]) * 1024 if found else None
    if limit.isdigit():
        available = min(available or int(limit), int(limit))
    if available is None:
        return Finding("memory", "ok", "this system does not say how much is available")
    if available >= MEMORY_BYTES_MIN:
        return Finding("memory", "ok", f"{size(available)} available")
    told = f"{size(available)} available, and a local Ray with a few processes needs {size(MEMORY_BYTES_MIN)}"
    return Finding(
        "memory", "missing", told, "ps aux --sort=-rss | head  # ends what takes it, or take a larger machine"
    )


def files_finding(hard_limit: int) -> Finding:
    """Whether processes may open enough files. Ray raises the soft limit to the hard one by itself."""
    if hard_limit < 0 or hard_limit >= FILES_MIN:
        return Finding("open files", "ok", "unlimited" if hard_limit < 0 else f"{hard_limit:,}")
    told = f"at most {hard_limit:,}, and many tasks need {FILES_MIN:,}"
    return Finding(
        "open files", "missing", told, "sudo sh -c 'echo \"* hard nofile 65536\" >> /etc/security/limits.conf'"
    )


def snapshots_finding(place: str) -> Finding:
    """Whether cuts can be kept at a path or URI, and by whom they can be changed."""
    what = f"snapshots in {place}"
    if scheme_of(place) != "file":
        try:
            jobs = jobs_in(store_at(place))
        except (StoreError, OSError) as error:
            # An `OSError` puts the number of the error in front, and the place behind.
            fact, _, fix = (getattr(error, "strerror", None) or str(error)).partition(": ")
            return Finding(what, "missing", fact, fix or fact)
        return Finding(what, "ok", f"can be read, and {counted(len(jobs), 'job')} there")
    folder = Path(local_path(place))
    try:
        there = next(each for each in (folder, *folder.parents) if each.exists())
    except OSError as error:
        return Finding(what, "missing", f"cannot be looked at ({error.strerror})", f"ls -ld {quote(str(folder))}")
    if not there.is_dir():
        return Finding(what, "missing", f"{there} is a file", f"mv {quote(str(there))} {quote(f'{there}.old')}")
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding(what, "missing", f"{there} is not writable", f"sudo chown $(id -un) {quote(str(there))}")
    if there == folder and folder.stat().st_mode & 0o002:
        told = "everyone may write there, and restoring a cut runs code from it"
        return Finding(what, "missing", told, f"chmod o-w {quote(str(folder))}")
    return Finding(what, "ok", "can be written" if there == folder else "can be made")


def browser_finding(which: Callable[[str], str | None] = shutil.which) -> Finding:
    """Whether there is a browser for the tests of the live page."""
    found = next((path for name in BROWSERS if (path := which(name)) is not None), None)
    if found is not None:
        return Finding("browser", "ok", found)
    told = "no Chromium, which only the tests of the live page need"
    return Finding("browser", "optional", told, "sudo apt-get install chromium")


class NodeFacts(NamedTuple):
    """What a machine of the cluster says of itself.

    `ahead_s` is how far its clock is ahead of ours, exact to `exact_s`. `fault`: why it could not be asked.
    """

    host: str
    python: str = ""
    backedge: str = ""
    ahead_s: float = 0.0
    exact_s: float = 0.0
    fault: str = ""


def node_findings(nodes: Sequence[NodeFacts], python: str, backedge: str) -> Iterator[Finding]:
    """Whether all machines of the cluster have our versions and our time."""
    for node in nodes:
        what = f"machine {node.host}"
        if node.fault:
            yield Finding(what, "missing", node.fault, f"ssh {node.host} ray status")
        elif (node.python, node.backedge) != (python, backedge):
            theirs, ours = (f"Python {p} and Backedge {b or 'not installed'}" for p, b in
                            ((node.python, node.backedge), (python, backedge)))  # fmt: skip
            fix = f"ssh {node.host} pip install 'backedge=={backedge}'  # in a Python {python}"
            yield Finding(what, "missing", f"has {theirs}; this process has {ours}", fix)
        elif abs(node.ahead_s) - node.exact_s > SKEW_S_MAX:
            way = "ahead of" if node.ahead_s > 0 else "behind"
            told = f"its clock is {duration(abs(node.ahead_s))} {way} ours, which timers and audits notice"
            yield Finding(what, "missing", told, f"ssh {node.host} sudo timedatectl set-ntp true")
        else:
            yield Finding(what, "ok", f"Python {node.python}, Backedge {node.backedge}, clocks agree")


def resource_findings(runs: Sequence[RunStatus]) -> Iterator[Finding]:
    """In how many processes of the runs on the cluster each resource is open, and how often it was opened."""
    for run in runs:
        for name, found in run.resources.items():
            told = f"open in {counted(found.open, 'process', 'es')}, opened {counted(found.opened, 'time')}"
            yield Finding(f"resource {name} of {run.job}", "ok", told)


def tls_finding(environment: Mapping[str, str], hosts: int) -> Finding:
    """Whether the connections between machines are encrypted."""
    if environment.get("RAY_USE_TLS") != "1":
        if hosts < 2:
            return Finding("Ray TLS", "ok", "off; all processes are on one machine")
        told = f"off, and {hosts} machines talk in plain text"
        fix = "export RAY_USE_TLS=1 " + " ".join(f"{name}=FILE" for name in TLS_FILES) + "  # see docs/security.md"
        return Finding("Ray TLS", "optional", told, fix)
    for name in TLS_FILES:
        path = environment.get(name, "")
        if not os.access(path, os.R_OK):
            told = f"on, and {name} names no file that can be read: {path or '(not set)'}"
            return Finding("Ray TLS", "missing", told, f"export {name}=FILE")
    return Finding("Ray TLS", "ok", "on")

"""`backedge doctor`: what is missing on this machine or cluster, each with the command that repairs it.

0: nothing is missing. 1: something is, other than what only some flows need.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.living_runs import living_runs
from backedge.graphs.wording import counted, one_line, printable
from backedge.inspecting.health import (
    Finding,
    NodeFacts,
    browser_finding,
    files_finding,
    java_finding,
    memory_finding,
    node_findings,
    package_findings,
    python_finding,
    resource_findings,
    shared_memory_finding,
    snapshots_finding,
    tls_finding,
)
from backedge.printing import print_table
from backedge.version import VERSION

DONE, MISSING = 0, 1
ANSWER_TIMEOUT_S = 60.0


@cluster.left_as_found()
def examine(options: argparse.Namespace) -> int:
    findings = [*_of_machine(), *cluster_findings(os.environ)]
    if options.snapshots is not None:
        findings.append(snapshots_finding(options.snapshots))
    return report(findings, as_json=options.json)


def report(findings: list[Finding], *, as_json: bool) -> int:
    missing = sum(finding.state == "missing" for finding in findings)
    if as_json:
        print(json.dumps({"missing": missing, "findings": list(map(asdict, findings))}))
        return MISSING if missing else DONE
    print_table([("", "what", "found"), *((each.state, each.what, one_line(each.told)) for each in findings)])
    for each in findings:
        if each.fix:
            print(f"\n{printable(each.what)} is {each.state}. To repair it:\n    {printable(each.fix)}")
    print(f"{counted(missing, 'finding')} to repair" if missing else "nothing is missing")
    return MISSING if missing else DONE


def _of_machine() -> Iterator[Finding]:
    yield python_finding(sys.version_info[:3])
    required = _required()
    if required is None:
        yield Finding("backedge", "missing", "its packages are on the path, but it is not installed", "pip install .")
    yield from package_findings(required or [], _version_of)
    yield java_finding()
    if (shared := shared_memory_finding(Path("/dev/shm"))) is not None:
        yield shared
    yield memory_finding(_text(Path("/proc/meminfo")), _text(Path("/sys/fs/cgroup/memory.max")))
    yield files_finding(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield browser_finding()


def _required() -> list[str] | None:
    try:
        return requires("backedge") or []
    except PackageNotFoundError:
        return None


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def cluster_findings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the cluster can be reached, and whether its machines agree."""
    try:
        cluster.connect(must_exist=True)
    except cluster.ClusterError as error:
        if address := environment.get("RAY_ADDRESS"):
            told = f"RAY_ADDRESS is {address}: {error}"
            yield Finding("Ray cluster", "missing", told, "ray start --head  # or: unset RAY_ADDRESS")
        elif isinstance(error, cluster.SeveralClustersError):
            yield Finding("Ray cluster", "ok", f"none is looked at: {error}")
        elif cluster.runs_here():
            told = f"one is running on this machine, and refuses us: {error}"
            yield Finding("Ray cluster", "missing", told, "export RAY_AUTH_MODE=token  # or, if it is yours: ray stop")
        else:
            yield Finding("Ray cluster", "ok", "none is running; `backedge run` starts one on this machine")
        yield tls_finding(environment, hosts=1)
        return
    machines, hosts = cluster.machines(), cluster.hosts()
    yield Finding("Ray cluster", "ok", f"{counted(machines, 'daemon')} on {counted(hosts, 'host')}")
    yield from node_findings(_nodes(), platform.python_version(), VERSION)
    yield tls_finding(environment, hosts)
    yield from resource_findings(living_runs())


def _nodes() -> list[NodeFacts]:
    """What each daemon's machine says of itself. The second answer comes quickly, from a process that runs already."""
    facts: list[NodeFacts] = []
    list(_asked())
    for host, answer, took_s, at_s in _asked():
        if isinstance(answer, Exception):
            facts.append(NodeFacts(host, fault=cluster.first_line(answer)))
        else:
            named, python, backedge, theirs_s = answer
            facts.append(NodeFacts(named, python, backedge, theirs_s - at_s, took_s))
    return facts


def _asked() -> Iterator[tuple[str, Any, float, float]]:
    """Of each daemon: its host, its answer or the error, how long that took, and our time in the middle of it."""
    for host, ask in cluster.on_each_daemon(_facts()):
        began_s = time.time()
        try:
            answer: Any = cluster.get(ask(), ANSWER_TIMEOUT_S)
        except (cluster.RayError, TimeoutError) as error:
            answer = error
        took_s = time.time() - began_s
        yield host, answer, took_s, began_s + took_s / 2


def _facts() -> Any:
    # A function of this module would be loaded there by its name, and Backedge may be missing there.
    def facts() -> tuple[str, str, str, float]:
        from importlib.metadata import PackageNotFoundError, version

        try:
            backedge = version("backedge")
        except PackageNotFoundError:
            backedge = ""
        return socket.gethostname(), platform.python_version(), backedge, time.time()

    return facts

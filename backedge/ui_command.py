"""`backedge ui`: the live page of the jobs of a folder, and of the runs that are alive on the cluster, until Ctrl-C.

`backedge run --ui` serves the same page beside a run, until the run is over.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from backedge.arguments import key_from
from backedge.flows import WrongCallError
from backedge.inspecting.jobs import check_folder
from backedge.recovery.stores.run_status import RunStatus

if TYPE_CHECKING:
    from backedge.engine.on_ray.api.living_runs import LivingRuns
    from backedge.page.page_server import PageServer
    from backedge.page.page_source import Living


def serve_page(options: argparse.Namespace) -> int:
    # Ray is imported by the commands that need it.
    from backedge.engine.on_ray import cluster

    with cluster.left_as_found():
        check_folder(options.snapshots)
        _join_cluster(is_needed=options.snapshots is None)
        key = key_from(options.key_file)
        server = _server(options.snapshots, key, options.port, has_control=options.control)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            signal.pause()
        except KeyboardInterrupt:
            return 0
        finally:
            signal.signal(signal.SIGTERM, before)
            server.stop()
    return 0


@contextmanager
def page_beside_run(snapshots: str | None, key: bytes | None, *, is_wanted: bool, has_control: bool) -> Generator[None]:
    """Serve the page while a run goes on, if it is wanted."""
    if not is_wanted:
        yield
        return
    server = _server(snapshots, key, port=0, has_control=has_control)
    try:
        yield
    finally:
        server.stop()


def _server(snapshots: str | None, key: bytes | None, port: int, *, has_control: bool) -> PageServer:
    from backedge.engine.on_ray.api.living_runs import LivingRuns
    from backedge.page.page_control import PageControl
    from backedge.page.page_server import PageServer
    from backedge.page.page_source import PageSource

    runs = LivingRuns()
    source = PageSource(snapshots, key, _living(runs))
    source.jobs()
    server = PageServer(source, port, PageControl(runs.job).steer if has_control else None)
    server.start()
    print(f"backedge: the page is at {server.address}", file=sys.stderr, flush=True)
    return server


def _living(runs: LivingRuns) -> Living:
    """Asks the cluster for the runs that are alive, if this process is connected to one."""
    from backedge.engine.on_ray import cluster

    def ask() -> Sequence[RunStatus]:
        try:
            return runs.ask() if cluster.is_connected() else ()
        except (cluster.RayError, ConnectionError):
            return ()  # the cluster has ended; what the store knows is shown

    return ask


def _join_cluster(*, is_needed: bool) -> None:
    from backedge.engine.on_ray import cluster

    try:
        cluster.connect(must_exist=True)
    except cluster.ClusterError as error:
        if is_needed:
            raise WrongCallError(f"{error}; or give the folder or URI of the cuts") from error
        if os.environ.get("RAY_ADDRESS"):
            raise

"""A month in an hour: many flows at once on a local Ray, and faults from a seed for as long as it lasts.

    python -m tests.soak --minutes 60 --seed 7 [--json FILE] [--out FOLDER]

What every flow writes must be there exactly once, and its cuts must pass the audit. Meanwhile a watch samples what the
processes hold and how long things take: what grows fails the soak. FOLDER gets a page with plots, `soak.html`, and the
jobs whose audit has failed. The exit code is 0 if all is well, 1 if not, 130 after Ctrl-C or SIGTERM, which leave
nothing running.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from backedge.recovery.spark.sessions.spark_session import session_for
from tests.databases.fault_proxy import FaultProxy
from tests.databases.postgres_process import PostgresProcess
from tests.gates import HANG_S
from tests.jobs.rays import SharedRay
from tests.objects.object_servers import BUCKET, s3_server
from tests.on_ray.test_full_disk import small_disk
from tests.soak.audits import Audits
from tests.soak.faults import Faults, Machine, World
from tests.soak.flows import mix
from tests.soak.lanes import LIFE_S, Lane
from tests.soak.page import page_of
from tests.soak.report import Progress, Report
from tests.soak.schedule import STEADY, schedule
from tests.soak.watch import Watch, below
from tests.spark.java_classes import java_options

GREEN, RED, INTERRUPTED = 0, 1, 130
SAMPLES = 240
SAMPLE_S_MIN = 3.0
TOLD_S = 20.0
END_S = 20.0
MEMORY = Path("/dev/shm")
FOLDER = Path(__file__).parent / "machine"
"""In the PYTHONPATH of the cluster: its Pythons begin with what is in it."""


def main() -> int:
    """Run a soak, and say what came of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long faults happen; default: 60")
    parser.add_argument("--seed", type=int, default=7, help="draws the faults; default: 7")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write figures and verdict as JSON")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), metavar="FOLDER", help="default: build/soak")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    given.out.mkdir(parents=True, exist_ok=True)
    with own_places() as folder:
        progress = Progress(60 * given.minutes, folder, given.out.absolute())
        try:
            soak(progress, given.seed)
        except Exception:  # noqa: BLE001 - what was found until then is reported
            progress.fail("the soak itself", traceback.format_exc())
    if progress.interrupted.is_set():
        print("interrupted; nothing is left running", file=sys.stderr)
        return INTERRUPTED
    report = Report.of(progress, given.seed)
    (given.out / "soak.html").write_text(page_of(report), encoding="utf-8")
    if given.json is not None:
        given.json.write_bytes(msgspec.json.encode(report))
    print("\n".join([*report.lines(), f"page: {given.out / 'soak.html'}"]))
    return RED if report.failures else GREEN


@contextmanager
def own_places() -> Generator[Path]:
    """A home and temporary folders for all that is started, in memory if there is room: removed at the end."""
    has_memory = MEMORY.is_dir() and os.access(MEMORY, os.W_OK)
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir=MEMORY if has_memory else None))
    before = dict(os.environ)
    for name in ("home", "tmp", "jobs"):
        (folder / name).mkdir()
    places = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "RAY_worker_niceness": "0"}
    os.environ.update({**places, **java_options(), "SOAK_MACHINE": str(folder / "machine")})
    tempfile.tempdir = None
    try:
        yield folder / "jobs"
    finally:
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
        shutil.rmtree(folder, ignore_errors=True)


def soak(progress: Progress, seed: int) -> None:
    """Start everything, let faults happen, and end everything."""
    with ExitStack() as stack:
        try:
            _soak(progress, seed, stack)
        except KeyboardInterrupt:
            progress.interrupted.set()
            progress.over.set()
            # A second Ctrl-C would leave things running.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        stack.close()
    deadline_s = time.monotonic() + END_S
    while (left := below(os.getpid())) and time.monotonic() < deadline_s:
        time.sleep(0.2)
    if left:
        raise AssertionError(f"processes are left: {left}")


def _soak(progress: Progress, seed: int, stack: ExitStack) -> None:
    machine = Machine(Path(os.environ["SOAK_MACHINE"]))
    server = PostgresProcess()
    stack.callback(server.remove)
    database = stack.enter_context(FaultProxy(server.socket))
    store = stack.enter_context(s3_server())
    disk = stack.enter_context(small_disk(progress.folder / "disk"))
    os.environ.update(store.environment)
    audits = Audits(stack.enter_context(session_for("soak", "local[1]")), progress)
    ray = SharedRay(FOLDER)
    stack.callback(ray.end)
    ray.start()
    cuts = {"disk": str(disk), "objects": f"s3://{BUCKET}"}
    lanes = {
        # Lives of different lengths, so that they do not all begin at once.
        name: Lane(name, mixed, progress, progress.seconds if name == STEADY else LIFE_S + 4 * place, cuts.get(name))
        for place, (name, mixed) in enumerate(mix(server, database.dsn).items())
    }
    faults = Faults(World(lanes, machine, server, database, store.proxy, disk), progress)
    stack.callback(_end, progress, lanes, faults)
    progress.began_s = time.monotonic()
    for lane in lanes.values():
        lane.audits = audits
        lane.thread.start()
    faults.begin(schedule(seed, progress.seconds))
    _watch(progress, Watch(progress, lanes[STEADY]))
    progress.fail_if_stalled()
    _end(progress, lanes, faults)


def _watch(progress: Progress, watch: Watch) -> None:
    """Sample and tell until the time is over."""
    every_s = max(SAMPLE_S_MIN, progress.seconds / SAMPLES)
    told_s = 0.0
    while (left_s := progress.seconds - progress.now_s) > 0:
        progress.over.wait(min(every_s, left_s))
        watch.sample()
        if progress.now_s - told_s > TOLD_S:
            told_s = progress.now_s
            print(progress.line(), file=sys.stderr, flush=True)
    progress.over.set()


def _end(progress: Progress, lanes: dict[str, Lane], faults: Faults) -> None:
    """Let faults and lives end. It is called again if that was interrupted."""
    progress.over.set()
    if progress.interrupted.is_set():
        for lane in lanes.values():
            lane.give_up()
    faults.finish()
    for lane in lanes.values():
        if lane.thread.ident is not None:
            lane.thread.join(3 * HANG_S)
        if lane.thread.is_alive():
            progress.fail(lane.name, "its last life does not end")
            # Ray aborts this process if a thread still waits for it when it has ended.
            lane.give_up()
            lane.thread.join(HANG_S)


if __name__ == "__main__":
    sys.exit(main())

"""A job that has lived long, beside the same job in its first minute: what users do with it must take as long.

The old job has 200,000 cuts behind it, of which the last three and its first savepoint are kept, 1,000 restarts, as
many entries in its chain as both together, and 10,000 published files. Nine of ten restarts follow the death of a
process, the others that of the supervisor, or are another run. The young one has 100 cuts and three restarts.
`long_lived_job.py` makes both, in memory, and says what of them is real.

Measured in turns are `start` (what a run that resumes does until its tasks are told to run, without Ray's processes),
`restore` (the part of it in which the task takes its state back), `status` (`backedge status`), `list` (`backedge
snapshots list`), `audit` (by Spark, whose session is there), and `page` (what the live page gets of its jobs, of this
one, and of its last cut). No ratio may be above 1.5. The files of the old job are compared, one by one, with those that
its kept cuts need.

With --records, the old job has that many cuts, and restarts and files in proportion: for a short trial.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from backedge.command import main as backedge
from backedge.engine.io.files.output_claims import OWNER
from backedge.page.page_source import PageSource
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.chain import landmarks
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.names import JOB, PAST, STATUS, entry_file, graph_file, past_file, path_of
from bench.long_lived_job import NAME, SINK, LongLivedJob
from bench.measuring import Limit, Report, interleaved
from bench.options import Options
from bench.ours import BenchError

CUTS = 200_000
CUTS_A_RESTART = 200
YOUNG_CUTS, YOUNG_RESTARTS = 100, 3
RATIO_MAX = 1.5
CALLS = 5
"""How many calls are measured together."""

SHARED_MEMORY = "/dev/shm"
"""To wait for a disk 400,000 times would take most of the time."""


def run(options: Options) -> Report:
    """Make both jobs, measure them in turns, and count the files."""
    from backedge.recovery.spark.sessions.spark_session import close_session, open_session

    cuts = options.records or CUTS
    with tempfile.TemporaryDirectory(
        prefix="bench-", dir=SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
    ) as at:
        young, old = LongLivedJob(Path(at, "young")), LongLivedJob(Path(at, "old"))
        live(young, YOUNG_CUTS, YOUNG_CUTS // YOUNG_RESTARTS)
        began_s = time.monotonic()
        live(old, cuts, CUTS_A_RESTART)
        lived_s = time.monotonic() - began_s
        there, needed = files_of(old), needed_by(old)
        entries = CutStore(old.snapshots, NAME).links()[-1].number
        lived = {"cuts": old.cuts, "entries": entries, "restarts": old.restarts, "published": len(old.published())}
        spark = open_session("bench longlife")
        try:
            cases = {"old": cases_of(old, spark), "young": cases_of(young, spark)}
            in_turns = {f"{what}, {age}": cases[age][what] for what in cases["old"] for age in cases}
            found = interleaved(in_turns, options.turns)
        finally:
            close_session(spark)
    ratios = {what: found[f"{what}, old"].over(found[f"{what}, young"]) for what in cases["old"]}
    limits = [
        Limit(f"{name} takes {ratio:.2f} times as long as in the first minute, at most {RATIO_MAX}", ratio <= RATIO_MAX)
        for name, ratio in ratios.items()
    ]
    odd = sorted(there ^ needed)
    told = f": {', '.join(odd[:3])}" if odd else ""
    limits.append(Limit(f"{len(there):,} files, and what is kept needs {len(needed):,}{told}", not odd))
    return Report(
        "longlife",
        "ms",
        options.turns,
        {name: samples for name, samples in found.items() if name.endswith("old")},
        {name: samples for name, samples in found.items() if name.endswith("young")},
        ratios,
        tuple(limits),
        more={**lived, "lived_s": round(lived_s), "files": len(there)},
    )


def live(job: LongLivedJob, cuts: int, cuts_a_restart: int) -> None:
    """Take cuts, with restarts of each kind between them, and a savepoint at the beginning."""
    job.start()
    job.savepoint("first")
    for restart in range(1, cuts // cuts_a_restart + 1):
        job.take_cuts(cuts_a_restart)
        if restart % 20 == 0:
            job.start()
        elif restart % 10 == 0:
            job.lose_supervisor()
        else:
            job.lose_process()
    job.take_cuts(3)


def cases_of(job: LongLivedJob, spark: Any) -> dict[str, Callable[[], float]]:
    """What is measured of a job, in milliseconds."""
    found = {what: partial(cpu_ms, ask) for what, ask in asked_of(job).items()}
    return {**found, "restore": lambda: job.restored_ms, "audit": lambda: audit_ms(job, spark)}


def asked_of(job: LongLivedJob) -> dict[str, Callable[[], None]]:
    """What users do with a job, in this process."""
    place = ["--snapshots", job.snapshots]
    return {
        "start": job.start,
        "status": lambda: command(["status", NAME, *place]),
        "list": lambda: command(["snapshots", "list", *place]),
        "page": lambda: page(job),
    }


def cpu_ms(work: Callable[[], object]) -> float:
    """The milliseconds of CPU time of some calls. There is no disk to wait for, and other programs change it little."""
    began_s = time.process_time()
    for _ in range(CALLS):
        work()
    return (time.process_time() - began_s) * 1e3 / CALLS


def command(arguments: list[str]) -> None:
    """A command of `backedge`, in this process."""
    with redirect_stdout(io.StringIO()) as told:
        if backedge(arguments) != 0:
            raise BenchError(f"backedge {' '.join(arguments)}: {told.getvalue()}")


def audit_ms(job: LongLivedJob, spark: Any) -> float:
    """The milliseconds that the audit of the last cut takes, by the clock: most of it is Spark's."""
    from backedge.recovery.spark.audit.audit_job import audit
    from backedge.recovery.spark.cut_tables.job_folder import JobFolder

    began_s = time.perf_counter()
    verdict = audit(spark, JobFolder.open(str(Path(job.snapshots, NAME))))
    took_ms = (time.perf_counter() - began_s) * 1e3
    if not verdict.passed:
        raise BenchError("\n".join(verdict.lines()))
    return took_ms


def page(job: LongLivedJob) -> None:
    """What a page asks for that has just been opened."""
    source = PageSource(job.snapshots, None, lambda: ())
    status = source.status(NAME)
    json.dumps([source.jobs(), status, source.cut(NAME, status["last_epoch"])])


def files_of(job: LongLivedJob) -> set[str]:
    """All files of the cuts, and of the staging of the output."""
    staging = Path(job.output, "_staging")
    found = [(at, path) for at in (Path(job.snapshots, NAME), staging) for path in at.rglob("*") if path.is_file()]
    return {f"{at.name}/{path.relative_to(at)}" for at, path in found}


def needed_by(job: LongLivedJob) -> set[str]:
    """What the cuts that are kept need.

    The entries of the chain that are not shortened yet, and the few pasts that lead to the last one. And for each
    published file what it holds, because the savepoint is older: a run may go back there and replace the output.
    """
    store = CutStore(job.snapshots, NAME)
    links, cuts = store.links(), [store.manifest_of(epoch) for epoch in store.cuts()]
    ordinal = max(int(path.stem) for path in Path(store.path, PAST).iterdir())
    past: int = json.loads(Path(store.path, *past_file(ordinal)).read_bytes())["number"]
    kept = {cut.epoch for cut in cuts}
    manifests = [link.manifest_name for link in links if isinstance(link.entry, Manifest) and link.entry.epoch in kept]
    parts = [*map(past_file, landmarks(ordinal)), *map(entry_file, range(past + 1, links[-1].number + 1))]
    names = {JOB, STATUS, *map(path_of, parts), *(path_of(graph_file(cut.graph_hash)) for cut in cuts), *manifests}
    names |= {file.name for cut in cuts for file in cut.files}
    (place,) = Path(store.path, "output", SINK, "places").iterdir()  # named by the digest of the folder
    rolls = {name.removeprefix(f"part-{store.job_id[:16]}.").removesuffix(".jsonl") for name in job.published()}
    staged = {f"_staging/{NAME}/{SINK}/rolls/{name}" for name in rolls} | {f"_staging/{OWNER}"}
    return {f"{NAME}/{name}" for name in names} | {f"{NAME}/output/{SINK}/places/{place.name}"} | staged

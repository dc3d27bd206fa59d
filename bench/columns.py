"""A keyed sum of columns with an exchange: chunks of rows -> by key -> a table of sums, in two tasks.

Parallelism 2, a process per slice, with a cut every second. Rows are not combined before the exchange, because a chunk
holds most keys once: all of them travel, half of them to the other process. The time is from the first chunk to the
last sum, at the slower task; files are in the page cache. All cases must end with the same sums.

Peers: arrow, pyarrow's group_by on a table in memory, in one process with all cores; ray_data, Ray Data's groupby on
blocks in memory, if pandas is installed, which it needs.

Then cuts of a table of ten million rows (`table_cuts.py`). Peers: uncut, the same without cuts; block_us, the time in
which a cut takes one block.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from backedge import Flow, Items, Table
from backedge.engine.batches.arrow import arrow, parquet
from backedge.engine.io.files.file_formats import Parquet
from bench import table_cuts
from bench.measuring import Report, Samples, at_least, beside_peers, ours_and_peers
from bench.options import Options
from bench.ours import run_to_end
from bench.peers import columns_arrow, columns_ray_data, peers
from bench.session import session
from bench.workloads import SumWorkload

LIMITS = {"arrow": 0.8, "ray_data": 10.0}
ROWS, KEYS = 20_000_000, 1_000_000
CHUNK_ROWS = 1_000_000
CHUNKS_BEGAN_S: list[float] = []
"""When this process began with each chunk: a file written at that time would wait for the disk."""


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    known = peers({"arrow": columns_arrow.run, "ray_data": columns_ray_data.run}, options.peer)
    if known["ray_data"] is columns_ray_data.run and not columns_ray_data.is_installed():
        del known["ray_data"]
    with tempfile.TemporaryDirectory(prefix="bench-columns-") as folder, session():
        workload = SumWorkload(folder, options.records or ROWS, KEYS)
        write_rows(workload, options.seed)
        found = ours_and_peers(lambda: measure(workload), workload, known, options.turns)
        seconds, rows = options.seconds or table_cuts.SECONDS, options.records or table_cuts.ROWS
        cuts = table_cuts.measure(rows, seconds, options.seed, options.turns)
    return compare(found, cuts, workload.rows)


def compare(found: dict[str, Samples], cuts: dict[str, Samples], rows: int) -> Report:
    """How many times faster ours is than the peers, and what cuts of a table leave of the speed."""
    absent = {} if "ray_data" in found else {"absent": {"ray_data": "not installed; make bench installs it"}}
    unit = "M rows/s; *_us: microseconds"
    report = beside_peers("columns", unit, found, LIMITS, is_rate=True, more={"rows": rows, **absent})
    ratios = {"uncut": cuts["cut"].over(cuts["uncut"]), "block_us": cuts["block_us"].over(cuts["stall_us"])}
    return replace(
        report,
        figures={**report.figures, "cut": cuts["cut"], "stall_us": cuts["stall_us"]},
        peers={**report.peers, "uncut": cuts["uncut"], "block_us": cuts["block_us"]},
        ratios={**report.ratios, **ratios},
        limits=(*report.limits, *at_least(ratios, table_cuts.LIMITS)),
    )


def write_rows(workload: SumWorkload, seed: int) -> None:
    """Draw the rows, and compute the sum of each key."""
    generator = np.random.default_rng(seed)
    keys = generator.integers(0, workload.keys, workload.rows)
    values = generator.integers(0, 1_000, workload.rows)
    np.save(workload.file("keys"), keys)
    np.save(workload.file("values"), values)
    np.save(workload.file("sums"), np.bincount(keys, values, workload.keys).astype(np.int64))


def measure(workload: SumWorkload) -> float:
    """Millions of rows a second."""
    output = tempfile.mkdtemp(dir=workload.folder)
    run_to_end(make_flow(workload, output), every=1.0, parallelism=2, actors="slice")
    rows = parquet().read_table(f"{output}/sums")
    workload.check("ours", rows["key"].to_numpy(), rows["sum"].to_numpy())
    began_s, ended_s = arrow().compute.min(rows["began_s"]), arrow().compute.max(rows["ended_s"])
    return workload.rows / (ended_s.as_py() - began_s.as_py()) / 1e6


def rows_from(workload: SumWorkload, batch: dict[str, Any]) -> dict[str, Any]:
    """Read a chunk of rows."""
    CHUNKS_BEGAN_S.append(time.perf_counter())
    (start,) = batch["start"].tolist()
    return {
        name: np.load(workload.file(file), mmap_mode="r")[start : start + CHUNK_ROWS]
        for name, file in (("key", "keys"), ("value", "values"))
    }


def make_flow(workload: SumWorkload, output: str) -> Flow:
    """Reads the rows, sums them by key, and writes the sums."""
    flow = Flow("columns")
    starts = flow.read(Items([{"start": start} for start in range(0, workload.rows, CHUNK_ROWS)]), name="starts")
    rows = starts.map_batches(partial(rows_from, workload), batch_format="numpy", batch_size=1, name="rows")
    sums = rows.key_by("key").process(Sums, batch_format="numpy", name="sums")
    sums.write(Parquet(f"{output}/sums"), name="written")
    return flow


class Sums:
    """The sum of each key, in a table."""

    table = Table(key={"key": "int64"}, columns={"sum": "int64"})

    def on_batch(self, ctx: Any, rows: dict[str, Any]) -> None:
        """Add the values of the rows."""
        ctx.table.combine(np.add, ctx.table.rows(rows["key"]), sum=rows["value"])

    def on_end(self, ctx: Any) -> None:
        """Emit the sums, each with the times of this process's first chunk and last sum."""
        sums = ctx.table.scan()
        ended_s = time.perf_counter()
        times = {"began_s": min(CHUNKS_BEGAN_S, default=ended_s), "ended_s": ended_s}
        ctx.emit_batch({**sums, **{name: np.full(len(ctx.table), time_s) for name, time_s in times.items()}})

"""The shortest ways from the corner of a grid, as a vertex program: thousands of rounds with few active vertices.

Peers: ray, two Ray actors by hand whose arrays travel through Ray, round by round as ours; scipy, Dijkstra's algorithm
in one process. `bench/spreading.py` says what is measured.
"""

from __future__ import annotations

import tempfile

from bench import spreading
from bench.graph_input import write_grid
from bench.measuring import Report
from bench.options import Options
from bench.peers import spread_ray, spread_scipy
from bench.session import session
from bench.workloads import SpreadWorkload

SIDE = 1_000
LIMITS = {"ray": 4.0}


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    side = options.side or SIDE
    with tempfile.TemporaryDirectory(prefix="bench-graph-") as folder, session():
        edges = write_grid(folder, side, options.seed)
        workload = SpreadWorkload(folder=folder, vertices=side * side, edges=edges, root=0)
        known = {"ray": spread_ray.run, "scipy": spread_scipy.run}
        return spreading.run("paths", workload, known, LIMITS if side == SIDE else {}, options, side=side)

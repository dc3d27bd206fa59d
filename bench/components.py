"""Connected components of an R-MAT graph, as a vertex program: the lowest number spreads along all edges.

Peers: scipy, `connected_components` in one process; ray, two Ray actors by hand whose arrays travel through Ray.
`bench/spreading.py` says what is measured.
"""

from __future__ import annotations

import tempfile

from bench import spreading
from bench.graph_input import write_graph
from bench.measuring import Report
from bench.options import Options
from bench.peers import spread_ray, spread_scipy
from bench.session import session
from bench.workloads import SpreadWorkload

SCALE = 20
LIMITS = {"ray": 1.2, "scipy": 0.5}


def run(options: Options) -> Report:
    """Measure ours and the peers in turns."""
    scale = options.scale or SCALE
    with tempfile.TemporaryDirectory(prefix="bench-graph-") as folder, session():
        edges = write_graph(folder, scale, options.seed)
        workload = SpreadWorkload(folder=folder, vertices=1 << scale, edges=edges)
        known = {"ray": spread_ray.run, "scipy": spread_scipy.run}
        return spreading.run("components", workload, known, LIMITS if scale == SCALE else {}, options, scale=scale)

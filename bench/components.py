"""Connected components of a graph, as a vertex program: the lowest number spreads along all edges.

The graph is an R-MAT graph, or with `--graph debian` a real one (`bench/debian_graph.py`).

Peers: scipy, `connected_components` in one process; ray, two Ray actors by hand whose arrays travel through Ray.
`bench/spreading.py` says what is measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from bench import spreading
from bench.debian_graph import write_debian
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
    limits: Mapping[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-graph-") as folder, session():
        if options.graph == "debian":
            vertices, edges = write_debian(folder)
            more: dict[str, Any] = {"graph": "debian", "vertices": vertices}
        else:
            scale = options.scale or SCALE
            vertices, edges, more = 1 << scale, write_graph(folder, scale, options.seed), {"scale": scale}
            limits = LIMITS if scale == SCALE else {}
        workload = SpreadWorkload(folder=folder, vertices=vertices, edges=edges)
        known = {"ray": spread_ray.run, "scipy": spread_scipy.run}
        return spreading.run("components", workload, known, limits, options, **more)

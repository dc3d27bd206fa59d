"""The options of a benchmark, the same for all of them."""

from __future__ import annotations

from dataclasses import dataclass

from bench.measuring import TURNS_MIN


@dataclass(frozen=True)
class Options:
    """`None` means the default of the benchmark.

    - seed: draws the input. turns: how often each case is measured.
    - peer: a file whose `run(workload)` stands in for a peer, see `bench.peers`.
    - seconds: how long a case is measured a turn. records: how many records the input has. Both are for short trials.
    - scale: only for `pagerank` and `components`, the logarithm of the number of vertices.
    - graph: only for `components`, "rmat" or "debian".
    - side: only for `paths`, the length of a side of the grid.
    - large: only for `loop`, its workload ten times as large, to its end.
    """

    seed: int = 0
    turns: int = TURNS_MIN
    peer: str | None = None
    seconds: float | None = None
    records: int | None = None
    large: bool = False
    scale: int | None = None
    graph: str = "rmat"
    side: int | None = None

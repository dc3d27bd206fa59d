"""The examples on Ray, killed, beside what Spark computes from the same input; and what they show a person of it."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backedge import compare
from examples.cyclic import (
    agent_loop,
    async_training,
    communities,
    components,
    connected_components,
    count_and_print,
    crawler,
    distances,
    import_cycles,
    k_core,
    kmeans,
    nested_loops,
    pagerank,
    reachability,
    retry_queue,
    shortest_paths,
    token_ring,
    transfers,
    triangles,
)
from tests.examples.killed import check_killed_once


@pytest.mark.usefixtures("local_ray", "spark")
@pytest.mark.parametrize(
    ("example", "size", "parallelism", "early", "rounds"),
    [
        # There `pagerank` goes on until its ranks rest; here it makes some rounds.
        (pagerank, 200, 2, "rank@records=1000", 8),
        (nested_loops, 100, 1, "peel@records=3000", None),
        (crawler, 20, 2, None, None),
        (agent_loop, agent_loop.SIZE // 8, 1, None, None),
    ],
)
def test_a_run_that_is_killed_once_gives_what_spark_computes(
    example: ModuleType, size: int, parallelism: int, early: str | None, rounds: int | None, tmp_path: Path
):
    """In rounds on columns, in nested loops, and in free loops with calls. The long tests have the others."""
    check_killed_once(example, tmp_path / "cuts", size, parallelism, early, rounds)


@pytest.mark.long
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("example", "kills", "seed", "size", "parallelism"),
    [
        # With seed 7, a task of `distances` is killed when it has all of its 1,000 edges and values circulate.
        *((example, 1, 7, size, 2) for example, size in ((pagerank, 200), (distances, 400), (kmeans, 30))),
        *((example, 1, 7, 160, 2) for example in (import_cycles, components, k_core, triangles)),
        *((communities, 1, 7, 200, 2), (shortest_paths, 1, 7, 50, 1), (connected_components, 1, 7, 150, 1)),
        *((nested_loops, 2, 3, 200, 1), (async_training, 2, 3, 320, 1)),
        *((example, 1, 3, example.SIZE // 8, 1) for example in (count_and_print, token_ring, retry_queue)),
        # In the first cut of the agent loop mostly calls are out, and often no message is under way: later have some.
        *((agent_loop, 3, 3, agent_loop.SIZE // 8, 1), (reachability, 1, 3, reachability.SIZE // 8, 2)),
        (transfers, 1, 3, 400, 2),
    ],
)
def test_a_clean_run_and_one_that_is_killed_give_what_spark_computes(
    example: ModuleType, kills: int, seed: int, size: int, parallelism: int, spark: Any
):
    found = compare(example, kills=kills, seed=seed, size=size, parallelism=parallelism, spark=spark)
    assert found["failures"] == [] and found["rows"] > 0 and found["planted_error_found"]


@pytest.mark.parametrize(
    ("example", "rows", "told"),
    [
        (pagerank, [{"page": 1, "rank": 0.5}, {"page": 2, "rank": 1.5}], "2 pages, 2.0 in all"),
        (
            shortest_paths,
            [{"town": 0, "minutes": 0, "via": 0}, {"town": 1, "minutes": 7, "via": 0}],
            "2 towns; 1 is 7 minutes",
        ),
        (connected_components, [{"document": 1, "original": 0}, {"document": 0, "original": 0}], "1 to keep"),
        (components, [{"vertex": 1, "lowest": 0}, {"vertex": 0, "lowest": 0}], "2 devices in 1 households"),
        (distances, [{"vertex": 0, "seconds": 0.0}, {"vertex": 1, "seconds": 9.0}], "is 9 seconds from a station"),
        (k_core, [{"vertex": 0, "stays": True, "neighbours": 3}, {"vertex": 1, "stays": False}], "1 of 2 members"),
        (import_cycles, [{"vertex": 1, "cycle": 1}, {"vertex": 2, "cycle": 2}], "2 modules, of which 2 are in no"),
        (communities, [{"vertex": 1, "label": 0}, {"vertex": 0, "label": 0}], "2 members in 1 communities"),
        (triangles, [{"vertex": 1, "triangles": 2}, {"vertex": 0, "triangles": 0}], "2 members, 2 triangles"),
        (count_and_print, [{"printer": shop, "article": "pen", "number": 1} for shop in ("north", "south")], "pen"),
        (token_ring, [{"wish": 4, "member": 0, "turn": 1, "page": 1}], "of the wishes 4"),
        (retry_queue, [{"tries": 2, "paused_ms": 40, "delivered": True}], "1 delivered at try 2"),
        (agent_loop, [{"conversation": 1, "ended": "out of budget", "turns": 7}], "out of budget  after  7 turns"),
        (crawler, [{"url": "http://a/", "host": "a", "status": "200", "links": 2}], "1 a                200"),
        (reachability, [{"version": 9, "vertex": 2, "reached": 1}], "1 of 101 vertices"),
        (nested_loops, [{"account": account, "core": 2} for account in (7, 3)], "accounts 3, 7"),
        (async_training, [{"batch": batch, "steps": 10 * batch} for batch in range(12)], "from batch 6"),
    ],
)
def test_a_person_is_shown_what_came_out(
    example: Any, rows: list[dict[str, Any]], told: str, capsys: pytest.CaptureFixture[str]
):
    example.show(rows)
    assert told in capsys.readouterr().out

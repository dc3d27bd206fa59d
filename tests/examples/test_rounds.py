"""Examples in rounds that are told how many: what they come to then, in the simulator, is what Spark computes then."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backedge import case_of, simulate
from backedge.cases import takes
from examples.cyclic import communities, components, k_core, kmeans, nested_loops, pagerank, triangles
from examples.cyclic.page import ENTRIES

SIZE = 12
"""So few that the simulator is quick, and so many that another round makes a difference."""

FIGURE = {
    **{pagerank: "rank", kmeans: "distance_mm", nested_loops: "core"},
    **{components: "lowest", k_core: "neighbours"},
    **{communities: "label", triangles: "triangles"},
}
"""What is computed for each row."""

AT_ONCE = {nested_loops: {"seconds": 0}}

SOURCES = {
    pagerank: {"links": "links/data", "pages": "pages"},
    kmeans: {"measured": "flowers", "first": "centres"},
    nested_loops: {"accounts": "accounts"},
    components: {"pairs": "pairs", "devices": "devices"},
    k_core: {"pairs": "pairs"},
    communities: {"pairs": "pairs"},
    triangles: {"pairs": "pairs"},
}


def figures(example: ModuleType, rows: list[dict[str, Any]]) -> dict[Any, float]:
    (key,) = example.KEYS
    found = {row[key]: row[FIGURE[example]] for row in rows}
    assert len(found) == len(rows) == SIZE
    return found


def test_what_goes_in_rounds_takes_how_many_in_its_flow_and_in_spark():
    in_rounds = {name for name, entry in ENTRIES.items() if entry.loop.startswith("in rounds")}
    cases = {name: case_of(f"examples.cyclic.{name}") for name in ENTRIES}
    assert {name for name, case in cases.items() if takes(case.make_flow, "rounds")} == in_rounds
    assert {name for name, case in cases.items() if takes(case.reference, "rounds")} == in_rounds


@pytest.mark.slow
@pytest.mark.parametrize("example", SOURCES)
def test_what_there_is_after_two_rounds_is_what_spark_computes(example: ModuleType, spark: Any, tmp_path: Path):
    def read(path: str) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in spark.read.parquet(f"{tmp_path}/{path}").collect()]

    def computed(rounds: int) -> dict[Any, float]:
        size = {"size": SIZE} if takes(example.reference, "size") else {}
        frame = example.reference(spark, str(tmp_path), **size, rounds=rounds)
        return figures(example, [row.asDict() for row in frame.collect()])

    example.prepare(spark, str(tmp_path), SIZE)
    inputs = {source: read(path) for source, path in SOURCES[example].items()}
    size = {"size": SIZE} if takes(example.flow, "size") else {}
    flow = example.flow(str(tmp_path), rounds=2, **size, **AT_ONCE.get(example, {}))
    one, two = computed(rounds=1), computed(rounds=2)

    def check(outputs: Any) -> None:
        found = figures(example, outputs[example.SINK])
        assert found == pytest.approx(two)
        assert found != pytest.approx(one), "a round more makes a difference"

    # Without crashes: what these flows promise under them is shown beside them. Sums of floats depend on their order.
    simulate(flow, inputs, seeds=[], check_outputs=False, check=check)

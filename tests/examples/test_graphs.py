"""PageRank, components, paths, cores and k-means: what they promise, in the simulator."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from backedge import simulate
from examples.cyclic import (
    communities,
    components,
    connected_components,
    distances,
    import_cycles,
    k_core,
    kmeans,
    pagerank,
    shortest_paths,
    triangles,
)

Record = dict[str, Any]

TREE = [(0, 3, 4), (0, 1, 1), (1, 2, 2), (2, 3, 1), (3, 4, 5), (7, 8, 1)]
"""Roads with their minutes: town 3 is reached as quickly by way of 0 as of 2, and 8 not at all."""


def roads(*ways: tuple[int, int, int]) -> list[Record]:
    return [{"town": start, "target": end, "minutes": minutes} for start, end, minutes in ways]


def minutes_from_home(ways: Iterable[tuple[int, int, int]]) -> dict[int, int]:
    """From nearest to nearest, as Dijkstra does it."""
    around: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for start, end, minutes in ways:
        around[start].append((end, minutes))
    found: dict[int, int] = {}
    waiting = [(0, 0)]
    while waiting:
        minutes, town = heapq.heappop(waiting)
        if town not in found:
            found[town] = minutes
            for end, more in around[town]:
                heapq.heappush(waiting, (minutes + more, end))
    return found


@pytest.mark.slow
def test_towns_are_reached_by_the_shortest_way_in_whatever_order_travellers_arrive():
    flow = shortest_paths.flow("", seconds=0)
    inputs = {"roads": roads(*TREE), "depots": [{"town": 0}]}
    reached = simulate(flow, inputs, seeds=range(6), crashes=2).outputs["reached"]
    assert {row["town"]: row["minutes"] for row in reached} == minutes_from_home(TREE)
    assert {row["town"]: row["via"] for row in reached} == {0: 0, 1: 0, 2: 1, 3: 0, 4: 3}


@pytest.mark.slow
def test_documents_keep_the_lowest_number_of_those_they_are_tied_to():
    flow = connected_components.flow("", seconds=0)
    pairs = [(4, 5), (3, 4), (2, 7), (3, 9)]
    inputs = {
        "texts": [{"document": number, "words": ""} for number in range(10)],
        "pairs": [{"document": one, "other": other} for one, other in pairs],
    }
    found = simulate(flow, inputs, seeds=range(6), crashes=2).outputs["originals"]
    lowest = {row["document"]: row["original"] for row in found}
    assert lowest == {**{number: number for number in range(10)}, 4: 3, 5: 3, 9: 3, 7: 2}


@pytest.mark.slow
def test_pages_are_ranked_as_by_the_matrix():
    links = [(0, 1), (0, 2), (1, 2), (2, 0), (3, 2)]
    matrix = np.zeros((4, 4))
    for page, target in links:
        matrix[target, page] = 1 / sum(page == other for other, _ in links)
    ranks, change = np.ones(4), 4.0
    while change >= pagerank.RESTS_BELOW * 4:
        after = 1 - pagerank.DAMPING + pagerank.DAMPING * matrix @ ranks
        change, ranks = np.abs(after - ranks).sum(), after
    inputs = {
        "links": [{"page": page, "target": target} for page, target in links],
        "pages": [{"vertex": page} for page in range(4)],
    }
    found = simulate(pagerank.flow("", size=4), inputs, seeds=range(3), crashes=2).outputs["ranks"]
    assert {row["page"]: row["rank"] for row in found} == pytest.approx(dict(enumerate(ranks)))


@pytest.mark.slow
def test_devices_know_the_lowest_number_of_their_household_and_lone_ones_their_own():
    pairs = [{"device": one, "other": other} for one, other in ((4, 5), (5, 6), (2, 9))]
    inputs = {"pairs": pairs, "devices": [{"vertex": number} for number in range(10)]}
    found = simulate(components.flow(""), inputs, seeds=range(3), crashes=2, parallelism=2).outputs["households"]
    lowest = {row["vertex"]: row["lowest"] for row in found}
    assert lowest == {**{number: number for number in range(10)}, 5: 4, 6: 4, 9: 2}


@pytest.mark.slow
def test_crossings_are_as_far_from_a_station_as_the_quickest_way():
    streets = [(3, 4, 5), (4, 3, 7), (4, 5, 1), (5, 6, 2), (3, 6, 20)]
    inputs = {"ways": [{"source": one, "target": other, "seconds": float(s)} for one, other, s in streets]}
    found = simulate(distances.flow("", pause_s=0), inputs, seeds=range(3), crashes=2, parallelism=2).outputs["times"]
    assert {row["vertex"]: row["seconds"] for row in found} == {3: 0, 4: 5, 5: 6, 6: 8}


@pytest.mark.slow
def test_members_leave_one_after_the_other_until_all_have_enough_neighbours():
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 4), (4, 5), (5, 6), (4, 6)]
    inputs = {"pairs": [{"one": one, "other": other} for one, other in pairs]}
    found = simulate(k_core.flow(""), inputs, seeds=range(3), crashes=2, parallelism=2).outputs["members"]
    assert {row["vertex"] for row in found if row["stays"]} == {0, 1, 2, 3}
    assert {row["vertex"]: row["neighbours"] for row in found if not row["stays"]} == {4: 1, 5: 0, 6: 0}


@pytest.mark.slow
def test_modules_that_import_each_other_are_in_one_circle_and_others_alone():
    imports = [(1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 4), (6, 1), (6, 7), (8, 8)]
    inputs = {"imports": [{"module": one, "imports": other} for one, other in imports]}
    found = simulate(import_cycles.flow(""), inputs, seeds=range(3), crashes=2, parallelism=2).outputs["cycles"]
    assert {row["vertex"]: row["cycle"] for row in found} == {1: 3, 2: 3, 3: 3, 4: 5, 5: 5, 6: 6, 7: 7, 8: 8}


@pytest.mark.slow
def test_a_member_takes_the_label_that_most_of_its_neighbours_have():
    pairs = [(0, 1), (0, 2), (1, 2), (3, 4), (3, 5), (4, 5), (2, 3)]
    inputs = {"pairs": [{"one": one, "other": other} for one, other in pairs]}
    found = simulate(communities.flow(""), inputs, seeds=range(3), crashes=2, parallelism=2).outputs["labels"]
    assert {row["vertex"]: row["label"] for row in found} == {0: 0, 1: 0, 2: 0, 3: 2, 4: 2, 5: 2}


@pytest.mark.slow
def test_triangles_are_counted_at_their_middle():
    pairs = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (0, 3), (3, 4)]
    inputs = {"pairs": [{"one": one, "other": other} for one, other in pairs]}
    found = simulate(triangles.flow(""), inputs, seeds=range(3), crashes=2, parallelism=2).outputs["members"]
    assert {row["vertex"]: row["triangles"] for row in found} == {0: 0, 1: 2, 2: 2, 3: 0, 4: 0}


@pytest.mark.slow
def test_flowers_far_from_each_other_are_in_groups_of_their_own_and_a_centre_without_flowers_stays():
    def at(place: int) -> dict[str, float]:
        return dict.fromkeys(kmeans.MEASURES, place)

    inputs = {
        "measured": [{"flower": number, **at(place)} for number, place in enumerate((1, 2, 3, 50, 52))],
        "first": [{"group": group, **at(place)} for group, place in enumerate((1, 10, 1_000))],
    }
    result = simulate(kmeans.flow(""), inputs, seeds=range(3), crashes=2, parallelism=2)
    flowers, resting = result.outputs["flowers"], result.outputs["resting"]
    assert {row["flower"]: row["group"] for row in flowers} == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1}
    assert {row["group"]: row["petal_width"] for row in resting} == {0: 2, 1: 51, 2: 1_000}


def test_the_flowers_are_those_that_were_measured():
    lines = [line.split(",") for line in kmeans.DATA.read_text().splitlines()[1:]]
    means = defaultdict(list)
    for _, species, *measures in lines:
        means[species].append(np.array(measures, float))
    assert len(lines) == kmeans.MEASURED
    # What Fisher's paper gives as the means of fifty flowers each.
    assert {species: [*np.mean(rows, axis=0).round(3)] for species, rows in means.items()} == {
        "setosa": [5.006, 3.428, 1.462, 0.246],
        "versicolor": [5.936, 2.77, 4.26, 1.326],
        "virginica": [6.588, 2.974, 5.552, 2.026],
    }

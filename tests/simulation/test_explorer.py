"""The explorer: it ends, finds nothing in the core, finds what is broken, and loses nothing by what makes it short."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from backedge.engine.simulation.breaks import BREAKS
from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.cut.cut import Cut
from proof.cloning import essence
from proof.explorer import Exploration, Explorer
from proof.tiny import SplitsRuntime, TinyCapture
from proof.tiny_graphs import TinyGraph, graphs

SPLITS = "splits that are found"
LONG = ("two overlapping epochs, two inputs, an abort", "rounds", f"{SPLITS}, unaligned")
"""Walked by `python -m proof explore` alone: minutes."""

SHORT = [graph.name for graph in graphs() if graph.name not in LONG]
FULL = "channels with room for one batch"
UNALIGNED = ("unaligned", "unaligned, one record")
CREDIT = "credit that is late or lost"
SAME_KEYS = "deltas of the same keys"
DEATH = "a death during the restore"
BEGUN = {"deltas": 300, SAME_KEYS: 300, DEATH: 800, CREDIT: 6_000, SPLITS: 1_500}
BEGUN |= {"two heads, two bodies, shuffled": 1_000, **dict.fromkeys(LONG, 1_500)}
"""Graphs whose whole walk takes several seconds or more, and how many states the tests that are not long visit."""
MINUTE = (
    *(*BEGUN, *UNALIGNED, "overtaking, batches in parts", "two overlapping epochs, an abort"),
    *("a late write", "a probe too early"),
)
"""Graphs whose whole walk is left to the long tests."""
LONG_ALONE = ("two heads, two bodies, shuffled", "a probe too early", DEATH, "nested loops")
"""Graphs of which the walk without shortening takes long."""


def marked(names: list[str], long: tuple[str, ...]) -> list[Any]:
    """The names, those among them that take long marked so."""
    return [pytest.param(name, marks=pytest.mark.long) if name in long else name for name in names]


OF_THE_PROTOCOL = ["no-loop-log", "log-without-the-queue", "no-hold-before-capture", "capture-before-alignment"]
OF_THE_PROTOCOL += ["log-not-replayed", "duplicate-barrier", "end-not-counted-as-barrier", "wall-clock-capture"]
OF_CREDIT = ["back-edge-waits-for-credit", "credit-counts-barriers", "marker-overtakes-a-batch"]
FOUND: list[Any] = [
    *((rule, DEATH, {}, " append\n") for rule in (*OF_THE_PROTOCOL, "blocking-variant")),
    ("no-loop-log", SPLITS, {}, "a log is exactly what was in its channel"),
    *((rule, FULL, {}, "") for rule in OF_CREDIT),
    ("credit-lost-after-an-abort", FULL, {"aborts": 1}, "abort_epoch"),
    ("credit-not-repeated", CREDIT, {}, " lose_credit "),
    # Seeds find these two, too: see test_breaks.py.
    pytest.param("reads-not-noted", "deltas", {}, "was counted", marks=pytest.mark.long),
    pytest.param("supersedes-unseen", SAME_KEYS, {}, "was counted", marks=pytest.mark.long),
    ("spilled-batches-unlogged", "a spilled loop, batches together", {}, ""),
]
"""Breaks that the explorer finds, the graph in which it does, and what the story of the first one has."""


def graph(name: str, **bounds: int) -> TinyGraph:
    found = next(graph for graph in graphs() if graph.name == name)
    return replace(found, bounds={**found.bounds, **bounds})


REDUCED = [name for name in SHORT if (alone := Explorer(graph(name)).alone) is not None and alone.is_used]
"""Graphs in which a task may go first. The walk of the others is not shortened in this way."""


@cache
def walked(name: str) -> tuple[Exploration, Iterable[Cut]]:
    """What the whole walk of a graph has found, and its cuts; tests share them."""
    explorer = Explorer(graph(name))
    return explorer.run(), judged_in(explorer)


def judged_in(explorer: Explorer) -> list[Cut]:
    return [cut for cut, *_ in explorer.judged.values()]


def essences(cuts: Iterable[Cut]) -> set[Any]:
    contents = [
        (cut.epoch, {task: (s.operators, s.inputs, s.ended, s.rounds) for task, s in cut.snapshots.items()})
        for cut in cuts
    ]
    return {essence(content) for content in contents}


@pytest.mark.slow
@pytest.mark.parametrize("name", marked(SHORT, MINUTE))
def test_every_schedule_of_a_small_graph_is_right(name: str):
    found, _ = walked(name)
    assert found.complete
    assert found.violations == []
    assert (found.cuts_with_log > 0) == (name != SAME_KEYS)
    assert found.ends > 0
    assert found.crash_points > 500


@cache
def begun(name: str) -> Exploration:
    """What the beginning of a walk has found; tests share it."""
    return Explorer(graph(name), states_max=BEGUN[name]).run()


@pytest.mark.slow
@pytest.mark.parametrize("name", BEGUN)
def test_what_comes_first_of_a_long_graph_is_right(name: str):
    found = begun(name)
    assert not found.complete
    assert found.violations == []
    assert found.cuts > 0


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "name", "bounds", "told"), FOUND)
def test_a_broken_rule_is_found_with_its_story(rule: str, name: str, bounds: dict[str, int], told: str):
    found = Explorer(graph(name, **bounds), BREAKS[rule].parts()).run()
    assert found.violations and told in found.violations[0]


class Forgetful(SplitsRuntime):
    """A reader whose cuts lack the splits that it has."""

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> TinyCapture:
        kept = self.state
        self.state = {**kept, "open": []} if "open" in kept else kept
        capture = super().capture(epoch, attempt, base)
        self.state = kept
        return capture


@pytest.mark.slow
def test_a_split_that_no_cut_has_is_found():
    found = Explorer(replace(graph(SPLITS), runtime=Forgetful)).run()
    assert found.violations and "splits are in these places" in found.violations[0]


@pytest.mark.slow
def test_channels_are_full_and_batches_wait_and_credit_is_late_and_lost_and_sent_again():
    assert {"full_channels", "spilled", "split_batches", "taken_together"} <= walked(FULL)[0].exercised.keys()
    assert {"late_credit", "lost_credit", "credit_sent_again", "full_channels"} <= begun(CREDIT).exercised.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", marked([name for name in REDUCED if name not in UNALIGNED], LONG_ALONE))
def test_letting_a_task_go_first_loses_no_cut(name: str):
    (reduced, cuts), whole = walked(name), Explorer(graph(name), reduced=False)
    assert reduced.complete
    assert whole.run().complete
    assert essences(cuts) == essences(judged_in(whole))
    assert len(essences(cuts)) > 10


def test_what_tells_only_the_way_tells_no_states_apart():
    assert essence({"a": {1, 2}, "b": [3]}) == essence({"b": [3], "a": {2, 1}})
    assert essence([1, 2]) != essence([2, 1])


def test_states_with_different_values_left_to_take_in_are_told_apart_and_keep_them():
    left = iter({"a": 1, "b": 2}.items())
    whole = essence(left)
    assert whole == essence(iter({"a": 1, "b": 2}.items()))
    assert next(left) == ("a", 1)
    assert essence(left) != whole and list(left) == [("b", 2)]


def test_an_exploration_that_is_cut_short_is_not_complete():
    found = Explorer(graph("nested loops"), states_max=50).run()
    assert not found.complete

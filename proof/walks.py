"""Everything that the explorers walk, under one name each."""

from __future__ import annotations

import time
from collections.abc import Mapping

from proof.explored_answers import ANSWER_WALKS, explore_answers
from proof.explored_pipelines import WALKS, explore_pipelines
from proof.explorer import Exploration, Explorer
from proof.tiny_graphs import TinyGraph, graphs


def names() -> list[str]:
    return [*(graph.name for graph in graphs()), *WALKS, *ANSWER_WALKS]


def bounds_of(name: str) -> Mapping[str, int]:
    """How often each thing may happen."""
    walked = WALKS.get(name) or ANSWER_WALKS.get(name)
    return walked or {"records": len(_graph(name).counted_at_end), **_graph(name).bounds}


def walk(name: str) -> tuple[Exploration, float]:
    """The findings for a graph, and the processor time in seconds."""
    started = time.process_time()
    if name in WALKS:
        found = explore_pipelines(name)
    elif name in ANSWER_WALKS:
        found = explore_answers(name)
    else:
        found = Explorer(_graph(name)).run()
    return found, round(time.process_time() - started, 1)


def _graph(name: str) -> TinyGraph:
    return next(graph for graph in graphs() if graph.name == name)

"""The operators, one a file: how each kind runs in one task. `make_operator` gives the one for a kind."""

from __future__ import annotations

from collections.abc import Callable

from engine.operators.base import OperatorRuntime, Place
from engine.operators.filter import FilterOperator
from engine.operators.flat_map import FlatMapOperator
from engine.operators.iterate import IterateOperator
from engine.operators.map import MapOperator
from engine.operators.map_async import MapAsyncOperator
from engine.operators.map_batches import MapBatchesOperator
from engine.operators.process import ProcessOperator
from engine.operators.sink import SinkOperator
from engine.operators.source import SourceOperator
from engine.operators.split import SplitOperator
from engine.operators.stateful_map import StatefulMapOperator
from graphs.plan import Kind

_KINDS: dict[Kind, Callable[[Place], OperatorRuntime]] = {
    Kind.SOURCE: SourceOperator,
    Kind.SINK: SinkOperator,
    Kind.MAP: MapOperator,
    Kind.FLAT_MAP: FlatMapOperator,
    Kind.FILTER: FilterOperator,
    Kind.SPLIT: SplitOperator,
    Kind.MAP_BATCHES: MapBatchesOperator,
    Kind.MAP_ASYNC: MapAsyncOperator,
    Kind.STATEFUL_MAP: StatefulMapOperator,
    Kind.PROCESS: ProcessOperator,
    Kind.ITERATE: IterateOperator,
}


def make_operator(place: Place) -> OperatorRuntime:
    """The operator for a place, by its kind."""
    return _KINDS[place.operator.kind](place)

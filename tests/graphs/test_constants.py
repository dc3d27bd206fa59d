"""Constants of a flow: what functions and classes see of them, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import numpy as np
import pytest

from backedge import BadOptionError, Collect, Constant, DuplicateNameError, Flow, Items, VertexProgram, simulate
from backedge.graphs.constant import own_arguments, share

PRICES = np.array([3.0, 5.0, 8.0])


class Priced:
    def __init__(self, prices: Any) -> None:
        self.prices = prices

    def on_record(self, ctx: Any, article: int) -> None:
        ctx.emit(float(self.prices[article]))


class Nearest(VertexProgram):
    combine, best = "min", "far"

    def __init__(self, starts: Any) -> None:
        self.starts = starts

    def start(self, vertices: Any) -> dict[str, Any]:
        return {"far": self.starts[vertices.ids]}

    def along(self, sent: Any, weights: Any) -> Any:
        return sent + 1


def priced(**given: Any) -> Flow:
    flow = Flow("priced")
    prices = flow.constant("prices", **given)
    articles = flow.read(Items([0, 1, 2]), name="articles").rebalance()
    articles.map(lambda article: float(prices.value[article]), name="map").write(Collect(), name="by function")
    articles.process(Priced, prices=prices).write(Collect(), name="by class")
    return flow


def test_functions_and_classes_of_a_simulated_flow_have_the_value_and_it_is_loaded_once():
    loads: list[int] = []

    def load() -> Any:
        loads.append(1)
        return PRICES

    found = simulate(priced(load=load), seeds=range(5), crashes=2)
    assert sorted(found.outputs["by function"]) == sorted(found.outputs["by class"]) == [3, 5, 8]
    assert found.crashes > 0
    assert len(loads) == 1


def test_a_vertex_program_gets_the_value():
    flow = Flow("near")
    starts = flow.constant("starts", np.array([np.inf, 0.0, np.inf]))
    edges = flow.read(Items([{"source": 1, "target": 2}, {"source": 2, "target": 0}]), name="edges")
    flow.vertex_program(Nearest, edges, starts=starts).write(Collect(), name="far")
    found = simulate(flow, seeds=range(2)).outputs["far"]
    assert {row["vertex"]: row["far"] for row in found} == {1: 0, 2: 1, 0: 2}


def test_an_argument_is_the_value_itself_and_other_arguments_are_copies():
    flow, rates = Flow("rates"), [1]
    found = own_arguments({"prices": flow.constant("prices", PRICES), "rates": rates})
    assert found["prices"] is PRICES
    assert found["rates"] == rates and found["rates"] is not rates


def test_it_travels_by_name_and_is_what_the_process_shares():
    flow = Flow("travelling")
    arrived = pickle.loads(cloudpickle.dumps(flow.constant("large", bytes(1_000_000))))
    assert len(cloudpickle.dumps(arrived)) < 1_000
    with pytest.raises(LookupError, match=r"'large'.*'travelling'"):
        _ = arrived.value
    share("travelling", "large", lambda: b"of a process that has died")
    share("travelling", "large", lambda: b"shared")
    assert arrived.value == b"shared"
    share("travelling", "large", lambda: b"later")
    assert arrived.value == b"shared"


def of_another_flow() -> None:
    prices: Constant[Any] = Flow("other").constant("prices", PRICES)
    Flow("priced").read(Items([0])).process(Priced, prices=prices)


def twice() -> None:
    flow = Flow("twice")
    flow.constant("prices", 1)
    flow.read(Items([0]), name="prices")


@pytest.mark.parametrize(
    ("mistake", "error", "told"),
    [
        (lambda: Flow().constant("prices"), BadOptionError, "neither a value nor load="),
        (lambda: Flow().constant("prices", 1, load=list), BadOptionError, "both a value and load="),  # type: ignore[call-overload]
        (lambda: Flow().constant("prices", load=3), BadOptionError, "cannot be called"),  # type: ignore[call-overload]
        (of_another_flow, BadOptionError, "argument prices=<constant 'prices' of flow 'other'>"),
        (twice, DuplicateNameError, "already has a constant of that name"),
    ],
)
def test_mistakes_are_refused_when_the_flow_is_built(mistake: Callable[[], Any], error: type[Exception], told: str):
    with pytest.raises(error, match=told):
        mistake()

"""Sums over edges by compiled code, compared with NumPy's, for rows of any length."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from backedge.engine.vertices import edge_sums
from backedge.engine.vertices import edges as vertex_edges
from backedge.engine.vertices.edge_sums import PIECE_EDGES, EdgeSums
from backedge.engine.vertices.edges import Array, OutEdges
from tests.every import every

LENGTHS = {
    "as many as a piece has, one less and one more": [PIECE_EDGES, PIECE_EDGES - 1, PIECE_EDGES + 1],
    "many pieces": [10 * PIECE_EDGES + 3, 1, 2],
    "fewer rows than are summed at once": [2],
    "as many rows as are summed at once": [3] * 8,
    "one row more": [3] * 8 + [1],
    "of all lengths": list(range(1, 40)),
    "some without edges": [0, 3, 0, 0, 5, 0],
}


def of_lengths(lengths: list[int], vertices: int = 50) -> tuple[Array, Array, Array]:
    """Sources, where each row starts, and degrees."""
    sources = np.random.default_rng(3).integers(0, vertices, sum(lengths)).astype(np.int32)
    return sources, np.concatenate([[0], np.cumsum(lengths)]), np.bincount(sources, minlength=vertices)


compiles = pytest.mark.slow
"""What is compiled first in a process takes seconds."""


@compiles
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("kind", ["float64", "int64"])
def test_each_row_is_the_sum_of_what_its_edges_carry(lengths: list[int], kind: str):
    sources, starts, degrees = of_lengths(lengths)
    sums = EdgeSums(sources, starts, degrees)
    for seed in (1, 2):
        sent = np.random.default_rng(seed).integers(-(1 << 40), 1 << 40, len(degrees)).astype(kind)
        found = sums.of(sent)
        assert found.dtype == sent.dtype
        assert found.tolist() == [sent[sources[a:b]].sum() for a, b in pairwise(starts)]


@compiles
def test_what_is_filled_up_adds_nothing_even_to_infinite_sums():
    assert EdgeSums(*of_lengths([1, 2, 3])).of(np.full(50, np.inf)).tolist() == [np.inf] * 3


@compiles
def test_the_results_of_two_rounds_are_two_arrays():
    sums = EdgeSums(*of_lengths([2, 1]))
    first = sums.of(np.ones(50))
    sums.of(np.zeros(50))
    assert first.tolist() == [2.0, 1.0]


def edges_between(vertices: int, count: int) -> OutEdges:
    ends = np.random.default_rng(7).integers(0, vertices, (2, count))
    return OutEdges(vertices, ends[0], ends[1], None)


@compiles
@pytest.mark.parametrize("share", [1.0, 0.6])
@pytest.mark.parametrize("kind", ["float64", "int64", "float32"])
def test_many_edges_are_summed_as_few_are(monkeypatch: pytest.MonkeyPatch, share: float, kind: str):
    monkeypatch.setattr(vertex_edges, "EDGES_MIN", 1)
    compiled: list[Any] = []
    of = EdgeSums.of
    monkeypatch.setattr(EdgeSums, "of", lambda sums, sent: compiled.append(sent) or of(sums, sent))
    edges, generator = edges_between(60, 500), np.random.default_rng(9)
    sent = generator.integers(0, 1_000, 60).astype(kind)
    active = None if share == 1 else generator.random(60) < share
    rows, sums = edges.combined(sent, active, "sum", None)
    assert rows is None
    assert sums.tolist() == edges.all_combined(sent, active, "sum", None).tolist()
    assert len(compiled) == (kind != "float32")


@every("along", [None, lambda sent, weights: sent])
@every("share", [1.0, 0.9, 0.05])
@every("kind", ["int64", "uint64", "int8", "uint16"])
def test_sums_of_integers_that_exceed_their_type_are_refused_and_others_are_exact(kind: str, share: float, along: Any):
    edges, generator = OutEdges(60, *np.indices((60, 10)).reshape(2, -1), None), np.random.default_rng(9)
    active = None if share == 1 else generator.random(60) < share
    senders = 60 if active is None else int(active.sum())
    fits = np.full(60, np.iinfo(kind).max // senders).astype(kind)
    _, sums = edges.combined(fits, active, "sum", along)
    assert sums.tolist() == [int(fits[0]) * senders] * 10
    with pytest.raises(OverflowError, match=f"{kind}"):
        edges.combined(fits + fits.dtype.type(fits[0] // senders + 1), active, "sum", along)


@pytest.mark.parametrize("edges_min", [1, 501])
def sums_are_those_of_numpy(sent: Any) -> None:
    edges = edges_between(60, 500)
    _, sums = edges.combined(sent, None, "sum", None)
    assert sums.tolist() == edges.all_combined(sent, None, "sum", None).tolist()


@pytest.mark.parametrize("edges_min", [1, 501])
def test_sums_need_numba_only_if_there_are_many_edges(monkeypatch: pytest.MonkeyPatch, edges_min: int):
    monkeypatch.setattr(vertex_edges, "EDGES_MIN", edges_min)
    monkeypatch.setattr(vertex_edges, "can_compile", edge_sums.can_compile.__wrapped__)
    if edges_min == 1:
        monkeypatch.setattr(edge_sums, "find_spec", lambda name: None)
    monkeypatch.setattr(edge_sums, "import_module", pytest.fail)
    sums_are_those_of_numpy(np.arange(60.0))


def test_a_numba_that_cannot_be_imported_is_reported_and_numpy_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(name: str) -> Any:
        raise ImportError(f"{name} needs an older NumPy")

    monkeypatch.setattr(vertex_edges, "EDGES_MIN", 1)
    monkeypatch.setattr(vertex_edges, "can_compile", edge_sums.can_compile.__wrapped__)
    monkeypatch.setattr(edge_sums, "import_module", fail)
    sums_are_those_of_numpy(np.arange(60.0))
    assert "numba cannot be imported: numba needs an older NumPy" in capsys.readouterr().err


@compiles
def test_a_numba_that_is_told_to_compile_nothing_is_not_used(monkeypatch: pytest.MonkeyPatch):
    can_compile = edge_sums.can_compile.__wrapped__
    assert can_compile()
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    assert not can_compile()


@pytest.mark.parametrize("kind", [">f8", "u8", "f2"])
def test_numbers_of_other_kinds_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(vertex_edges, "EDGES_MIN", 1)
    monkeypatch.setattr(EdgeSums, "of", pytest.fail)
    sums_are_those_of_numpy(np.arange(60).astype(kind))


@compiles
def test_what_is_sent_may_be_read_only_and_strided():
    sums, sent = EdgeSums(*of_lengths([2, 1])), np.arange(100.0)[::2]
    sent.flags.writeable = False
    assert sums.of(sent).tolist() == sums.of(sent.copy()).tolist()

"""What a flow says of `Received`, and what its cuts let go of."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backedge import BadOptionError, Collect, Flow, Range, Received, ReceivedError, Source, UnknownStoreError
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.settled_input import SettledInput
from backedge.engine.received.received_actor import EndpointSpec
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.io import SplitReader
from backedge.recovery.protocol.orders import CutId, Sweep
from backedge.recovery.restore.outline import CutOutline, OperatorOutline, TaskOutline
from tests.every import every

SECRET = "a-secret-of-this-test"


@every(
    "options",
    [
        *({"port": port} for port in (0, -1, 65536, True, "8070")),
        *({"bytes_max": count} for count in (0, 1000, 1e9)),
        *({"token": token} for token in ("short", "with a\nline of text", "ünprintable-as-header")),
        {"host": "0.0.0.0"},
        {"host": "10.1.2.3", "token": ""},
    ],
)
@every("kind", [Received.http, Received.lines])
def test_what_it_cannot_do_is_refused(kind: Any, options: dict[str, Any]):
    with pytest.raises(BadOptionError, match=r"Received\."):
        kind("orders", **{"port": 8070, **options})


def test_a_store_that_nothing_opens_is_refused():
    with pytest.raises(UnknownStoreError):
        Received.http("nowhere://orders", port=8070)


def test_it_is_shown_without_its_token():
    orders = Received.http("s3://bucket/orders", port=8070, host="10.1.2.3", token=SECRET)
    assert repr(orders) == "Received.http('s3://bucket/orders', port=8070)"
    assert (orders.label, orders.relative_path, orders.absolute()) == ("orders", None, orders)


def test_a_relative_folder_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    orders = Received.lines("orders", port=8070)
    assert (orders.relative_path, orders.absolute().log) == ("orders", str(tmp_path / "orders"))


class Endpoint:
    """The process of an endpoint that cannot be opened at the moment."""

    def __init__(self, source: Received) -> None:
        self.spec = SimpleNamespace(remote=lambda: EndpointSpec(source.absolute().log, source.bytes_max, source.door))
        self.ready = SimpleNamespace(remote=lambda: ("", "the store is away"))


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_ends_no_endpoint_that_others_have_started(monkeypatch: pytest.MonkeyPatch, is_there: bool):
    orders = Received.http("orders", port=8070)
    endpoints = [Endpoint(orders)] if is_there else []

    def start_actor(*_: Any, **options: Any) -> Endpoint:
        endpoints.append(Endpoint(orders))
        return endpoints[0]

    monkeypatch.setattr(cluster, "connect", lambda: None)
    monkeypatch.setattr(cluster, "find_actor", lambda name, space: endpoints[0] if endpoints else None)
    monkeypatch.setattr(cluster, "start_actor", start_actor)
    monkeypatch.setattr(cluster, "near_here", lambda: None)
    monkeypatch.setattr(cluster, "get", lambda found: found)
    monkeypatch.setattr(cluster, "kill", endpoints.remove)
    with pytest.raises(ReceivedError, match="the store is away"):
        orders.start()
    assert bool(endpoints) == is_there


TOLD: list[tuple[str, list[Mapping[str, Any]]]] = []


@dataclasses.dataclass(frozen=True)
class Kept(Source[int]):
    """Notes what it is told of cuts."""

    settles = True

    def settle(self, reader: str, kept: Sequence[Mapping[str, Any]]) -> None:
        TOLD.append((reader, sorted(kept, key=str)))

    def open_split(self, split: str, position: Any) -> SplitReader[int]:
        raise NotImplementedError


def cut(epoch: int, splits: Mapping[str, int], operator: str = "orders") -> CutOutline:
    positions = {split: pickle.dumps(position) for split, position in splits.items()}
    task = TaskOutline(False, {operator: OperatorOutline(splits=positions)})
    return CutOutline(Epoch(epoch), "", {operator: 1}, {TaskId(operator, 0): task})


def sweep(*epochs: int) -> Sweep:
    cuts = frozenset(CutId(Epoch(epoch), Attempt(1)) for epoch in epochs)
    return Sweep(Attempt(1), False, cuts, None, frozenset(), frozenset())


def test_a_source_is_told_of_all_cuts_that_are_kept_and_once():
    """A run that has gone back to cut 1 keeps cut 3 before cut 2 is dropped: the oldest may not need most."""
    cuts = {
        1: cut(1, {"0-of-1": 5}),
        2: cut(2, {"0-of-1": 9}),
        3: cut(3, {"0-of-1": 5}),
        4: cut(4, {"a": 1}, "renamed"),
    }
    read: list[int] = []

    def manifest(epoch: int) -> Any:
        read.append(epoch)
        return SimpleNamespace(outline=cuts[epoch])

    flow = Flow("shop")
    flow.read(Kept(), name="orders").write(Collect(), name="done")
    settled = SettledInput(flow.plan(), "shop", cast(Any, SimpleNamespace(manifest=manifest)), keep=2)
    TOLD.clear()
    for kept in ((), (1,), (1,), (1, 2), (2, 3), (1, 2, 3), (4,)):
        settled.settle(sweep(*kept))  # 1 is a savepoint: it is kept, and later cuts are enough to go on from
    at = [{"0-of-1": 5}]
    assert [
        ("shop.orders", at),
        ("shop.orders", [*at, {"0-of-1": 9}]),
        ("shop.orders", [*at, {"0-of-1": 9}]),
        ("shop.orders", [{}]),
    ] == TOLD
    assert read == [1, 2, 3, 4], "a cut is read once"


def test_cuts_are_not_read_for_sources_that_keep_nothing():
    flow = Flow("plain")
    flow.read(Range(3), name="numbers").write(Collect(), name="done")
    TOLD.clear()
    SettledInput(flow.plan(), "plain", cast(Any, SimpleNamespace()), keep=2).settle(sweep(1))
    assert TOLD == []

"""Which values the constants of a run have that starts or continues: compared with the cut before anything happens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from backedge import BadOptionError, Collect, Flow, GraphMismatchError, Range, run
from backedge.engine.batches.constant_bytes import constant_bytes, constant_in
from backedge.engine.on_ray.api.kept_constants import Values, given_values, keep, values_of
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.run_spec import identity_of
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.ids import Epoch
from backedge.graphs.plan import Plan
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.digests import digest_of_constant
from backedge.recovery.stores.task_files import StoredFile
from tests.on_ray.supervised import Supervised
from tests.stores.snapshots import DEPLOYMENT, begin, manifest_for

PRICES = np.arange(10)


def plan_with(name: str = "prices", **given: Any) -> Plan:
    flow = Flow("shop")
    flow.constant(name, **given)
    flow.read(Range(3), name="numbers").write(Collect(), name="done")
    return flow.plan()


def file_of(value: Any) -> StoredFile:
    data = constant_bytes(value)
    return StoredFile("constants/x-1.constant", len(data), digest_of_constant(data), None)


def values(plan: Plan, of_cut: Mapping[str, StoredFile], *dropped: str) -> Values:
    return values_of(plan, given_values(plan), of_cut, dropped)


def fails() -> Any:
    raise AssertionError("the loader was called")


def test_a_loader_is_not_called_where_the_cut_has_a_value():
    of_cut = {"prices": file_of(PRICES)}
    assert values(plan_with(load=fails), of_cut) == Values(of_cut, {})


def test_a_value_that_equals_that_of_the_cut_is_not_kept_again():
    of_cut = {"prices": file_of(PRICES)}
    assert values(plan_with(value=np.arange(10)), of_cut) == Values(of_cut, {})


def test_another_value_than_that_of_the_cut_is_refused_until_the_former_one_is_dropped():
    plan, of_cut = plan_with(value=PRICES + 1), {"prices": file_of(PRICES)}
    with pytest.raises(GraphMismatchError, match=r"'prices' has another value than in the cut .* --drop prices"):
        values(plan, of_cut)
    for given in (plan, plan_with(load=lambda: PRICES + 1)):
        found = values(given, of_cut, "prices")
        assert found.files == {}
        assert constant_in(memoryview(found.encoded["prices"])).tolist() == (PRICES + 1).tolist()


def test_a_drop_that_stays_in_the_command_finds_the_value_in_the_cut():
    of_cut = {"prices": file_of(PRICES)}
    for given in (plan_with(value=PRICES), plan_with(load=lambda: PRICES)):
        assert values(given, of_cut, "prices") == Values(of_cut, {})


def test_a_constant_of_the_cut_that_the_flow_lacks_is_refused_until_it_is_dropped():
    plan, of_cut = plan_with("rates", load=lambda: 1), {"prices": file_of(PRICES)}
    with pytest.raises(GraphMismatchError, match="'prices' of the cut is not in the flow any more"):
        values(plan, of_cut)
    assert list(values(plan, of_cut, "prices").encoded) == ["rates"]


def test_a_loader_that_raises_and_a_value_that_cannot_travel_are_named():
    with pytest.raises(ZeroDivisionError) as raised:
        values(plan_with(load=lambda: 1 / 0), {})
    assert raised.value.__notes__ == ["raised by load= of constant 'prices' of flow 'shop'"]
    with pytest.raises(BadOptionError, match="constant 'prices' of flow 'shop' cannot travel"):
        values(plan_with(value=(n for n in range(3))), {})


def test_new_values_are_kept_beside_the_cuts_and_those_of_the_cut_are_left_where_they_are(tmp_path: Path):
    options, of_cut = TaskOptions(root=str(tmp_path), job="shop"), file_of(PRICES)
    files = keep(Values({"prices": of_cut}, {"rates": b"12"}), options, "77aa")
    assert files["prices"] == of_cut
    assert CutStore(str(tmp_path), "shop").constants.read("rates", files["rates"]) == b"12"
    assert len(list((tmp_path / "shop" / "constants").iterdir())) == 1


def test_a_living_run_with_another_value_is_not_joined():
    file, run = file_of(PRICES), RunOptions()
    living = identity_of("f00d", TaskOptions(constants={"prices": file}), run, {"prices": file.digest})
    assert identity_of("f00d", TaskOptions(), run, {"prices": file.digest}).differences(living) == []
    assert identity_of("f00d", TaskOptions(), run, {}).differences(living) == [], "a loader is not called to compare"
    assert identity_of("f00d", TaskOptions(), run, {"prices": "beef"}).differences(living) == [
        "another value of constant 'prices'"
    ]


def test_a_supervisor_restores_no_cut_that_another_run_has_taken_with_another_value_meanwhile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    store = CutStore(str(tmp_path), "job")
    begin(store)
    (file,) = store.constants.keep([b"1"], "77aa")
    store.create(2, manifest_for({}, 1), {}, DEPLOYMENT, {"prices": file})
    cut = store.manifest_of(Epoch(1))
    theirs, ours = {"prices": replace(file, name="constants/y-2.constant")}, {"prices": file}
    for constants, drop in (({}, ()), (theirs, ()), (theirs, ("prices",))):
        supervised = Supervised(
            monkeypatch,
            options=TaskOptions(job="supervised", constants=constants),
            run=RunOptions(snapshots="cuts", drop=drop),
        )
        with pytest.raises(GraphMismatchError, match="another value of constant 'prices' than this run"):
            supervised.run.place(cut, {})
    # The cut is of another graph, which is looked at next.
    for constants, id, drop in ((ours, "88bb", ()), (ours, "77aa", ("prices",)), ({}, "88bb", ("prices",))):
        supervised = Supervised(
            monkeypatch,
            options=TaskOptions(job="supervised", constants=constants),
            run=RunOptions(snapshots="cuts", drop=drop),
            id=id,
        )
        with pytest.raises(GraphMismatchError, match="taken of another graph"):
            supervised.run.place(cut, {})


def test_a_detached_run_that_keeps_no_cuts_would_lose_the_value_and_is_refused():
    flow = Flow("shop")
    flow.constant("prices", PRICES)
    flow.read(Range(3), name="numbers").write(Collect(), name="done")
    with pytest.raises(BadOptionError, match="detached=True and constant 'prices'"):
        run(flow, detached=True)

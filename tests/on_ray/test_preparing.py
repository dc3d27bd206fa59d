"""What is looked at before anything runs."""

from __future__ import annotations

import importlib
import os
import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from backedge import (
    CSV,
    BadOptionError,
    Call,
    Collect,
    Flow,
    Items,
    JsonLines,
    NoInputError,
    NoSuchCutError,
    RunExistsError,
    Sink,
    SqliteTable,
    StoreError,
    UnknownStoreError,
    run,
)
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.launch_checks import (
    beginning_of,
    check_input,
    check_output,
    storage_location,
    with_absolute_paths,
)
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.engine.operators.check_picklable import check_pickles
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore


def files(path: str) -> Flow:
    flow = Flow("files")
    flow.read(JsonLines(path), name="orders").write(CSV("out"), name="out")
    return flow


def loop(function: object = abs) -> Flow:
    flow = Flow("loop")
    again = flow.loop("again")
    tried = flow.read(Items([1]), name="numbers").merge(again).map(function, name="grow")  # type: ignore[arg-type]
    done, rest = tried.split(bool, name="enough")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow


PLAN = loop().plan()

# -- paths ---------------------------------------------------------------------------------------------------------


def test_relative_paths_of_files_are_those_of_the_driver():
    operators = with_absolute_paths(files("in/orders.jsonl").plan()).operators
    assert operators["orders"].function.path == os.path.abspath("in/orders.jsonl")
    assert operators["out"].function.path == os.path.abspath("out")


@pytest.mark.parametrize("path", ["/in/orders", "s3://bucket/orders", "file:///in/orders"])
def test_absolute_paths_and_uris_stay_as_they_are(path: str):
    assert with_absolute_paths(files(path).plan()).operators["orders"].function.path == path


def test_what_is_no_file_stays_as_it_is():
    plan = loop().plan()
    assert with_absolute_paths(plan) == plan


@pytest.mark.parametrize(
    ("given", "hosts", "folder"),
    [
        ("/cuts", 1, "/cuts"),
        ("file:///cuts", 1, "/cuts"),
        ("file:///cuts", 5, "/cuts"),
        ("cuts", 1, os.path.abspath("cuts")),
        ("s3://bucket/cuts/", 5, "s3://bucket/cuts"),
    ],
)
def test_cuts_are_kept_where_all_processes_find_them(given: str, hosts: int, folder: str):
    assert storage_location(given, hosts) == folder


@pytest.mark.parametrize(
    ("given", "hosts", "why"),
    [
        ("/cuts", 2, r"'/cuts'.*\b2\b"),
        ("cuts", 3, r"'cuts'.*\b3\b"),
        ("file://host/cuts", 1, r"file://host/cuts .*'host'"),
    ],
)
def test_a_folder_that_some_process_cannot_reach_is_refused(given: str, hosts: int, why: str):
    with pytest.raises((BadOptionError, StoreError), match=why):
        storage_location(given, hosts)


@pytest.mark.parametrize("sink", [Call(print), SqliteTable("table.db", "rows")])
def test_output_that_a_sink_cannot_remove_is_not_replaced(sink: Sink[Any], tmp_path: Path):
    flow = Flow("loop")
    flow.read(Items([1])).write(sink, name="told")
    with pytest.raises(BadOptionError, match=f"sink 'told' \\({type(sink).__name__}\\) cannot remove.*replace_output"):
        check_output(flow.plan(), kept_in(tmp_path), fresh=False, is_replaced=True)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()], "nothing is claimed"


def test_an_audit_of_a_store_that_is_no_folder_is_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "connect", lambda: pytest.fail("Ray was started"))
    with pytest.raises(BadOptionError, match=r"audit='final'.*sqlite:///cuts\.db.*\bfolder\b"):
        run(loop(), snapshots="sqlite:///cuts.db", audit="final", progress=False)


def test_a_scheme_that_no_package_registers_is_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "connect", lambda: pytest.fail("Ray was started"))
    with pytest.raises(UnknownStoreError, match=r"nowhere://.*\binstall\b.*backedge\.stores"):
        run(loop(), snapshots="nowhere://bucket/cuts", progress=False)


# -- runs that are there already -----------------------------------------------------------------------------------


def kept_in(folder: Path) -> TaskOptions:
    return TaskOptions(root=str(folder), job="loop")


def begun(folder: Path) -> TaskOptions:
    """The folder of a run that has begun."""
    CutStore(str(folder), "loop").create(1, AttemptStart(Attempt(1), None))
    return kept_in(folder)


def is_fresh(options: TaskOptions, resume: Any) -> bool:
    return beginning_of(PLAN, options, RunOptions(snapshots=options.root, resume=resume)).is_fresh


@pytest.mark.parametrize("resume", ["never", "latest"])
def test_a_run_in_an_empty_folder_is_fresh(tmp_path: Path, resume: str):
    assert is_fresh(kept_in(tmp_path), resume)
    assert is_fresh(TaskOptions(), resume), "and so is one without a folder"


def test_a_run_of_the_same_name_is_not_mixed_with(tmp_path: Path):
    options = begun(tmp_path)
    with pytest.raises(RunExistsError, match=r"run of 'loop'.*resume=\"latest\""):
        is_fresh(options, "never")
    assert not is_fresh(options, "latest")
    assert is_fresh(replace(options, job="other"), "never")


def test_an_epoch_that_is_no_cut_is_refused(tmp_path: Path):
    with pytest.raises(NoSuchCutError, match="7"):
        is_fresh(begun(tmp_path), 7)


# -- Ray -----------------------------------------------------------------------------------------------------------


def test_a_function_that_cannot_travel_is_refused_with_its_operator():
    lock = threading.Lock()

    def guarded(number: int) -> int:
        with lock:
            return number

    with pytest.raises(BadOptionError, match=r"'grow'.*'loop'.*'function' of map refers .*TypeError: .*lock"):
        check_pickles(loop(function=guarded).plan())
    check_pickles(loop().plan())


class Priced:
    def __init__(self, price: Any) -> None: ...
    def on_record(self, ctx: Any, value: int) -> None: ...


def locked(what: str) -> Flow:
    """A flow in which one argument is or holds a lock."""
    lock: Any = threading.Lock()
    flow = Flow("locked")
    numbers = flow.read(Items([lock] if what == "records" else [1]), name="numbers")
    keyed = numbers.key_by((lambda number: lock) if what == "key" else (lambda number: number))
    initial = [lock] if what == "initial" else 0
    counted = keyed.stateful_map(lambda state, number: (state, number), initial=initial, name="count")
    counted.process(Priced, price=lock if what == "price" else 1, name="price").write(Collect(), name="done")
    return flow


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("records", "operator 'numbers' .* argument 'records' of Items does not"),
        ("key", "operator 'count' .* the key of its input 'in' refers to something that does not"),
        ("initial", "operator 'count' .* argument 'initial' of stateful_map does not"),
        ("price", "operator 'price' .* argument 'price' of process does not"),
    ],
)
def test_a_value_that_cannot_travel_is_refused_with_its_operator_and_argument(what: str, named: str):
    with pytest.raises(BadOptionError, match=named):
        check_pickles(locked(what).plan())


class OnceLocked:
    """Does not pickle the first time."""

    def __init__(self) -> None:
        self.times = 0

    def __reduce__(self) -> Any:
        self.times += 1
        if self.times == 1:
            raise TypeError("locked for a moment")
        return OnceLocked, ()


@dataclass(frozen=True)
class Cached(Items[Any]):
    """A source of somebody else's, with a field that is set later."""

    cache: Any = field(init=False, repr=False)


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (Items([OnceLocked()]), "because it does not pickle .*locked for a moment"),
        (Cached([threading.Lock()]), "argument 'records' of Cached does not pickle"),
    ],
)
def test_a_source_that_pickles_strangely_is_refused_as_well(source: Any, told: str):
    flow = Flow("strange")
    flow.read(source, name="numbers").write(Collect(), name="done")
    with pytest.raises(BadOptionError, match=told):
        check_pickles(flow.plan())


def test_a_run_that_an_import_starts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The processes of the run would import the module, too, and each would start another run."""
    monkeypatch.setattr(cluster, "connect", lambda: pytest.fail("Ray was started"))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "run_at_import.py").write_text(
        "from backedge import Collect, Flow, Items, run\n"
        "flow = Flow('shop')\n"
        "flow.read(Items([1])).map(lambda n: n).write(Collect())\n"
        "run(flow)\n"
    )
    with pytest.raises(BadOptionError, match=r"'shop'.*'run_at_import'.*__name__ == '__main__'"):
        importlib.import_module("run_at_import")


# -- input and output ----------------------------------------------------------------------------------------------


def test_input_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(NoInputError, match=re.escape(f"{tmp_path}/nothing")):
        check_input(files(str(tmp_path / "nothing")).plan())


def test_only_sources_of_files_have_splits(tmp_path: Path):
    (tmp_path / "orders.jsonl").write_text('{"n": 1}\n')
    assert len(check_input(files(str(tmp_path / "orders.jsonl")).plan())["orders"]) == 1
    assert check_input(loop().plan()) == {}


def test_output_is_replaced_only_behind_a_cut_that_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "connect", lambda: pytest.fail("Ray was started"))
    with pytest.raises(BadOptionError, match=r"replace_output=True and resume='never'.*number of the cut"):
        run(loop(), progress=False, replace_output=True)

"""What is looked at before anything runs, and what each task takes back from a cut."""

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
    OutputError,
    Range,
    RunExistsError,
    Sink,
    SqliteTable,
    StoreError,
    UnknownStoreError,
    run,
    start,
)
from backedge.engine.batch import Batch, encode
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.launch_checks import (
    beginning_of,
    check_input,
    check_output,
    storage_location,
    with_absolute_paths,
)
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.supervisor.restore_plan import place
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.engine.travel import check_pickles
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut import Cut, InputRecord, LogEntry, OperatorState, TaskSnapshot
from backedge.recovery.messages import Mode
from backedge.recovery.orders import AttemptStart, Manifest
from backedge.recovery.outline import outline_of
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


def test_an_epoch_of_a_run_that_never_was_is_refused(tmp_path: Path):
    with pytest.raises(NoSuchCutError, match="7"):
        is_fresh(kept_in(tmp_path), 7)


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


def test_output_of_another_run_is_not_mixed_with(tmp_path: Path):
    flow = Flow("written")
    flow.read(Range(3)).write(JsonLines(str(tmp_path)), name="out")
    (tmp_path / "part.jsonl").write_text("{}\n")
    with pytest.raises(OutputError, match=rf"{re.escape(str(tmp_path))}\b.*'part\.jsonl'"):
        check_output(flow.plan(), TaskOptions(), fresh=True)
    check_output(flow.plan(), TaskOptions(), fresh=False)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"policy": "hopeful"}, "policy='hopeful'"),
        ({"placement": "NEAR"}, "placement='NEAR'"),
        ({"keep": 0}, "keep=0"),
        ({"every": 0}, "every=0"),
        ({"parallelism": 0}, "parallelism=0"),
        ({"actors": "thread"}, "actors='thread'"),
        ({"resume": "lates"}, "resume='lates'"),
        ({"resume": 0}, "resume=0"),
        ({"replace_output": True}, "replace_output=True and resume='never'.*number of the cut"),
        ({"credit_bytes": 0}, "credit_bytes=0"),
        ({"loop_bytes": -1}, "loop_bytes=-1"),
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"spares": 0.5}, "spares=0.5"),
        ({"restart_window": 0}, "restart_window=0"),
    ],
)
def test_an_option_that_means_nothing_is_refused_before_ray_starts(
    wrong: dict[str, object], why: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cluster, "connect", lambda: pytest.fail("Ray was started"))
    with pytest.raises(BadOptionError, match=why):
        start(loop(), progress=False, **wrong)  # type: ignore[arg-type]


# -- what a cut gives back -----------------------------------------------------------------------------------------


def cut_of(flow: Flow, log: tuple[LogEntry, ...] = ()) -> Cut:
    """A cut of all tasks, with a log in the loop."""
    deployment = expand(flow.plan())
    snapshots: dict[TaskId, TaskSnapshot] = {}
    for id, task in deployment.tasks.items():
        inputs = tuple(InputRecord(c.id, c.is_back, 0, 0, log if c.is_back else (), False) for c in task.inputs)
        states = dict.fromkeys(task.operators, OperatorState())
        snapshots[id] = TaskSnapshot(id, Epoch(3), Attempt(1), states, inputs, (), False, None)
    plan, parallelism = deployment.plan, deployment.parallelism
    return Cut(Epoch(3), Attempt(1), plan.hash, "aligned", False, snapshots, parallelism)


def test_where_a_run_begins_no_task_takes_anything_back():
    deployment = expand(loop().plan())
    assert place(deployment, None) == dict.fromkeys(deployment.tasks)


def test_what_is_in_the_log_of_a_cut_is_counted_from_its_manifest(tmp_path: Path):
    entries = tuple(LogEntry(seq, encode(Batch(list(range(seq)))), 0, 0) for seq in (1, 2, 3))
    store, cut, deployment = CutStore(str(tmp_path), "loop"), cut_of(loop(), entries), expand(loop().plan())
    files = {task: store.write_task(Attempt(1), Epoch(3), snapshot) for task, snapshot in cut.snapshots.items()}
    manifest = Manifest(Epoch(3), Attempt(1), Mode.ALIGNED, dict.fromkeys(files, Epoch(3)), {})
    assert store.create(1, AttemptStart(Attempt(1), None, "one"))
    assert store.create(2, manifest, files, deployment)
    assert store.manifest_of(Epoch(3)).records_in_logs == 6


def test_functions_may_be_edited_between_two_runs():
    parts = place(expand(loop(function=lambda number: number + 1).plan()), outline_of(cut_of(loop())))
    assert all(part is not None for part in parts.values())

"""The options of a run: what they take, and how a wrong call is refused, in one line and before it leaves a trace."""

from __future__ import annotations

import os
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from backedge import CSV, JsonLines
from backedge.engine.on_ray.api.cut_lookup import find_cut
from backedge.engine.on_ray.api.launch_checks import check_kept, check_no_output_arrives, with_absolute_paths
from backedge.engine.on_ray.api.starting import run, start, start_run
from backedge.engine.on_ray.planned_faults import Faults, KillSpecError
from backedge.engine.on_ray.run_options import RunOptions, option_docs
from backedge.graphs.flow import Flow
from backedge.graphs.graph_errors import BadNameError, BadOptionError
from backedge.graphs.kinds import rate_of
from backedge.graphs.sources_and_sinks import Collect, Range
from backedge.recovery.stores.store_errors import NoSuchCutError
from proof.runner import run_seed
from tests.every import every
from tests.spark.simulated import write_run

COUNT, COUNT_OR_ZERO = "give an integer of at least 1", "give an integer of at least 0"
SECONDS = "give seconds, at least 0.001"
NO_NUMBERS = [None, "1", True, 1.5]
NO_SECONDS: list[Any] = ["a", 0, -1, True, 0.0001, float("nan"), float("inf")]
LOCATION = "give the path of a folder, '.' for the current one, or the URI of a store"
REFUSED: dict[str, tuple[list[Any], str]] = {
    "snapshots": (["", 3, b"cuts", "a\0b"], LOCATION),
    "every": (NO_SECONDS, SECONDS),
    "keep": ([0, *NO_NUMBERS], COUNT),
    "policy": ([None, "lazy"], "give one of 'aligned', 'unaligned'"),
    "cut_timeout": ([None, *NO_SECONDS], SECONDS),
    "cut_patience": (NO_SECONDS, SECONDS),
    "cut_failures": ([-1, *NO_NUMBERS], COUNT_OR_ZERO),
    "cut_pause": (["a", -1, False, True, 0.0001, float("inf")], "give seconds: 0, or at least 0.001"),
    "cuts_in_progress": ([0, *NO_NUMBERS], COUNT),
    "log_bytes": ([0, *(value for value in NO_NUMBERS if value is not None)], COUNT),
    "drop": (["count", None, [1]], "give a list of operators' names"),
    "rename": ([["count"], {"count": 1}], "give a dict: former name of an operator -> its new name"),
    "resume": ([None, 1.5, 0, True, "soon"], "give 'latest', 'never' or the number of a cut"),
    "replace_output": ([None, 1, "yes"], "give True or False"),
    "audit": ([None, "sometimes"], "give one of 'never', 'final', 'every-cut'"),
    "parallelism": ([0, *NO_NUMBERS], COUNT),
    "actors": ([None, 1, "all"], "give one of 'task', 'slice', 'auto'"),
    "scope": ([None, "task"], "give one of 'auto', 'pipeline', 'job'"),
    "placement": ([None, "spread"], "give one of 'DEFAULT', 'SPREAD'"),
    "spares": ([-1, *NO_NUMBERS], COUNT_OR_ZERO),
    "max_restarts": ([-1, *NO_NUMBERS], COUNT_OR_ZERO),
    "restart_window": (NO_SECONDS, SECONDS),
    "restart_strategy": ([None, "linear"], "give one of 'exponential', 'fixed'"),
    "restart_pause": ([None, *NO_SECONDS], SECONDS),
    "restart_pause_max": ([None, *NO_SECONDS], SECONDS),
    "silence_timeout": ([None, *NO_SECONDS], SECONDS),
    "on_silence": ([None, "ignore"], "give one of 'report', 'restart'"),
    "credit_bytes": ([0, *NO_NUMBERS], COUNT),
    "loop_bytes": ([-1, *NO_NUMBERS], COUNT_OR_ZERO),
    "loop_disk_bytes": ([-1, *NO_NUMBERS], COUNT_OR_ZERO),
    "keep_inputs": (["count", None, [1]], "give a list of operators' names"),
    "seed": (NO_NUMBERS, "give an integer"),
    "metrics": ([None, True, "no"], "give one of 'on', 'off'"),
    "detached": ([None, 1, "yes"], "give True or False"),
    "progress": ([None, 1, "no"], "give True or False"),
}
"""Option -> values that it does not take, and what the error says it takes."""


def test_every_option_is_checked():
    # The store checks a key, where it comes from the environment or a file as well.
    assert {option.name for option in fields(RunOptions)} == REFUSED.keys() | {"key"}


@every("option", REFUSED)
def test_a_value_that_an_option_does_not_take_is_refused_with_one_that_it_takes(option: str):
    values, fix = REFUSED[option]
    for value in values:
        with pytest.raises(BadOptionError) as refused:
            RunOptions(**{option: value})
        assert str(refused.value) == f"run option {option}={value!r}: {fix}"


@pytest.mark.parametrize(
    "given",
    [
        {"snapshots": "cuts", "every": 0.1, "resume": 7},
        {"snapshots": Path("cuts"), "every": 2, "resume": "latest", "seed": -1, "cut_patience": None, "spares": 0},
    ],
)
def test_values_that_options_take_are_kept(given: dict[str, Any]):
    options = RunOptions(**given)
    assert {option: getattr(options, option) for option in given} == given


def test_every_option_has_a_docstring():
    assert list(option_docs()) == [option.name for option in fields(RunOptions)]
    for option, told in option_docs().items():
        assert told.endswith("."), option
        assert f"- {option}: {told}" in (run.__doc__ or "")


def test_an_option_that_needs_cuts_is_refused_without_a_folder_for_them():
    given: list[dict[str, Any]] = [{"resume": "latest"}, {"resume": 3}, {"audit": "final"}, {"key": b"k"}]
    for options in (RunOptions(**each) for each in (*given, {"keep_inputs": ["rank"]})):
        with pytest.raises(
            BadOptionError, match=r"^flow 'rank' has .*: give it snapshots=, the folder or URI for them$"
        ):
            start_run(Flow("rank"), options)


def test_an_operator_whose_inputs_are_to_be_kept_must_exist(tmp_path: Path):
    flow = Flow("rank")
    flow.read(Range(1), name="in").write(Collect(), name="out")
    with pytest.raises(BadOptionError, match=r"flow 'rank' has keep_inputs=.*no operator 'inn'.*'in', 'out'"):
        start_run(flow, RunOptions(snapshots=tmp_path, keep_inputs=["inn"]))


def test_what_finds_its_input_while_it_runs_cannot_be_run_again(tmp_path: Path):
    flow = Flow("rank")
    read = flow.read(JsonLines(str(tmp_path), watch=1), name="in").map(dict, name="map")
    read.rebalance().write(Collect(), name="out")
    for kept, told in (("in", "did: leave 'in' out"), ("map", "in one task with 'map'; rebalance")):
        with pytest.raises(BadOptionError, match=f"'in' finds what it reads while it runs.*{told}"):
            start_run(flow, RunOptions(snapshots=tmp_path / "cuts", keep_inputs=[kept]))
    check_kept(flow.plan(), RunOptions(snapshots=tmp_path / "cuts", keep_inputs=["out"], parallelism=2), "flow 'rank'")


@pytest.mark.parametrize("below", ["", "/done"])
def test_a_sink_that_writes_what_its_source_would_find_is_refused(tmp_path: Path, below: str):
    flow = Flow("rank")
    flow.read(JsonLines(f"{tmp_path}/in", watch=1), name="in").write(JsonLines(f"{tmp_path}/in{below}"), name="out")
    with pytest.raises(BadOptionError, match="flow 'rank' would read again what sink 'out' writes"):
        start_run(flow, RunOptions())


@pytest.mark.parametrize(
    "sink", [JsonLines("inner"), JsonLines("in/_done"), CSV("in"), JsonLines("elsewhere/in"), Collect()]
)
def test_a_sink_beside_a_folder_that_is_watched_is_none_of_its_input(sink: Any):
    flow = Flow("rank")
    flow.read(JsonLines("in/", watch=1), name="in").write(sink, name="out")
    check_no_output_arrives(with_absolute_paths(flow.plan()), "flow 'rank'")


def test_a_source_keeps_its_rate_and_its_pause_when_its_path_becomes_absolute():
    flow = Flow("rank")
    flow.read(JsonLines("in.jsonl"), name="listed", rate=7).write(Collect(), name="out")
    flow.read(JsonLines("in", watch=1), name="found", rate="2MB/s").write(Collect(), name="more")
    operators = with_absolute_paths(flow.plan()).operators
    kinds = [operators[name].kind for name in ("listed", "found.splits", "found")]
    assert [kind.source.path for kind in kinds] == [os.path.abspath(path) for path in ("in.jsonl", "in", "in")]
    assert [str(rate_of(kind)) for kind in kinds] == ["7/s", "None", "2MB/s"]


def test_a_key_is_not_shown():
    assert "secret" not in repr(RunOptions(key=b"secret", snapshots="cuts"))


@pytest.mark.parametrize("kills", [None, [3], "head@epoch=3", 3])
def test_kills_are_a_list_of_texts(kills: Any):
    with pytest.raises(KillSpecError, match=r'as in kills=\["head@epoch=3"\]$'):
        Faults(kills)


@pytest.mark.parametrize(
    ("given", "fix"), [(None, "give the Flow that a function builds"), (Flow, "call it, as in run(Flow())")]
)
def test_what_is_no_flow_is_not_run(given: Any, fix: str):
    with pytest.raises(BadOptionError, match=r"run got (None|Flow itself), which is not a Flow: ") as refused:
        run(given)
    assert fix in str(refused.value)


def test_to_look_for_the_cut_of_a_run_that_never_was_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(NoSuchCutError, match="contains no run of 'rank', so there is no cut 7"):
        find_cut(str(tmp_path), "rank", 7)
    with pytest.raises(BadNameError):
        find_cut(str(tmp_path), "../rank", 7)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_cut_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path):
    _, world, _ = run_seed(3, 2)
    write_run(world, tmp_path, "rank", keep=2)
    cuts = sorted(world.record.cuts)[-2:]
    assert [find_cut(str(tmp_path), "rank", cut).epoch for cut in cuts] == cuts
    for epoch in (1, 10**6):
        with pytest.raises(NoSuchCutError, match=rf"epoch {epoch} is .*: resume from one of {cuts[0]}, {cuts[1]}$"):
            find_cut(str(tmp_path), "rank", epoch)


def test_run_and_start_take_the_fields_of_run_options_and_blame_themselves():
    for call, name, result in ((run, "run", "RunResult"), (start, "start", "Job")):
        taken = list(signature(call).parameters.values())
        assert [parameter.name for parameter in taken] == ["flow", *(option.name for option in fields(RunOptions))]
        assert [parameter.default for parameter in taken[1:]] == [option.default for option in fields(RunOptions)]
        assert signature(call).return_annotation == result
        with pytest.raises(TypeError, match=rf"^{name}\(\) got .* argument 'snapshot': did you mean 'snapshots'\?$"):
            call(Flow("rank"), snapshot="cuts")  # type: ignore[call-arg]  # pyright: ignore
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing 1 required positional argument: 'flow'"):
            call()  # type: ignore[call-arg]  # pyright: ignore

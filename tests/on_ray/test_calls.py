"""A call of `run` that means nothing is refused in one line, and leaves nothing behind."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from engine.on_ray.api.call_checks import faults_in, find_cut
from engine.on_ray.api.starting import run, start
from engine.on_ray.planned_faults import Kill
from graphs.flow import Flow
from graphs.graph_errors import BadNameError, BadOptionError
from proof.runner import run_seed
from recovery.stores.store_errors import NoSuchCutError
from tests.spark.simulated import write_run

CALL: dict[str, Any] = {"snapshots": None, "every": 1.0, "resume": "never", "seed": 0, "kills": ()}


@pytest.mark.parametrize(
    "given",
    [
        {"snapshots": "cuts", "every": 0.1, "resume": 7, "kills": ("head@epoch=3",)},
        {"snapshots": Path("cuts"), "every": 2, "resume": "latest", "seed": -1, "kills": ["head@epoch=3"]},
    ],
)
def test_what_means_something_gives_the_faults_that_it_plans(given: dict[str, Any]):
    assert faults_in(Flow("rank"), **{**CALL, **given}) == (Kill("head", "epoch", 3),)


@pytest.mark.parametrize(
    ("option", "values", "fix"),
    [
        ("snapshots", ["", 3, b"cuts", "a\0b"], "give the path of a folder, '.' for the current one"),
        ("every", [None, "a", 0, -1, True, float("nan"), float("inf")], "give seconds above 0"),
        ("resume", [None, 1.5, 0, True, "soon"], "give 'latest', 'never' or the number of an epoch"),
        ("seed", [None, "x", 1.5], "give an integer"),
        ("kills", [None, [3], "head@epoch=3", 3], 'give a list, as in kills=["head@epoch=3"]'),
    ],
)
def test_what_means_nothing_is_refused_with_what_would_do(option: str, values: list[Any], fix: str):
    for value in values:
        with pytest.raises(BadOptionError) as refused:
            faults_in(Flow("rank"), **{**CALL, option: value})
        assert str(refused.value) == f"flow 'rank' has {option}={value!r}: {fix}"


@pytest.mark.parametrize(("given", "fix"), [(None, "give the Flow itself"), (Flow, "call it, as in run(Flow())")])
def test_what_is_no_flow_is_not_run(given: Any, fix: str):
    with pytest.raises(BadOptionError, match=r"run is given (None|Flow itself), which is no Flow: ") as refused:
        faults_in(given, **CALL)
    assert fix in str(refused.value)


def test_to_look_for_the_cut_of_a_run_that_never_was_leaves_nothing_behind(tmp_path: Path):
    with pytest.raises(NoSuchCutError, match="holds no run of 'rank', and so no cut 7"):
        find_cut(str(tmp_path), "rank", 7)
    with pytest.raises(BadNameError):
        find_cut(str(tmp_path), "../rank", 7)
    assert list(tmp_path.iterdir()) == []


def test_a_cut_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path):
    _, world, _ = run_seed(3, 2)
    write_run(world, tmp_path, "rank", keep=2)
    cuts = sorted(world.record.cuts)[-2:]
    assert [find_cut(str(tmp_path), "rank", cut).epoch for cut in cuts] == cuts
    for epoch in (1, 10**6):
        with pytest.raises(NoSuchCutError, match=rf"epoch {epoch} is .*: resume from one of {cuts[0]}, {cuts[1]}$"):
            find_cut(str(tmp_path), "rank", epoch)


def test_run_takes_what_start_takes_and_blames_itself():
    assert signature(run).parameters == signature(start).parameters
    assert signature(run).return_annotation == "RunResult"
    for call, name in ((run, "run"), (start, "start")):
        with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'snapshot'"):
            call(Flow("rank"), snapshot="cuts")  # type: ignore[call-arg]  # pyright: ignore
    with pytest.raises(TypeError, match=r"^run\(\) missing a required argument: 'flow'"):
        run()  # type: ignore[call-arg]  # pyright: ignore

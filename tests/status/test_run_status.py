"""The status document: it reads back as it was written, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from backedge.recovery.run_status import (
    ChannelStatus,
    EpochStatus,
    FailureStatus,
    LoopLog,
    LoopStatus,
    OperatorStatus,
    RunStatus,
    TaskStatus,
    status_in,
    united,
)
from backedge.recovery.stores.shapes import ShapeError

STATUS = RunStatus(
    job="rank",
    run="4f",
    state="running",
    is_live=True,
    at_s=1000.5,
    seconds=12.0,
    snapshots="/cuts",
    attempt=2,
    last_epoch=7,
    cuts=6,
    operators=(OperatorStatus("rank", ("rank", "enough"), False, False, (TaskStatus(0, "slice-0", 10, 9, 2.5),)),),
    channels=(ChannelStatus("a.out->b.in", "a/0", "b/0", "again", 5, 2, 100, 0.25, None, 64),),
    loops=(LoopStatus("again", ("rank",), 2, 100, 0.25, {"1": 3, "16": 1}, "3.0"),),
    epochs=(EpochStatus(7, 2, "aligned", "complete", loops={"again": LoopLog(1, 90, None)}, is_kept=True),),
    failures=(FailureStatus(1, 990.0, "a process died", 5, 3, 1.5),),
)


def test_a_document_reads_back_as_it_was_written():
    assert status_in(json.loads(json.dumps(STATUS.to_json()))) == STATUS


def test_the_figures_of_several_pipelines_add_up():
    figures = ("cuts", "records", "hops", "spilled_bytes")
    one, other = (replace(STATUS, **dict.fromkeys(figures, number)) for number in (7, 5))
    both = united([one, other], "running")
    assert [getattr(both, figure) for figure in figures] == [12] * 4


def test_a_document_of_another_version_is_refused_by_its_number():
    with pytest.raises(ShapeError, match="has version 3, and this program reads 2"):
        status_in({**STATUS.to_json(), "version": 3})


@pytest.mark.parametrize(
    ("place", "change"),
    [
        (".attempt", {"attempt": "2"}),
        (".attempt", {"attempt": True}),
        (".loops[0].rounds[...]", {"loops": [{**STATUS.to_json()["loops"][0], "rounds": {"1": 0.5}}]}),
        (".failures", {"failures": 7}),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_place(place: str, change: dict[str, Any]):
    with pytest.raises(ShapeError) as refused:
        status_in({**STATUS.to_json(), **change})
    assert refused.value.place == place


def test_a_field_too_few_or_too_many_is_refused():
    document = STATUS.to_json()
    for changed in ({**document, "more": 1}, {k: v for k, v in document.items() if k != "job"}):
        with pytest.raises(ShapeError, match="field"):
            status_in(changed)


def test_what_is_no_object_is_refused():
    for nothing in (None, [], 7):
        with pytest.raises(ShapeError, match="version"):
            status_in(nothing)

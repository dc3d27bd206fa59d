"""The status document: it reads back as it was written, and nothing else is taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from backedge.recovery.stores.run_status import (
    ChannelStatus,
    CountedStatus,
    EpochStatus,
    FailureStatus,
    HistogramStatus,
    LoopLog,
    LoopStatus,
    OperatorStatus,
    RunStatus,
    TaskStatus,
    status_in,
    united,
)
from backedge.recovery.stores.shapes import ShapeError
from tests.every import every

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
    operators=(
        OperatorStatus(
            *("rank", ("rank", "enough"), False, False, (TaskStatus(0, "slice-0", 10, 9, 2.5),)),
            counted={"rank": CountedStatus({"ranked": 3, "share": 0.5}, {"s": HistogramStatus(2, 9e9, {"inf": 2})})},
        ),
    ),
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


DOCUMENT = STATUS.to_json()


@every(
    ("place", "document"),
    [
        (".attempt", {**DOCUMENT, "attempt": "2"}),
        (".attempt", {**DOCUMENT, "attempt": True}),
        (".loops[0].rounds[...]", {**DOCUMENT, "loops": [{**DOCUMENT["loops"][0], "rounds": {"1": 0.5}}]}),
        (".failures", {**DOCUMENT, "failures": 7}),
        (None, {**DOCUMENT, "more": 1}),
        (None, {name: value for name, value in DOCUMENT.items() if name != "job"}),
        (None, {**DOCUMENT, "version": 3}),
        *((None, nothing) for nothing in (None, [], 7)),
    ],
)
def test_what_is_no_status_of_this_version_is_refused_by_its_place(place: str | None, document: Any):
    with pytest.raises(ShapeError) as refused:
        status_in(document)
    assert place in (None, refused.value.place)

"""The channels in a manifest: a row of a table for each, of which a million have room in a document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from backedge.graphs.describing import channel_tables
from backedge.graphs.expansion import CHANNELS_MAX
from backedge.graphs.ids import ChannelId, TaskId
from backedge.recovery.cut.cut import InputRecord, LogEntry, OutputRecord
from backedge.recovery.spark.audit.job_documents import statement_of
from backedge.recovery.stores.channel_tables import ChannelFigures, tables_of
from backedge.recovery.stores.documents import DOCUMENT_BYTES_MAX, FORMAT
from backedge.recovery.stores.manifests_of_format_12 import FIRST_FORMAT, upgraded
from backedge.recovery.stores.schema import MANIFEST_SHAPE
from backedge.recovery.stores.shapes import ShapeError
from tests.every import every

EDGE = "a.out->b.in"
OTHERS = range(1_000, 2_000)
TASKS = 20_000
TASK_BYTES = 2_000
"""What a manifest has for a task beside its channels, with several files."""


def channel(sender: int, receiver: int, *, restored: bool = False) -> ChannelId:
    return ChannelId(EDGE, TaskId("a", sender), TaskId("b", receiver), restored)


def bytes_of(document: Any) -> int:
    return len(json.dumps(document, separators=(",", ":")))


def bytes_for_each(batches: int, digest: int, log: tuple[LogEntry, ...], *, within: bool, ended: bool) -> float:
    """What a channel takes in a manifest, with both ends, if it has such figures."""
    inputs = [InputRecord(channel(other, 1_000), False, batches, digest, log, ended) for other in OTHERS]
    outputs = [OutputRecord(channel(1_000, other), batches, digest) for other in OTHERS]
    ends = [*map(ChannelFigures.of_input, inputs), *map(ChannelFigures.of_output, outputs)]
    deployed = {"edge": EDGE, "sender": "a", "receiver": "b", "is_back": False, "within_actor": within}
    rows = [{**deployed, "sender_index": 1_000, "receiver_index": other} for other in OTHERS]
    return (bytes_of(to_builtins(tables_of(ends))) + bytes_of(channel_tables(rows))) / len(OTHERS)


def test_a_channel_that_was_never_used_takes_few_bytes():
    assert bytes_for_each(0, 0, (), within=False, ended=False) < 30


def test_as_many_channels_as_a_graph_may_have_can_be_read_back_whatever_has_passed_through_them():
    log = (LogEntry(1, b"", 0, 0),) * 10_000
    each = bytes_for_each(10**12, (1 << 32) - 1, log, within=True, ended=True)
    assert CHANNELS_MAX * each + TASKS * TASK_BYTES < DOCUMENT_BYTES_MAX


def test_the_ends_of_channels_come_back_from_their_tables_in_order():
    log = (LogEntry(4, b"", 0, 7), LogEntry(5, b"", 7, 8))
    inputs = [
        InputRecord(channel(0, 1), False, 3, 5),
        InputRecord(channel(1, 1, restored=True), True, 0, 0, log[:1]),
        InputRecord(channel(1, 1), True, 4, 7, log),
        InputRecord(channel(2, 1), True, 9, 8, (), ended=True),
        InputRecord(channel(0, 2), True, 1, 1),
    ]
    outputs = [OutputRecord(channel(1, other), other, other) for other in (3, 0, 1)]
    ends = [*map(ChannelFigures.of_input, inputs), *map(ChannelFigures.of_output, outputs)]
    tables = tables_of(ends)
    assert [len(table.others) for table in tables] == [1, 1, 2, 1, 3]
    found = [end for table in tables for end in table.ends]
    assert found == ends
    logs = {record.channel: record.log for record in inputs}
    assert [end.as_input(logs[end.channel]) for end in found[:5]] == inputs
    assert [end.as_output() for end in found[5:]] == outputs


STORED = Path(__file__).parents[1] / "formats" / "cuts_of_0_1" / "columns"


def manifest(form: int) -> dict[str, Any]:
    """A whole manifest in one of the formats; its first channels are of a source to two tasks."""
    (path,) = STORED.rglob("manifest-*.json")
    document = {name: value for name, value in json.loads(path.read_text()).items() if name != "seal"}
    assert document["format"] == FIRST_FORMAT
    document = document if form == FIRST_FORMAT else {**upgraded(document), "format": form}
    MANIFEST_SHAPE(document)
    return document


@every(
    ("form", "change", "column", "statement"),
    [
        (FIRST_FORMAT, {"count": None}, ".count", 1),
        (FIRST_FORMAT, {"digest": -1}, ".digest", 2),
        (FIRST_FORMAT, {"log_count": "1"}, ".log_count", 2),
        (FIRST_FORMAT, {"more": 1}, "", 5),
        (FORMAT, {"counts": [1, None]}, ".counts[1]", 1),
        (FORMAT, {"counts": [1]}, "", 5),
        (FORMAT, {"digests": [1 << 32, 0]}, ".digests[0]", 2),
        (FORMAT, {"logged": [[0, -1]]}, ".logged[0][1]", 2),
        (FORMAT, {"logged": [[2, 1]]}, "", 5),
        (FORMAT, {"logged": [[1, 1], [1, 2]]}, "", 5),
        (FORMAT, {"ended": [1, 0]}, "", 5),
    ],
)
def test_a_channel_of_the_wrong_shape_is_refused_by_its_place(
    form: int, change: dict[str, Any], column: str, statement: int
):
    document = manifest(form)
    document["tasks"][0]["channels"][0].update(change)
    with pytest.raises(ShapeError) as wrong:
        MANIFEST_SHAPE(document)
    place = wrong.value.place.lstrip(".")
    assert place == f"tasks[0].channels[0]{column}"
    assert statement_of(place) == statement


@pytest.mark.parametrize("change", [{"receivers": [1]}, {"within_actor": [0, 0]}, {"within_actor": [4]}, {"more": 1}])
def test_a_channel_of_the_deployment_of_the_wrong_shape_is_refused(change: dict[str, Any]):
    document = manifest(FORMAT)
    document["deployment"]["channels"][0].update(change)
    with pytest.raises(ShapeError) as wrong:
        MANIFEST_SHAPE(document)
    assert wrong.value.place.lstrip(".") == "deployment.channels[0]"

"""Policy "drain" on Ray: loops run dry for each cut, though channels have room for one batch alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge import Collect, Flow, Range, start
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.on_ray.flows import until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def test_probes_get_past_what_waits_for_a_head_that_holds_its_inputs(tmp_path: Path, evidence: Evidence):
    flow, gate = Flow("drained"), Gate(tmp_path / "gate")
    numbers = flow.read(Gated(Range(100), gate, 20), name="numbers").rebalance().map(lambda n: (n, 30), name="near")
    again = flow.loop("again")
    entered = numbers.rebalance().map(lambda record: record, name="far").merge(again)
    counted = entered.key_by(lambda record: record[0] % 7).stateful_map(
        lambda seen, record: (seen + 1, (record[0], record[1] - 1)), initial=0, name="head"
    )
    done, more = (
        counted.key_by(lambda record: record[0] % 5)
        .map(lambda record: record, name="body")
        .split(lambda record: record[1] <= 0, name="over")
    )
    again.feed(more)
    done.write(Collect(), name="done")
    options = {"every": 0.2, "policy": "drain", "credit_bytes": 1, "actors": "task", "progress": False}
    job = start(flow, snapshots=tmp_path / "cuts", **options)
    for snapshots in range(1, 5):
        gate.let(20 * snapshots)
        until(job, lambda story, n=snapshots: story.snapshots >= n, "one more cut")
    gate.open()
    result = job.wait()
    assert sorted(record[0] for record in result.outputs["done"]) == list(range(100))
    evidence.happened("drained cuts but for the first and the last", result.snapshots - 2)
    assert result.snapshots_with_log == 0

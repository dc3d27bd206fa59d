"""What a run leaves on disk for those who do not take its word for it."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from backedge.graphs.ids import Epoch
from backedge.recovery.cut import OperatorState
from backedge.recovery.stores.cut_store import CutStore
from tests.gates import Gate
from tests.on_ray.flows import begin, finish, trips, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def manifest_of(store: CutStore, epoch: Epoch) -> dict[str, Any]:
    attempt = store.manifest_of(epoch).attempt
    (path,) = (Path(store.path) / f"epoch={epoch}" / f"attempt={attempt}").glob("manifest-*.json")
    return json.loads(path.read_bytes())


def counted(manifest: dict[str, Any]) -> dict[str, int]:
    """Operator -> what all its tasks have sent or written."""
    sums: dict[str, int] = {}
    for facts in (facts for task in manifest["tasks"] for facts in task["operators"]):
        sums[facts["name"]] = sums.get(facts["name"], 0) + facts["records"]
    return sums


def test_what_was_sent_and_written_is_counted_over_deaths_and_under_another_parallelism(tmp_path: Path):
    gate = Gate(tmp_path / "gate")
    flow = trips(count=100, gate=gate)
    where = {"snapshots": tmp_path / "cuts", "every": 0.1, "actors": "slice", "progress": False}
    job = begin(flow, kills=["head@epoch=3"], **where)
    until(job, lambda story: story.restores and story.state == "running", "it has died and gone on")
    result = job.stop()
    store = CutStore(str(tmp_path / "cuts"), "trips")
    assert result.last_epoch is not None
    at_stop = counted(manifest_of(store, result.last_epoch))
    positions = [
        pickle.loads(position)
        for part in store.cut(result.last_epoch).snapshots.values()
        for position in part.operators.get("numbers", OperatorState()).splits.values()
    ]
    assert at_stop["numbers"] == sum(positions) == 25
    assert at_stop["done"] == len(result.outputs["done"]) == 24, "number 0 is in the loop"
    gate.open()
    _, resumed = finish(flow, parallelism=2, resume="latest", **where)
    assert resumed.last_epoch is not None
    in_the_end = counted(manifest_of(store, resumed.last_epoch))
    assert (in_the_end["numbers"], in_the_end["done"], in_the_end["grow"]) == (100, 100, 0)


def test_the_graph_and_the_deployment_of_each_cut_are_told(tmp_path: Path):
    _, result = finish(trips(count=100), snapshots=tmp_path, every=0.2, actors="slice", parallelism=2)
    store = CutStore(str(tmp_path), "trips")
    manifest = manifest_of(store, result.last_epoch)
    graph = store.graph(manifest["graph_hash"])
    kinds = {operator["name"]: (operator["kind"], operator["sink"]) for operator in graph["operators"]}
    assert kinds["done"] == ("sink", "Collect") and kinds["grow"] == ("stateful_map", None)
    assert [edge["loop"] for edge in graph["edges"] if edge["loop"]] == ["again"]
    channels = manifest["deployment"]["channels"]
    told = {(c["edge"], c["sender"], c["sender_index"], c["receiver"], c["receiver_index"]) for c in channels}
    ends = [end["channel"] for task in manifest["tasks"] for end in task["channels"]]
    assert told == {(end["edge"], *end["sender"], *end["receiver"]) for end in ends if not end["restored"]}
    tasks = {(task["task"], task["index"]): task["operators"] for task in manifest["deployment"]["tasks"]}
    assert tasks == {
        (task["task"], task["index"]): [facts["name"] for facts in task["operators"]] for task in manifest["tasks"]
    }

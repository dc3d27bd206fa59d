"""Cuts of earlier versions are restored and audited by this one. `make_cuts.py` has made them; they never change."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backedge.graphs.describing import channels_in
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import ends_in
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.documents import FORMAT
from backedge.recovery.stores.manifests_of_format_12 import FIRST_FORMAT
from tests.formats.flows_of_cuts import DELTA, EXPECTED, FLOWS, JOURNAL, LATER, WHOLE
from tests.gates import Gate
from tests.on_ray.flows import finish

HERE = Path(__file__).parent
VERSIONS = {"0.1, layout 12": HERE / "cuts_of_0_1", "0.1, layout 13": HERE / "cuts_of_layout_13"}
BYTES_MAX = 50_000

of_each_version = pytest.mark.parametrize("version", VERSIONS)
of_each_flow = pytest.mark.parametrize("flow", FLOWS)


Copied = Callable[[str, str], Path]


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    def copy(version: str, flow: str) -> Path:
        """The folder of the cuts in a place of its own, which nobody else may write to, as in some checkouts."""
        place = tmp_path / "cuts"
        shutil.copytree(VERSIONS[version] / flow, place / flow)
        for folder in (place, *(path for path in place.rglob("*") if path.is_dir())):
            folder.chmod(0o700)
        return place

    return copy


def last_cut(store: CutStore) -> Epoch:
    return max(entry.epoch for entry in store.chain() if isinstance(entry, Manifest))


@of_each_flow
def test_there_are_cuts_of_each_format_that_this_version_reads(flow: str):
    paths = [path for folder in VERSIONS.values() for path in (folder / flow).rglob("manifest-*.json")]
    assert {json.loads(path.read_text())["format"] for path in paths} == {*range(FIRST_FORMAT, FORMAT + 1)}


@of_each_version
@of_each_flow
def test_every_file_is_there_and_is_decoded(version: str, flow: str, copied: Copied):
    store = CutStore(str(copied(version, flow)), flow)
    epoch = last_cut(store)
    store.verify(epoch)
    assert store.cut(epoch).snapshots
    size = sum(path.stat().st_size for path in (VERSIONS[version] / flow).rglob("*") if path.is_file())
    assert size < BYTES_MAX


@of_each_version
@of_each_flow
def test_each_channel_has_the_figures_that_were_written(version: str, flow: str, copied: Copied):
    folder = copied(version, flow) / flow
    for path in folder.rglob("manifest-*.json"):
        written = json.loads(path.read_text())
        read = JobFolder.open(str(folder)).manifest(written["epoch"])
        assert read["format"] == written["format"]
        if written["format"] == FIRST_FORMAT:
            # These have an object for each channel.
            assert list(channels_in(read["deployment"]["channels"])) == written["deployment"]["channels"]
            ends = json.loads(json.dumps([list(ends_in(task)) for task in read["tasks"]]))
            assert ends == [task["channels"] for task in written["tasks"]]
        else:
            assert read == {name: value for name, value in written.items() if name != "seal"}


@of_each_version
def test_they_hold_what_is_hard_to_read(version: str, copied: Copied):
    """Records on their way round a loop, as records and as columns; a delta on a whole state; answers after the cut."""
    stores = {flow: CutStore(str(copied(version, flow)), flow) for flow in FLOWS}
    for name in ("plain", "columns"):
        assert stores[name].manifest_of(Epoch(1)).logs["again"].records
    calls = stores["calls"]
    described = [calls.manifest_of(Epoch(2)).tasks[TaskId("count", index)] for index in range(2)]
    assert [(files.base, len(files.below)) for files in described] == [(1, 1), (1, 1)]
    assert sum(1 for _ in calls.answers.read("ask", Epoch(2))) >= JOURNAL - DELTA
    assert WHOLE < DELTA < JOURNAL


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
@of_each_version
@pytest.mark.parametrize(("flow", "parallelism"), [("plain", 2), ("plain", 3), ("columns", 3), ("calls", 2)])
def test_a_run_goes_on_to_its_end_and_every_record_counts_once(
    version: str, flow: str, parallelism: int, copied: Copied, tmp_path: Path
):
    folder, gate = copied(version, flow), Gate(tmp_path / "gate")
    gate.open()
    restored = last_cut(CutStore(str(folder), flow))
    made = FLOWS[flow](gate, LATER)
    _, result = finish(made, snapshots=folder, resume="latest", parallelism=parallelism, actors="slice", every=0.2)
    # One that begins from nothing gives the same, but for the answers.
    assert [restore["epoch"] for restore in result.restores][:1] == [restored]
    assert sorted(map(repr, result.outputs["done"])) == sorted(map(repr, EXPECTED[flow]))


@pytest.mark.slow
@of_each_version
@of_each_flow
def test_they_are_audited(version: str, flow: str, copied: Copied, spark: Any):
    from backedge.recovery.spark.audit.audit_job import audit

    verdict = audit(spark, JobFolder.open(str(copied(version, flow) / flow)), "all")
    assert verdict.passed, verdict.lines()
    assert len(verdict.epochs) == (2 if flow == "calls" else 1)

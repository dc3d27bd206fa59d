"""In a submitted job a relative path is refused, with what to write instead; anywhere else it is fine."""

from __future__ import annotations

import pytest

from backedge import CSV, Collect, Flow, Items, JsonLines, Parquet, Sink, Source
from backedge.engine.on_ray.api.shared_paths import RelativePathError, check_path, checked_paths, is_submitted

SUBMITTED = {"RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"}


def copying(source: Source[object], sink: Sink[object]) -> Flow:
    flow = Flow("copy")
    flow.read(source, name="before").write(sink, name="after")
    return flow


@pytest.mark.parametrize("path", ["cuts", "./cuts", "../shared/cuts", "a/b/cuts"])
def test_a_relative_path_is_refused_in_a_submitted_job(path: str):
    with pytest.raises(RelativePathError, match=r"/FOLDER/cuts, or a URI, file:///FOLDER/cuts"):
        check_path("--snapshots", path, environment=SUBMITTED)


@pytest.mark.parametrize("path", ["/shared/cuts", "file:///shared/cuts", "s3://bucket/cuts"])
def test_an_absolute_path_and_a_uri_pass(path: str):
    check_path("--snapshots", path, environment=SUBMITTED)


def test_a_relative_path_passes_where_no_job_was_submitted():
    assert not is_submitted({"RAY_ADDRESS": "auto"})
    check_path("--snapshots", "cuts", environment={"RAY_ADDRESS": "auto"})
    checked_paths(copying(CSV("in.csv"), JsonLines("out")).plan(), "cuts", environment={})


@pytest.mark.parametrize(
    ("flow", "complaint"),
    [
        (copying(CSV("data/in.csv"), Collect()), r"source 'before' reads 'data/in.csv' .* or s3://BUCKET/in.csv"),
        (copying(Items([1]), Parquet("out")), r"sink 'after' writes 'out' .*, file:///FOLDER/out$"),
    ],
)
def test_what_a_flow_reads_and_writes_is_looked_at(flow: Flow, complaint: str):
    with pytest.raises(RelativePathError, match=complaint):
        checked_paths(flow.plan(), "/shared/cuts", environment=SUBMITTED)


def test_the_folder_of_the_cuts_is_looked_at():
    with pytest.raises(RelativePathError, match="snapshots 'cuts' is relative"):
        checked_paths(copying(Items([1]), Collect()).plan(), "cuts", environment=SUBMITTED)

"""A Delta table in a store of objects, whose replies get lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backedge import DeltaTable
from tests.databases.sinks_by_hand import place_in, transaction
from tests.faults.evidence import Evidence
from tests.files.opened import publish, reader, rest, stage
from tests.lakes.lakes_by_hand import records
from tests.objects.object_servers import BUCKET, ObjectServer, s3_server

pytestmark = pytest.mark.slow


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    with s3_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.mark.parametrize("kind", ["lost reply", "lost request", 503])
def test_a_commit_whose_request_or_reply_is_lost_counts_once(
    s3: ObjectServer, tmp_path: Path, kind: Any, evidence: Evidence
):
    table = DeltaTable(f"s3://{BUCKET}/rows")
    writer: Any = table.open_writer(place_in(tmp_path))
    publish(writer, records(1), transaction(1))
    fault = s3.proxy.plan("PUT", "_delta_log/00000000000000000001.json", kind)
    stage(writer, records(2), transaction(2))
    writer.commit(transaction(2))
    evidence.happened("requests to commit that failed", fault.happened)
    evidence.same(sorted(row["id"] for row in rest(reader(table))), [1, 2])
    assert table.version_to_read() == 1

"""Sinks of files in object stores are exactly once, whatever happens to requests and processes."""

from __future__ import annotations

import os
import sys
from itertools import count
from typing import Any

import pytest

from backedge import CSV, JsonLines, OutcomeUnknownError, Parquet, testing
from backedge.engine.batches.columns import as_records
from backedge.engine.io.files.checks import check_sink, claim_output
from backedge.engine.io.files.file_errors import NoInputError, OutputError
from backedge.graphs.ids import Attempt, TaskId
from backedge.recovery.stores.object_client import Repeats
from backedge.recovery.stores.object_store import PIECE_BYTES, ObjectStore
from tests.faults.evidence import Evidence
from tests.files.opened import AT_ONCE, reader, services, sink, stage, transaction, writer
from tests.files.opened import place as sink_place
from tests.gates import HANG_S
from tests.objects.conftest import QUICK, Place
from tests.objects.faulty_http import Fault, Kind

# They start servers.
pytestmark = pytest.mark.slow

ALWAYS = 1_000
KINDS: list[Kind] = ["lost reply", "lost request", "cut", 409, 412, 503]


@pytest.fixture
def out(place: Place, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where a sink writes, by requests that are repeated at once."""
    monkeypatch.setattr(ObjectStore.__init__, "__defaults__", (QUICK,))
    return f"{place.location}/out"


def batch(*values: int) -> list[Any]:
    return [{"n": value} for value in values]


def objects(place: Place) -> list[str]:
    return sorted(name for name in place.open().list("out") if "/_staging/" not in name)


def staged(place: Place) -> list[str]:
    return sorted(name.rsplit("/", 2)[1] for name in place.open().list("out/_staging"))


def numbers(out: str, kind: Any = JsonLines) -> list[int]:
    opened, records = reader(kind(out)), []
    while not opened.exhausted:
        records += as_records(opened.read(1000))
    return sorted(int(record["n"]) for record in records)


def prepared(out: str, *values: int, epoch: int = 1, attempt: int = 1) -> Any:
    opened = writer(JsonLines(out, **AT_ONCE), opened=services(attempt=Attempt(attempt)))
    stage(opened, batch(*values), transaction(epoch, attempt))
    return opened


def plan_copy(place: Place, kind: Kind, step: str = "end", times: int = 1) -> Fault:
    """Of a copy to the place of a published object: on Azure one request, on S3 a multipart upload."""
    if place.location.startswith("az"):
        return place.proxy.plan("PUT", "/out/part-", kind, times)
    method, name = {"begin": ("POST", "uploads"), "copy": ("PUT", "partNumber"), "end": ("POST", "uploadId")}[step]
    return place.proxy.plan(method, name, kind, times)


@pytest.mark.parametrize("kind", [JsonLines, CSV, Parquet])
def test_output_is_published_by_commit_alone_and_once_and_never_by_a_list(place: Place, out: str, kind: Any):
    lists = place.proxy.plan("GET", "list", 503, times=ALWAYS)
    opened = writer(kind(out, **AT_ONCE))
    stage(opened, batch(1, 2), transaction(1))
    stage(opened, batch(3), transaction(2))
    assert opened.prepare(transaction(3)) is False
    opened.commit(transaction(1))
    opened.commit(transaction(1))
    writer(kind(out, **AT_ONCE), index=5).commit(transaction(2))
    assert lists.happened == 0
    place.proxy.reset()
    assert numbers(out, kind) == [1, 2, 3]
    assert len(objects(place)) == 2 and staged(place) == ["published", "published", "rolls", "rolls"]


def test_each_record_is_published_once_whatever_happens(out: str):
    def published(sink: JsonLines) -> list[Any]:
        try:
            return batch(*numbers(sink.path))
        except NoInputError:
            return []

    places = (f"{out}/{number}" for number in count())
    testing.check_sink(lambda: JsonLines(next(places), **AT_ONCE), published, seeds=range(3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_survives_whatever_happens_to_its_copy(place: Place, out: str, kind: Kind, evidence: Evidence):
    check_commit(place, out, kind, "end", evidence)


@pytest.mark.parametrize("place", ["s3"], indirect=True)  # on Azure a copy is one request
@pytest.mark.parametrize(("kind", "step"), [("lost reply", "begin"), ("cut", "copy"), (503, "copy")])
def test_a_commit_survives_whatever_happens_to_the_other_requests_of_a_copy(
    place: Place, out: str, kind: Kind, step: str, evidence: Evidence
):
    check_commit(place, out, kind, step, evidence)


def check_commit(place: Place, out: str, kind: Kind, step: str, evidence: Evidence) -> None:
    opened = prepared(out, 1, 2)
    fault = plan_copy(place, kind, step)
    opened.commit(transaction(1))
    opened.commit(transaction(1))
    evidence.happened("requests of a copy that failed", fault.happened)
    evidence.same(numbers(out), [1, 2])
    assert len(objects(place)) == 1


def test_a_copy_that_arrives_late_changes_nothing(place: Place, out: str):
    opened = prepared(out, 1)
    late = plan_copy(place, "late")
    opened.commit(transaction(1))
    facts = place.open().facts(objects(place)[0])
    place.proxy.release()
    assert late.has_landed.wait(HANG_S)
    assert numbers(out) == [1] and place.open().facts(objects(place)[0]) == facts


def test_a_commit_that_died_after_its_copy_is_finished_by_another_task(place: Place, out: str):
    opened = prepared(out, 1)
    fault = place.proxy.plan("PUT", "/published/", 503, times=ALWAYS)
    with pytest.raises(OSError, match="SlowDown"):
        opened.commit(transaction(1))
    assert fault.happened > QUICK.times and len(objects(place)) == 1
    place.proxy.reset()
    writer(JsonLines(out), index=1, opened=services(attempt=Attempt(2))).commit(transaction(1))
    assert numbers(out) == [1] and staged(place) == ["published", "rolls"]


# -- objects of several cuts -----------------------------------------------------------------------------------------


def rolled(out: str, *values: int, kind: Any = JsonLines) -> tuple[Any, list[str]]:
    """A writer, and the transactions that its cuts list: one for each value, committed, that wait to be published."""
    opened = writer(kind(out))
    names = [transaction(value) for value in values]
    for value, name in zip(values, names, strict=True):
        stage(opened, batch(value), name)
        assert name in opened.commit_together([name])
    return opened, names


def published_by(out: str, attempt: int, names: list[str]) -> None:
    """An attempt restores a cut that lists these transactions."""
    assert not writer(JsonLines(out), opened=services(attempt=Attempt(attempt))).commit_together(names)


@pytest.mark.parametrize("kind", [JsonLines, CSV, Parquet])
def test_several_cuts_become_one_object_and_never_by_a_list(place: Place, out: str, kind: Any):
    lists = place.proxy.plan("GET", "list", 503, times=ALWAYS)
    opened, _ = rolled(out, 1, 2, 3, kind=kind)
    opened.close()
    assert lists.happened == 0
    place.proxy.reset()
    assert numbers(out, kind) == [1, 2, 3]
    assert len(objects(place)) == 1 and staged(place) == ["published", "rolls"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_roll_survives_whatever_happens_to_its_requests(place: Place, out: str, kind: Kind, evidence: Evidence):
    opened, names = rolled(out, 1, 2, 3)
    faults = [place.proxy.plan("PUT", "/rolls/", kind), plan_copy(place, kind)]
    if kind not in (409, 412):  # answers to conditional requests
        faults += [place.proxy.plan("PUT", name, kind) for name in ("/joined/", "/published/")]
        faults.append(place.proxy.plan("GET", "/prepared/", kind))
    opened.close()
    assert [fault.happened for fault in faults] == [1] * len(faults)
    evidence.happened("requests of a roll that failed", len(faults))
    published_by(out, 2, names)
    evidence.same(numbers(out), [1, 2, 3])
    assert len(objects(place)) == 1 and staged(place) == ["published", "rolls"]


@pytest.mark.parametrize("lands_first", [False, True])
def test_a_record_that_lands_late_decides_for_all_or_for_none(place: Place, out: str, lands_first: bool):
    """Whether it was created is unknown, so what it may name stays; the next attempt lists one piece more."""
    opened, names = rolled(out, 1, 2)
    stage(opened, batch(3), transaction(3))
    late = place.proxy.plan("PUT", "/rolls/", "late")
    refused = place.proxy.plan("PUT", "/rolls/", 503, times=QUICK.times)
    with pytest.raises(OutcomeUnknownError):
        opened.close()
    assert (late.happened, refused.happened) == (1, QUICK.times) and objects(place) == []
    assert staged(place).count("prepared") == 3
    if lands_first:
        place.proxy.release()
        assert late.has_landed.wait(HANG_S)
    published_by(out, 2, [*names, transaction(3)])
    if not lands_first:
        place.proxy.release()
        assert late.has_landed.wait(HANG_S)
    published_by(out, 3, [*names, transaction(3)])
    assert numbers(out) == [1, 2, 3] and len(objects(place)) == (2 if lands_first else 1)


def test_large_parts_are_uploaded_and_copied_whole(place: Place, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ObjectStore.__init__, "__defaults__", (Repeats(pause_s_first=0.001),))
    opened = writer(JsonLines(f"{place.location}/out", **AT_ONCE))
    text = "x" * (PIECE_BYTES // 4)
    for n in range(5):
        opened.write([{"n": n, "text": text}])
    fault = plan_copy(place, "lost reply", "end")
    opened.prepare(transaction(1))
    opened.commit(transaction(1))
    assert fault.happened == 1
    assert numbers(f"{place.location}/out") == list(range(5))


def test_a_process_that_dies_leaves_no_local_file(out: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    opened = writer(JsonLines(out))
    opened.write(batch(1))
    assert os.listdir(tmp_path) == []
    opened.close()


def test_a_fresh_run_is_refused_a_place_that_holds_output_and_a_resumed_one_is_not(place: Place, out: str):
    operator = sink(JsonLines(out))
    check_sink(operator, sink_place(), fresh=True)
    assert list(place.open().list("out")) == [], "what was tried out is gone"
    prepared(out, 1).commit(transaction(1))
    check_sink(operator, sink_place())
    with pytest.raises(OutputError, match=r"'part-"):
        check_sink(operator, sink_place(), fresh=True)


@pytest.mark.parametrize("place", ["s3"], indirect=True)  # requests to Azure have a signature of these headers
def test_a_server_that_copies_over_objects_is_refused_by_name(place: Place, out: str):
    place.proxy.dropped_headers = {"if-none-match"}
    with pytest.raises(OutputError, match=r"'out'.*AWS_COPY_IF_NOT_EXISTS"):
        check_sink(sink(JsonLines(out)), sink_place())


def test_a_place_that_cannot_be_written_to_is_refused(place: Place, out: str, monkeypatch: pytest.MonkeyPatch):
    scheme = place.location.partition("://")[0]
    with pytest.raises(OutputError, match=rf"'out'.*{scheme}://missing"):
        check_sink(sink(JsonLines(f"{scheme}://missing/out")), sink_place())
    fault = place.proxy.plan("PUT", "/try-", 403, times=ALWAYS)
    with pytest.raises(OutputError, match=r"'out'.*denied"):
        check_sink(sink(JsonLines(out)), sink_place())
    assert fault.happened
    monkeypatch.setitem(sys.modules, "backedge.recovery.stores.object_store", None)
    with pytest.raises(OutputError, match=r"'out'.*backedge\["):
        check_sink(sink(JsonLines(f"{out}/other")), sink_place())


def test_replacing_output_is_refused_by_name_before_anything_runs(out: str):
    assert not JsonLines(out).can_withdraw(sink_place())


@pytest.mark.parametrize("is_published", [True, False])
def test_what_the_cut_lists_of_another_place_is_published_there_once(
    place: Place, out: str, tmp_path: Any, is_published: bool
):
    def opened(path: str, attempt: int) -> Any:
        its = services(tmp_path, attempt=Attempt(attempt))
        operator = sink(JsonLines(path))
        claim_output([(operator, its.place(operator))])
        return its.writer(operator, TaskId("out", 0))

    before = opened(out, 1)
    for epoch in (1, 2):
        stage(before, batch(epoch), transaction(epoch))
    if is_published:
        before.commit_together([transaction(1), transaction(2)])
        before.close()
    for attempt, path in ((2, f"{place.location}/other"), (3, str(tmp_path / "local"))):
        later = opened(path, attempt)
        assert not later.commit_together([transaction(1), transaction(2)])
        later.close()
    assert numbers(out) == [1, 2] and not list(tmp_path.glob("local/part-*"))

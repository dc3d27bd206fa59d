"""A run that keeps its cuts in an object store, and what the commands say of it."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backedge import Collect, Flow, JsonLines, Range, run
from backedge.command import main
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.spark.audit.audit_job import audit
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.store_schemes import store_at
from tests.faults.evidence import Evidence
from tests.gates import Gate, Gated
from tests.jobs.rays import SharedRay
from tests.objects.object_servers import BUCKET, ObjectServer
from tests.on_ray.flows import begin, finish, until
from tests.on_ray.test_incremental_cuts import COUNTED, COUNTS, KEYS, OPTIONS, STEP, counting, cut_at

KILLS = ["numbers@epoch=2", "parity@epoch=4", "half@epoch=6"]


@pytest.fixture(scope="module")
def ray_with_s3(s3: ObjectServer, shared_ray: SharedRay) -> Iterator[None]:
    """A Ray whose workers reach the server: they get the environment in which Ray is started."""
    shared_ray.end()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in s3.environment.items():
            environment.setenv(name, value)
        ray = SharedRay()
        ray.start()
        yield
        ray.end()
    s3.proxy.reset()


@pytest.fixture
def location(ray_with_s3: None) -> str:
    """An unused place: a test that runs again must not find what it left behind."""
    return f"s3://{BUCKET}/{secrets.token_hex(4)}"


def halving(gate: str) -> Flow:
    """Even numbers go round and are halved; odd ones are collected."""
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    numbers = flow.read(Gated(Range(801, start=1), Gate(gate), 100), name="numbers")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    odd.write(Collect(), name="odd")
    return flow


def halved(n: int) -> int:
    return n if n % 2 else halved(n // 2)


@pytest.mark.long  # test_object_faults.py and tests/on_ray/test_incremental_cuts.py have a half of it each
def test_deltas_are_written_and_restored_while_requests_fail(
    location: str, s3: ObjectServer, tmp_path: Path, evidence: Evidence
):
    written = s3.proxy.plan("PUT", "table=state", "lost reply", times=3)
    slow_down = s3.proxy.plan("PUT", "table=state", 503, times=3)
    read = s3.proxy.plan("GET", "table=state", "cut", times=3)
    gate = Gate(tmp_path / "gate")
    job = begin(counting(gate), snapshots=location, kills=[f"counts@records={KEYS + 3 * STEP}"], **OPTIONS)
    *_, last = cut_at(job, gate, KEYS, KEYS + STEP, KEYS + 2 * STEP)
    gate.open()
    result = job.wait()
    evidence.happened("files of state whose reply was lost", written.happened)
    evidence.happened("files of state that were refused at first", slow_down.happened)
    evidence.happened("files of state that were cut off while they were read", read.happened)
    evidence.happened("processes that died", len(result.kills))
    assert [restore["epoch"] for restore in result.restores] == [last]
    entries = CutStore(store_at(location), "counting").chain()
    lists = {entry.epoch: entry.states[COUNTS] for entry in entries if isinstance(entry, Manifest)}
    evidence.happened("files below a delta that was restored", len(lists[last]) - 1)
    evidence.same(result.outputs["counted"], COUNTED)


def halving_files(read: str, written: str, gate: Gate) -> Flow:
    """The same loop on objects: what is odd in the end is written, several cuts into one object."""
    flow = Flow("halving_files")
    again = flow.loop("again", of=int)
    numbers = flow.read(Gated(JsonLines(read), gate), name="numbers")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    odd.rebalance().map(lambda n: {"n": n}, name="shown").write(JsonLines(written, roll_s=1.0), name="odd")
    return flow


@pytest.mark.slow
def test_objects_are_read_and_written_once_while_processes_die_and_requests_fail(
    location: str, s3: ObjectServer, tmp_path: Path, evidence: Evidence
):
    store = store_at(f"{location}/files")
    store.write({f"in/{first:03}.jsonl": _lines(range(first, first + 40)) for first in range(1, 401, 40)})
    read = s3.proxy.plan("GET", "/files/in/0", "cut", times=3)
    copied = s3.proxy.plan("POST", "uploadId", "lost reply", times=2)
    recorded = s3.proxy.plan("PUT", "/rolls/", "lost reply", times=2)
    joined = s3.proxy.plan("PUT", "/joined/", "lost reply", times=2)
    gate, kills = Gate(tmp_path / "gate"), ["numbers@epoch=2", "odd@epoch=3"]
    flow = halving_files(f"{store.location}/in/*.jsonl", f"{store.location}/out", gate)
    job = begin(flow, snapshots=f"{location}/cuts", every=0.2, parallelism=2, kills=kills)

    def has_all_happened(story: Story) -> bool:
        """Each cut has some more of each of the ten objects."""
        gate.let(3 * story.snapshots + 3)
        return len(story.kills) == 2 and bool(joined.happened)

    until(job, has_all_happened, "both kills, and several cuts became one object")
    gate.open()
    result = job.wait()
    evidence.happened("processes that died", len(result.kills))
    evidence.happened("requests that failed", read.happened + copied.happened + recorded.happened + joined.happened)
    assert len(result.kills) == 2 and read.happened and copied.happened and recorded.happened
    assert joined.happened, "the output of several cuts became one object"
    names = list(store.list("out"))
    written = [json.loads(line)["n"] for name in names if "_staging/" not in name for line in store.read(name).split()]
    evidence.same(written, [halved(n) for n in range(1, 401)])
    assert not [name for name in names if "/prepared/" in name]


def _lines(values: Iterable[int]) -> bytes:
    return "".join(f"{value}\n" for value in values).encode()


@pytest.fixture
def spark_with_credentials(spark: Any, s3: ObjectServer) -> Iterator[Any]:
    """Tasks have the environment in which Spark was started, and what is set here."""
    with pytest.MonkeyPatch.context() as changes:
        for name, value in s3.environment.items():
            changes.setitem(spark.sparkContext.environment, name, value)
        yield spark


@pytest.mark.slow
def test_kills_and_failing_requests_lose_nothing_and_double_nothing(
    location: str,
    s3: ObjectServer,
    spark_with_credentials: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    evidence: Evidence,
):
    """The run is resumed and audited, too: one run is made for all of it."""
    lost = s3.proxy.plan("PUT", "/chain/", "lost reply", times=3)
    busy = s3.proxy.plan("PUT", "/chain/", 409, times=3)
    slow_down = s3.proxy.plan("PUT", "epoch=", 503, times=5)
    gate = Gate(tmp_path / "gate")
    _, result = finish(halving(gate), gate=gate, snapshots=location, every=0.2, parallelism=2, kills=KILLS)
    assert len(result.kills) == 3
    assert (lost.happened, busy.happened, slow_down.happened) == (3, 3, 5)
    evidence.happened("replies to a conditional creation that were lost", lost.happened)
    evidence.happened("processes that died", len(result.kills))
    evidence.same(result.outputs["odd"], [halved(n) for n in range(1, 801)])

    capsys.readouterr()
    assert main(["snapshots", "list", "--snapshots", location, "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["cuts"]
    assert listed and all(cut["restorable"] for cut in listed)
    epoch = listed[-1]["epoch"]
    assert main(["snapshots", "show", str(epoch), "--snapshots", location, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == epoch

    flow = "tests.objects.test_runs_on_objects:halving"
    assert main(["snapshots", "check", flow, "--set", f"gate={gate}", "--snapshots", location, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["epoch"] == epoch

    older = listed[len(listed) // 2]["epoch"]
    resumed = run(halving(gate), snapshots=location, every=0.5, parallelism=2, resume=older, progress=False)
    assert [restore["epoch"] for restore in resumed.restores] == [older]
    missing = Counter(halved(n) for n in range(1, 801)) - Counter(resumed.outputs["odd"])
    assert not missing, "what was published after the older cut is published again, and nothing is lost"

    job = JobFolder.open(location)
    verdict = audit(spark_with_credentials, job, "all")
    assert verdict.passed, verdict.lines()
    evidence.survived("cuts that pass the audit", len(verdict.epochs))

    store = store_at(job.path)
    name = next(file["name"] for task in job.manifest(job.latest())["tasks"] for file in task["files"])
    refused = s3.proxy.plan("GET", name, 403)
    with pytest.raises(UnreadableError, match=name):
        audit(spark_with_credentials, job)
    assert refused.happened == 1

    store.write({name: store.read(name)[:-1] + b"?"})
    with pytest.raises(UnreadableError, match=f"{job.path}/{name}"):
        audit(spark_with_credentials, job)

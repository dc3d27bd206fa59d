"""`backedge snapshots` in a folder of several jobs, one of which is damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from backedge import Collect, Flow, Items
from backedge.command import main
from backedge.engine.batches.constant_bytes import constant_bytes
from backedge.graphs.deployment import Deployment
from backedge.graphs.describing import describe_plan
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import OperatorState, TaskSnapshot
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.protocol.rounds import Phase, Rounds
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.task_files import TaskFiles
from tests.stores.snapshots import DEPLOYMENT, begin, complete, manifest_for


def written(folder: Path, job: str, key: bytes | None = None) -> Path:
    """The folder of a job with a cut."""
    store = CutStore(str(folder), job, key)
    begin(store)
    complete(store, 1)
    return Path(store.path)


@pytest.fixture
def cuts(tmp_path: Path) -> Path:
    """A folder with a job that is as it was written, and one whose identity was torn."""
    folder = tmp_path / "cuts"
    written(folder, "sound")
    (written(folder, "torn") / "job.json").write_text("{")
    return folder


def test_a_damaged_job_does_not_hide_the_others(cuts: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["snapshots", "list", "--snapshots", str(cuts)]) == 1
    told, fault = capsys.readouterr()
    assert {line.split()[0] for line in told.splitlines()} == {"job", "sound"}
    assert fault.count("\n") == 1
    assert "torn/job.json" in fault


def test_a_damaged_job_that_is_asked_for_is_refused(cuts: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["snapshots", "list", "--snapshots", str(cuts), "--job", "torn"]) == 2
    assert main(["snapshots", "show", "1", "--snapshots", str(cuts), "--job", "torn"]) == 2
    assert capsys.readouterr().err.count("torn/job.json") == 2


def test_a_folder_of_another_name_is_not_taken_for_a_job(cuts: Path, capsys: pytest.CaptureFixture[str]):
    (cuts / "sound").rename(cuts / "renamed")
    before = sorted(path.name for path in cuts.iterdir())
    assert main(["snapshots", "list", "--snapshots", str(cuts)]) == 2
    assert "rename the folder" in capsys.readouterr().err
    assert sorted(path.name for path in cuts.iterdir()) == before


def test_which_of_several_jobs_is_meant_has_to_be_said(cuts: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["snapshots", "show", "1", "--snapshots", str(cuts)]) == 2
    assert "--job, one of sound, torn" in capsys.readouterr().err


def test_signed_cuts_are_listed_with_their_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    written(tmp_path / "cuts", "signed", b"a secret of 22 bytes..")
    (tmp_path / "key").write_bytes(b"a secret of 22 bytes..\n")
    listing = ["snapshots", "list", "--snapshots", str(tmp_path / "cuts")]
    assert main(listing) == 2
    assert "is signed" in capsys.readouterr().err
    assert main([*listing, "--key-file", str(tmp_path / "key")]) == 0
    told = capsys.readouterr().out
    assert "signed" in told
    monkeypatch.setenv("BACKEDGE_KEY", "a secret of 22 bytes..")
    assert main(listing) == 0
    assert capsys.readouterr().out == told


def flow_with_constants(prices: int = 1) -> Flow:
    """A flow for the command line."""
    flow = Flow("job")
    flow.read(Items([1]), name="in").write(Collect(), name="out")
    flow.constant("prices", prices)
    flow.constant("rates", load=lambda: 2)
    return flow


def test_constants_that_differ_from_those_of_a_cut_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    store = CutStore(str(tmp_path), "job")
    begin(store)
    prices, paths = store.constants.keep([constant_bytes(1), b"of roads"], "77aa")
    store.describe_graph(DEPLOYMENT.plan.hash, describe_plan(DEPLOYMENT.plan))
    store.create(2, manifest_for({}, 1), {}, DEPLOYMENT, {"prices": prices, "paths": paths})

    def check(*words: str) -> tuple[int, str]:
        flow = f"{__name__}:flow_with_constants"
        code = main(["snapshots", "check", flow, "--snapshots", str(tmp_path), *words])
        return code, capsys.readouterr().out

    code, told = check()
    assert code == 1
    assert "added: constant rates" in told
    assert "problem: constant 'paths' of the cut is not in the flow any more" in told
    assert "constant 'prices'" not in told
    code, told = check("--drop", "paths")
    assert code == 0
    assert "dropped: the value of constant paths is given up" in told
    code, told = check("--drop", "paths", "--set", "prices=2")
    assert code == 1
    assert "problem: constant 'prices' has another value than in the cut" in told
    code, told = check("--drop", "paths", "--drop", "prices", "--set", "prices=2", "--json")
    facts = json.loads(told)
    assert (code, facts["added_constants"], facts["dropped_constants"]) == (0, ["rates"], ["paths", "prices"])


def flow_in_rounds() -> Flow:
    """A flow with an iteration, for the command line."""
    flow = Flow("rounds")
    numbers = flow.read(Items([1, 2]), name="in")
    flow.iterate(numbers, lambda body: body.map(abs, name="abs"), rounds=3, name="iterate").write(Collect(), name="out")
    return flow


def take_cut(store: CutStore, deployment: Deployment, epoch: int, phase: Phase) -> None:
    """A cut of all tasks, with the heads of the iteration in this phase."""
    files: dict[TaskId, TaskFiles] = {}
    for task in deployment.tasks.values():
        rounds = Rounds(task) if task.depth else None
        if rounds is not None and rounds.is_head:
            rounds.phase = phase
        state = None if rounds is None else rounds.snapshot(bytes)
        operators = dict.fromkeys(task.operators, OperatorState())
        snapshot = TaskSnapshot(task.id, Epoch(epoch), Attempt(1), operators, (), (), rounds=state)
        files[task.id] = store.write_task(Attempt(1), Epoch(epoch), snapshot)
    own = dict.fromkeys(files, Epoch(epoch))
    manifest = Manifest(Epoch(epoch), Attempt(1), Mode.ALIGNED, own, dict.fromkeys(files, ()))
    assert store.create(len(store.chain()) + 1, manifest, files, deployment)


def test_a_cut_in_the_middle_of_a_round_does_not_fit_another_parallelism_and_the_newest_that_does_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store, deployment = CutStore(str(tmp_path), "rounds"), expand(flow_in_rounds().plan(), 2)
    begin(store)
    store.describe_graph(deployment.plan.hash, describe_plan(deployment.plan))
    for epoch, phase in ((1, Phase.CUT), (2, Phase.CUT), (3, Phase.ROUND)):
        take_cut(store, deployment, epoch, phase)

    def check(*words: str) -> tuple[int, str]:
        flow = f"{__name__}:flow_in_rounds"
        code = main(["snapshots", "check", flow, "--snapshots", str(tmp_path), *words])
        return code, capsys.readouterr().out

    assert check()[0] == check("--parallelism", "2")[0] == check("--parallelism", "3", "--epoch", "2")[0] == 0
    code, told = check("--parallelism", "3")
    assert code == 1
    assert "in the middle of round" in told
    assert "--resume 2" in told

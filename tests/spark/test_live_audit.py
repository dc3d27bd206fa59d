"""Auditing a running job: cuts are held, an inconsistent cut ends the run, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backedge import AuditFailedError, JavaError, Job, RunResult, start
from backedge.engine.on_ray.supervisor.audit_process import Auditor
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.ids import Epoch
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores import chain
from backedge.recovery.stores.cut_store import CutStore
from tests.command.endless import MODULE
from tests.gates import HANG_S, Gate, wait_for
from tests.jobs.rays import check_gone, commands_below, descendants, processes, short_folder
from tests.on_ray import flows, leftovers
from tests.on_ray.flows import expect, trips, trips_made, until, watch
from tests.spark.cuts import job_of_cuts
from tests.stores.layered import Cuts
from tests.stores.snapshots import DEPLOYMENT, append, begin, held, manifest_for, snapshots_of, write

ROOT = Path(__file__).resolve().parents[2]
KEY = b"of the owner alone"

DRIVER = """
import sys
from backedge.engine.on_ray.supervisor.audit_process import Auditor
auditor = Auditor(sys.argv[1], "driven", "every-cut", None)
print("started", flush=True)
sys.stdin.read()
"""


def is_watching(command: str) -> bool:
    return "backedge.recovery.spark watch" in command


def is_spark(command: str) -> bool:
    """Whether this is the Java process itself, not what starts it."""
    return "/java -cp" in command


def test_an_audit_without_cuts_or_of_another_kind_is_refused():
    with pytest.raises(BadOptionError, match=r"audit='final'.*snapshots="):
        start(trips(3), audit="final")
    with pytest.raises(BadOptionError, match="audit"):
        start(trips(3), audit="sometimes", snapshots="cuts")  # type: ignore[arg-type]


def test_a_missing_java_is_told_before_anything_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(JavaError, match="Java 17"):
        start(trips(3), audit="final", snapshots=tmp_path / "cuts")
    assert not (tmp_path / "cuts").exists()


@pytest.mark.slow
def test_a_cut_that_is_held_stays_when_retention_removes_it(tmp_path: Path):
    from backedge.recovery.spark.audit.live_audit import hold_cut

    path = job_of_cuts(tmp_path / "snapshots")
    folder, held = JobFolder.open(str(path)), str(tmp_path / "held")
    first, *_, last = folder.cuts()
    manifest = folder.manifest(last)
    hold_cut(str(path), held, last)
    for file in [*path.glob(f"epoch={last}/**/*"), *path.glob(f"epoch={first}/**/*")]:
        if file.is_file():
            file.unlink()
    assert JobFolder.open(held).cuts() == [last]
    assert JobFolder.open(held).manifest(last) == manifest
    with pytest.raises(UnreadableError, match="was removed"):
        hold_cut(str(path), held, first)


@pytest.mark.slow
def test_a_cut_is_held_with_the_earlier_files_that_it_needs_and_with_its_constants(tmp_path: Path):
    from backedge.recovery.spark.audit.live_audit import hold_cut

    graph = {"name": "job", "operators": [], "edges": []}
    layered = Cuts(tmp_path / "layered")
    layered.store.describe_graph("abc", graph)
    layered.complete(1, held({7: 1, 8: [2]}))
    layered.complete(2, held({7: 2}), base=1)
    with_constant = CutStore(str(tmp_path / "with a constant"), "job")
    with_constant.describe_graph("abc", graph)
    begin(with_constant)
    (rates,) = with_constant.constants.keep([b"value"], "r1")
    files = write(with_constant, snapshots_of(1))
    with_constant.create(2, manifest_for(files, 1), files, DEPLOYMENT, {"rates": rates})
    for path, epoch, needed in ((layered.store.path, 2, "epoch=1/"), (with_constant.path, 1, rates.name)):
        held_by = tmp_path / f"held {epoch}" / "job"
        hold_cut(path, str(held_by), epoch)
        files_of_cut = CutStore(str(held_by.parent), "job").manifest_of(Epoch(epoch)).files
        assert any(file.name.startswith(needed) for file in files_of_cut)
        assert [file.name for file in files_of_cut if not (held_by / file.name).is_file()] == []


def test_of_the_chain_no_more_is_held_than_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each cut of a run of months is held, one after the other."""
    from backedge.recovery.spark.audit.live_audit import hold_cut

    monkeypatch.setattr(chain, "ENTRIES_KEPT", 2)
    store = CutStore(str(tmp_path / "snapshots"), "job")
    store.describe_graph("abc", {"name": "job", "operators": [], "edges": []})
    begin(store)
    held, path = tmp_path / "held", Path(store.path)
    for epoch in range(1, 40):
        append(store, manifest_for({}, epoch), {})
        hold_cut(store.path, str(held), epoch)
        for folder in ("chain", "past"):
            assert names_in(held / folder) == names_in(path / folder)
        assert JobFolder.open(str(held)).links() == store.links()
        if epoch > 1:
            store.drop(Epoch(epoch - 1))
    assert names_in(path / "past") and len(names_in(held / "chain")) < 6


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def test_an_audit_whose_process_died_at_once_is_told_as_such(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    auditor = Auditor(str(tmp_path), "job", "every-cut", None)
    for _ in range(2):  # the second time, it is dead before it is told that the run is over
        with pytest.raises(AuditFailedError, match="its process died"):
            auditor.finish()
    auditor.close()


@pytest.mark.parametrize("job", ["job", "_x", "a~b"])
def test_an_audit_reads_the_folder_of_the_job_and_nobody_sees_its_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: str
):
    stands_in = tmp_path / "python"
    stands_in.write_text("#!/bin/sh\ncat > /dev/null\n")
    stands_in.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(stands_in))
    folder = CutStore(str(tmp_path / "cuts"), job, KEY).path
    auditor = Auditor(str(tmp_path / "cuts"), job, "every-cut", KEY)
    shown = b"".join(map(told_of, descendants(os.getpid())))
    auditor.close()
    assert f"watch\0{folder}\0".encode() in shown
    assert KEY not in shown and KEY.hex().encode() not in shown


# -- on Ray --------------------------------------------------------------------------------------------------------


def told_of(pid: int) -> bytes:
    """What others may read of a process: the words that it was started with, and its environment."""
    try:
        return b"".join(Path(f"/proc/{pid}/{kind}").read_bytes() for kind in ("cmdline", "environ"))
    except OSError:
        return b""


def watched_while_it_audits(job: Job, folder: Path) -> tuple[RunResult, bytes]:
    """The result, and what others may read of our processes when one of them audits this folder."""
    shown = [b""]

    def is_audited() -> bool:
        return b"backedge.recovery.spark" in shown[-1] and str(folder).encode() in shown[-1]

    def look(_: Story) -> None:
        if not is_audited() and any(
            "backedge.recovery.spark" in leftovers.name_of(pid) for pid in leftovers.processes()
        ):
            shown.append(b"".join(map(told_of, descendants(os.getpid()))))

    result = watch(job, look)
    assert is_audited()
    return result, shown[-1]


@pytest.mark.long  # the demo in tests/examples is killed and audited, too, at its end
@pytest.mark.usefixtures("local_ray")
def test_cuts_are_audited_as_they_appear_and_nobody_sees_the_key(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    gate, cuts = Gate(tmp_path / "gate"), tmp_path / "cuts"
    options: dict[str, Any] = {"every": 0.3, "audit": "every-cut", "progress": True, "key": KEY}
    job = flows.begin(trips(count=50, gate=gate), snapshots=cuts, kills=["head@epoch=2"], **options)
    until(job, lambda story: story.kills, "the planned fault has happened")
    gate.open()
    result, shown = watched_while_it_audits(job, cuts)
    assert KEY not in shown and KEY.hex().encode() not in shown, "others see the processes that audit"
    expect(result, trips_made(50))
    assert (result.state, result.missed_faults) == ("finished", ())
    assert result.audit is not None and result.audit["state"] == "consistent" and result.audit["cuts"] >= 1
    assert result.summary()["audit"] == result.audit
    assert "is consistent" in capfd.readouterr().err
    left = [
        command
        for _, command in processes().values()
        if "backedge.recovery.spark" in command and str(tmp_path) in command
    ]
    assert left == []


@pytest.mark.usefixtures("local_ray")
def test_a_cut_that_is_not_consistent_ends_the_run(tmp_path: Path):
    flow = trips(count=50, gate=Gate(tmp_path / "gate"))
    job = flows.begin(flow, snapshots=tmp_path / "cuts", every=1.0, audit="every-cut", broken_rule="no-loop-log")
    with pytest.raises(AuditFailedError, match=r"epoch \d+, statement 2\b"):
        job.wait()
    assert job.result is not None and job.result.audit is not None
    assert (job.result.state, job.result.audit["state"]) == ("failed", "not consistent")


@pytest.mark.slow
def test_nothing_of_an_audit_outlives_the_run_that_asked_for_it(tmp_path: Path):
    job_of_cuts(tmp_path)
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        wait_for(lambda: any(map(is_spark, commands_below(driver.pid).values())), "Spark starts")
        started = set(descendants(driver.pid))
        driver.kill()
    check_gone(started)


@pytest.mark.long  # above, the driver of an audit is killed; in tests/command/test_interrupted.py a run is interrupted
@pytest.mark.parametrize(
    ("number", "code", "is_there"),
    [(signal.SIGINT, 130, is_watching), (signal.SIGTERM, 143, is_spark)],
    ids=["before Java is there", "while it starts"],
)
def test_an_interrupted_run_leaves_nothing_of_its_audit(
    number: signal.Signals,
    code: int,
    is_there: Callable[[str], bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "endless.py").write_text(MODULE)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    command = [sys.executable, "-m", "backedge", "run", "endless:flow", "--snapshots", "cuts"]
    command += ["--every", "0.3", "--audit", "every-cut"]
    with short_folder() as folder, monkeypatch.context() as environment:
        environment.setenv("RAY_TMPDIR", folder)
        with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
            wait_for(lambda: any(map(is_there, commands_below(run.pid).values())), "the audit starts")
            started = set(descendants(run.pid))
            run.send_signal(number)
            _, errors = run.communicate(timeout=HANG_S)
    left = [command for _, command in processes().values() if is_spark(command) and str(tmp_path) in command]
    assert (run.returncode, left) == (code, []), errors
    assert "Traceback" not in errors
    assert list((tmp_path / "temporary").iterdir()) == []
    check_gone(started)

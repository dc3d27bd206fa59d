"""A run with a key signs all that it may restore later, and restores nothing that the key has not signed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backedge import (
    Collect,
    DamagedOutputError,
    Flow,
    Items,
    Job,
    RunResult,
    SnapshotAuthError,
    StoreError,
    run,
)
from backedge.command import main
from backedge.engine.io.files.kept_in_store import KeptInStore
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.recovery.stores.folder_store import FolderStore
from tests.gates import Gate
from tests.jobs.rays import descendants
from tests.on_ray.flows import begin, expect, trips, trips_made, until, watch
from tests.on_ray.leftovers import name_of, processes

KEY = b"of the owner alone"


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
        if not is_audited() and any("backedge.recovery.spark" in name_of(pid) for pid in processes()):
            shown.append(b"".join(map(told_of, descendants(os.getpid()))))

    result = watch(job, look)
    assert is_audited()
    return result, shown[-1]


@pytest.mark.slow
@pytest.mark.usefixtures("on_ray")
def test_a_signed_run_goes_on_with_its_key_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    gate, folder = Gate(tmp_path / "gate"), tmp_path / "cuts"
    flow = trips(count=100, gate=gate)
    job = begin(flow, snapshots=folder, every=0.1, key=KEY, kills=["head@epoch=1"])
    until(job, lambda story: story.snapshots >= 3, "three cuts are complete")
    job.cancel()
    for key, told in (
        (None, "is signed, and no key is given"),
        (b"the key of another run", "is not signed with this key"),
    ):
        with pytest.raises(SnapshotAuthError, match=told):
            run(flow, snapshots=folder, resume="latest", key=key, progress=False)
    died = ["body@epoch=9"]
    job = begin(flow, snapshots=folder, every=0.1, key=KEY, resume="latest", audit="final", kills=died)
    until(job, lambda story: story.kills, "the planned fault has happened")
    gate.open()
    result, shown = watched_while_it_audits(job, folder)
    assert KEY not in shown and KEY.hex().encode() not in shown, "others see the processes that audit"
    expect(result, trips_made(100))
    assert (result.state, result.missed_faults) == ("finished", ())
    assert result.audit is not None and result.audit["state"] == "consistent"
    assert result.restores, "the signed cut was restored"

    output = KeptInStore("done", FolderStore(str(folder / "trips" / "output" / "done")), lambda *_: None)
    with pytest.raises(DamagedOutputError, match="written with another key"):
        output.committed({})
    everything = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in everything if KEY in path.read_bytes() or KEY.hex().encode() in path.read_bytes()]
    assert {path.stat().st_mode & 0o077 for path in everything} == {0}

    (tmp_path / "key").write_bytes(KEY + b"\n")
    shown = ["snapshots", "show", str(result.last_epoch), "--snapshots", str(folder)]
    assert main([*shown, "--key-file", str(tmp_path / "key")]) == 0
    assert main(shown) == 2
    assert "is signed, and no key is given" in capfd.readouterr().err


def shop() -> Flow:
    flow = Flow("shop")
    flow.read(Items([1]), name="orders").write(Collect(), name="done")
    return flow


def test_a_key_that_is_none_is_refused_before_ray_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(StoreError, match="key= is empty"):
        run(shop(), snapshots=tmp_path, key=b"")
    monkeypatch.setenv("BACKEDGE_KEY", "")
    with pytest.raises(StoreError, match="BACKEDGE_KEY is empty"):
        run(shop(), snapshots=tmp_path)

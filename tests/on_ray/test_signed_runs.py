"""A run with a key signs all that it may restore later, and restores nothing that the key has not signed."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge import (
    Collect,
    DamagedOutputError,
    Flow,
    Items,
    SnapshotAuthError,
    StoreError,
    run,
)
from backedge.command import main
from backedge.engine.io.files.kept_in_store import KeptInStore
from backedge.recovery.stores.folder_store import FolderStore
from tests.gates import Gate
from tests.on_ray.flows import begin, expect, finish, trips, trips_made, until

KEY = b"of the owner alone"


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
    _, result = finish(flow, gate=gate, snapshots=folder, every=0.1, key=KEY, resume="latest", kills=died)
    expect(result, trips_made(100))
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
    assert not list(tmp_path.iterdir())

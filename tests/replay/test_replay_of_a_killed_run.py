"""`backedge run --keep-inputs` on Ray with a process that is killed, and `backedge replay` of what was kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backedge import Flow
from backedge.command import main
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore
from tests.gates import Gate, behind, opened_after
from tests.on_ray.flows import trips

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_ray")]


def gated_trips(gate: str) -> Flow:
    """A quarter of the numbers come at once. Functions do not look at the gate: a replay has to find what they did."""
    return behind(trips(600, has_constant=True), Gate(gate), at_first=150)


def replayed(capsys: pytest.CaptureFixture[str], cuts: Path, *words: str) -> dict[str, Any]:
    code = main(["replay", "trips", "--snapshots", str(cuts), "--json", *words])
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    return found


def test_replays_of_a_run_that_was_killed_send_what_it_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    cuts, gate = tmp_path / "cuts", Gate(tmp_path / "gate")
    flow = [f"{__name__}:gated_trips", "--set", f"gate={gate}", "--actors", "slice", "--every", "0.3", "--keep", "99"]
    kept = ["--keep-inputs", "enough", "--keep-inputs", "grow", "--keep-inputs", "numbers", "--keep-inputs", "done"]
    with opened_after(2, gate, cuts, "trips"):
        assert main(["run", *flow, *kept, "--snapshots", str(cuts), "--kill", "head@epoch=3"]) == 0
    capsys.readouterr()
    store = CutStore(str(cuts), "trips")
    first, last = [entry for entry in store.chain() if isinstance(entry, AttemptStart)]
    restored = last.restored
    assert (first.restored, restored is not None) == (None, True)

    from_cut = ["--epoch", str(restored), "--operator"]
    survived = replayed(capsys, cuts, *from_cut, "grow")
    assert (survived["attempt"], survived["complete"]) == (last.attempt, True)
    assert survived["sent"] > 100
    # It uses a constant of the flow.
    limited = replayed(capsys, cuts, *from_cut, "enough")
    assert limited["sent"] > 100
    killed = replayed(capsys, cuts, *from_cut, "grow", "--attempt", str(first.attempt))
    assert not killed["complete"]
    read = replayed(capsys, cuts, *from_cut, "numbers")
    assert read["sent"] > 50
    written = replayed(capsys, cuts, *from_cut, "done")
    assert written["records"] == written["sent"] > 50
    from_start = replayed(capsys, cuts, "--epoch", "0", "--operator", "grow")
    assert from_start["attempt"] == first.attempt

    for epoch in store.cuts():
        store.drop(Epoch(epoch))
    assert list(Path(store.path).rglob("*.piece")) == []

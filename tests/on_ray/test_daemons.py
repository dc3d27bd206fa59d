"""A cluster of several daemons: what travels between them, and what becomes of a run when one dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.on_ray.drivers import driver, next_line


@pytest.mark.slow
def test_a_run_waits_for_a_daemon_and_survives_the_death_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Actors are on several, so what they send each other travels over TCP, under the keys of the attempt.

    One that joins while actors wait for it makes several of one.
    """
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with driver("tests.on_ray.daemons", str(tmp_path), address=None) as process:
        said = next_line(process)
        assert process.wait() == 0
    assert "needs a machine with 1 late" in said["waited_for"]
    assert said["is_exact_late"] and said["restores_late"] == 0
    assert said["is_exact"]
    assert said["daemons"] >= 2
    assert said["hit"], "actors were on the daemon that died"
    # At first Ray places actors on the daemon that died, for it does not know yet: those are replaced together.
    assert 1 <= len(said["restores"]) <= 2
    assert said["restores"][0] is not None

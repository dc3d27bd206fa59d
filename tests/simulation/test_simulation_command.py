"""`python -m proof`: one line of JSON at the end, and an exit code that means it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backedge.engine.simulation.breaks import BREAKS
from proof.__main__ import main


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.slow
def test_run_counts_what_took_part_and_exits_with_0(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--seeds", "4", "--crashes", "3"]) == 0
    result = last_line(capsys)
    assert result["schedules"] == 4
    assert result["violations"] == 0
    assert {"cuts", "cuts_with_log", "restores", "restores_with_log", "overlapping", "rescaled"} <= result.keys()
    assert {"cuts_between_rounds", "full_channels", "taken_together", "spilled", "split_batches"} <= result.keys()


@pytest.mark.slow
def test_a_broken_rule_exits_with_1_and_names_the_seed_of_the_shortest_story(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--break", "duplicate-barrier", "--seeds", "13"]) == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out.splitlines()[-1])
    assert result["violations"] > 0
    assert f"--seed {result['shortest']['seed']} --crashes 3 --break duplicate-barrier" in captured.err


def test_one_seed_tells_its_story(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--seed", "5"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["seed"] == 5
    assert "receive" in captured.err


def test_the_rules_that_can_be_broken_are_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "--list-breaks"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(BREAKS)


@pytest.mark.parametrize(
    "arguments", [["run", "--seeds", "0"], ["run", "--seeds", "many"], ["run", "--break", "none"], []]
)
def test_a_wrong_call_is_one_clear_line_and_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("python -m proof")

"""`make proof`: the figures are written only if everything is as it must be."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.simulation.breaks import BREAKS
from backedge.engine.simulation.breaks.break_parts import Break
from proof import broken_rules, evidence
from proof.__main__ import main
from proof.evidence import BEGIN, END, Evidence, publish
from proof.explorer import Exploration
from proof.runner import run_seeds
from proof.walks import names

OLD = f"# Evidence\n\n{BEGIN}figures of another day\n{END}\nand more\n"
SURVIVED = {"number": "1", "fault": "a death", "happened": True, "survived": True}
FAULT = {**SURVIVED, "proof": {"happened": {"deaths": 2}, "survived": {"records": 300}}}
WALKED = Exploration("nested loops", states=10, transitions=20, crash_points=7, cuts=3, ends=1, complete=True)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "evidence.md"
    page.write_text(OLD)
    return page


@pytest.fixture(scope="module")
def ran() -> Evidence:
    seeds = range(3)
    return Evidence(seeds, None, run_seeds(seeds, 3), {"nested loops": WALKED}, {"no-loop-log": "seed 0"}, [FAULT])


@pytest.fixture
def clean(ran: Evidence) -> Evidence:
    return deepcopy(ran)


def test_figures_take_the_place_of_the_former_ones(clean: Evidence, page: Path):
    assert publish(clean, page) == 0
    written = page.read_text()
    assert written.startswith(f"# Evidence\n\n{BEGIN}Written on ") and written.endswith(f"{END}\nand more\n")
    assert "another day" not in written
    for said in ("| 3 (0 to 2) |", "| 1 of 1 |", "| nested loops |", "`no-loop-log` by seed 0", "| 2 deaths | 300 rec"):
        assert said in written
    said = " ".join(written.split())
    assert all(f"*{name}*" in said for name in evidence.LONG), "what was not walked is named"


def test_the_page_has_a_place_for_figures_and_names_no_graph_that_is_gone():
    assert evidence.PAGE.read_text().partition(BEGIN)[2].partition(END)[1] == END
    assert set(evidence.LONG) <= set(names())


def test_a_page_without_a_place_is_left_as_it_is(clean: Evidence, page: Path, capsys: pytest.CaptureFixture[str]):
    page.write_text("# Evidence\n")
    assert publish(clean, page) == 1
    assert "no place for figures" in capsys.readouterr().err
    assert page.read_text() == "# Evidence\n"


def plant(name: str, found: Evidence) -> None:
    """Something that must not be."""
    if name == "a violation of a schedule":
        found.schedules = run_seeds(range(3), 3, "no-loop-log")
    elif name == "a violation in a walk":
        found.explored["nested loops"].violations.append("nested loops: a record is in two places")
    elif name == "a walk that was cut short":
        found.explored["nested loops"].complete = False
    elif name == "a break that nothing finds":
        found.breaks["no-loop-log"] = None
    elif name == "a planted break that no seed shows":
        found.rule = "later-error-settles-unknown"
    elif name == "a fault that did not happen":
        found.faults[0] |= {"happened": False, "survived": False}
    else:
        found.faults[0]["survived"] = False


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        ("a violation of a schedule", "--crashes 5\n"),
        ("a violation in a walk", "two places"),
        ("a walk that was cut short", "nested loops: not every schedule"),
        ("a break that nothing finds", "no-loop-log: nothing finds it"),
        ("a planted break that no seed shows", "later-error-settles-unknown was planted"),
        ("a fault that did not happen", "fault 1 (a death) did not happen"),
        ("a fault that was not survived", "fault 1 (a death) was not survived"),
    ],
)
def test_the_page_stays_if_something_is_wrong(
    planted: str, told: str, clean: Evidence, page: Path, capsys: pytest.CaptureFixture[str]
):
    plant(planted, clean)
    assert publish(clean, page) == 1
    assert told in capsys.readouterr().err
    assert page.read_text() == OLD


def test_a_planted_break_fails_the_command(page: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    monkeypatch.setattr(evidence, "PAGE", page)
    monkeypatch.setattr(evidence, "SEEDS", 4)
    assert main(["evidence", "--break", "duplicate-barrier"]) == 1
    assert "--break duplicate-barrier" in capsys.readouterr().err
    assert page.read_text() == OLD


@pytest.mark.slow
def test_a_break_that_breaks_nothing_is_not_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(BREAKS, "harmless", Break("nothing is broken"))
    monkeypatch.setattr(broken_rules, "SEEDS", range(2))
    assert broken_rules.how_found("harmless") is None
    assert broken_rules.how_found("no-loop-log") is not None


def test_the_report_of_faults_is_read_line_by_line(tmp_path: Path):
    file = tmp_path / "faults.jsonl"
    file.write_text(f"{json.dumps(FAULT)}\n" * 2)
    assert evidence.reported(file) == [FAULT, FAULT]
    assert evidence.reported(None) == []

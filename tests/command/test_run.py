"""`backedge run` and `backedge snapshots` on a local Ray, called as the entry point calls them."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backedge.command import main
from tests.gates import Gate, opened_after

pytestmark = pytest.mark.usefixtures("local_ray")

MODULE = """
from backedge import Collect, Flow, Generate, Items, JsonLines, Print, SqliteTable
from tests.gates import Gate, Gated


def flow(size=100, gate=None):
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    source = Generate(lambda n: n + 1, count=size)
    numbers = flow.read(source if gate is None else Gated(source, Gate(gate), size // 2), name="numbers")
    odd, even = numbers.merge(again).key_by(lambda n: n).split(lambda n: n % 2 == 1, name="odd")
    again.feed(even.key_by(lambda n: n).stateful_map(lambda seen, n: (seen + 1, n // 2), initial=0, name="half"))
    odd.write(Collect(), name="done")
    return flow


def printing():
    flow = Flow("printing")
    flow.read(Items(["a", "b"])).write(Print("said "), name="lines")
    return flow


def failing():
    flow = Flow("failing")
    flow.read(Items([1, 0])).map(lambda n: 1 / n, name="inverse").write(Collect(), name="done")
    return flow


def copying(path, output="copies"):
    flow = Flow("copying")
    flow.read(JsonLines(path), name="before").write(JsonLines(output), name="after")
    return flow


def filling():
    flow = Flow("filling")
    flow.read(JsonLines("in.jsonl"), name="before").write(SqliteTable("n.db", "numbers"), name="filled")
    return flow
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "flows_to_run.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    sys.modules.pop("flows_to_run", None)


def summary(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The last line of what was printed."""
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["run", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_a_run_with_a_kill_says_in_its_last_line_what_came_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """The run ends when it has been restored."""
    gate = Gate(tmp_path / "gate")
    words = ["--kill", "head@epoch=2", "--every", "0.3", "--set", f"gate={gate}", "--snapshots", "cuts"]
    with opened_after(2, gate, tmp_path / "cuts", "halving"):
        assert main(["run", "flows_to_run:flow", *words, "--json", "--json-out", "results/run.json"]) == 0
    said = summary(capsys)
    assert (said["state"], said["kills"], said["restores"], said["missed_faults"]) == ("finished", 1, 1, [])
    assert said["outputs"] == {"done": 100}
    assert min(said["records"], said["hops"], said["snapshots"], said["seconds"]) > 0
    assert json.loads((tmp_path / "results" / "run.json").read_text()) == said


def test_a_planned_fault_that_did_not_happen_is_a_failure(capsys: pytest.CaptureFixture[str]):
    words = ["--set", "size=3", "--kill", "head@epoch=1000", "--json"]
    assert main(["run", "flows_to_run:flow", *words]) == 1
    said = summary(capsys)
    assert (said["state"], said["missed_faults"]) == ("finished", ["head@epoch=1000"])
    assert "head@epoch=1000" in said["error"]


def test_a_fault_of_the_user_fails_the_run_with_operator_and_record(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "flows_to_run:failing", "--json"]) == 3
    said = summary(capsys)
    assert said["state"] == "failed"
    assert "operator 'inverse' raised ZeroDivisionError" in said["error"]


def test_what_is_printed_comes_before_the_summary(capsys: pytest.CaptureFixture[str]):
    assert main(["run", "flows_to_run:printing"]) == 0
    *printed, told = capsys.readouterr().out.splitlines()
    assert printed == ["said a", "said b"]
    assert told.startswith("printing: finished in ")


def test_the_summary_says_where_sinks_of_files_and_tables_write(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "in.jsonl").write_text('{"n": 1}\n')
    words = ["run", "flows_to_run:copying", "--set", "path=in.jsonl", "--set"]
    assert main([*words, "output=copies"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  after: files in {tmp_path}/copies"
    assert main([*words, "output=other", "--json"]) == 0
    assert summary(capsys)["files"] == {"after": f"{tmp_path}/other"}
    with closing(sqlite3.connect(tmp_path / "n.db")) as database, database:
        database.execute("CREATE TABLE numbers (n integer)")
    table = f"'numbers' of {tmp_path}/n.db"
    assert main(["run", "flows_to_run:filling"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  filled: rows of table {table}"
    assert main(["run", "flows_to_run:filling", "--json"]) == 0
    assert summary(capsys)["tables"] == {"filled": table}


def test_what_cannot_be_read_written_or_killed_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    (tmp_path / "in.jsonl").write_text("1\n")
    for named, *words in (
        ("nothing.jsonl", "copying", "--set", "path=nothing.jsonl"),
        ("sink 'after'", "copying", "--set", "path=in.jsonl", "--set", "output=in.jsonl/copies"),
        (f"{tmp_path}/in.jsonl", "flow", "--snapshots", "in.jsonl/cuts"),
        ("--kill nobody@epoch=1: ", "flow", "--kill", "nobody@epoch=1"),
    ):
        assert named in refusal(capsys, f"flows_to_run:{words[0]}", *words[1:])


def test_cuts_are_listed_shown_and_gone_on_from(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    run = ["run", "flows_to_run:flow", "--snapshots", "cuts", "--json"]
    assert main(run) == 0
    epoch = summary(capsys)["last_epoch"]
    assert "run of 'halving'" in refusal(capsys, *run[1:])
    assert "epoch 4711 " in refusal(capsys, *run[1:], "--resume", "4711")
    assert main([*run, "--resume", "latest"]) == 0
    printed = capsys.readouterr()
    assert f"has finished already, with cut {epoch}: nothing is left to do" in printed.err
    resumed = json.loads(printed.out)
    assert resumed["records"] == 0
    assert (resumed["state"], resumed["restores"], resumed["outputs"]) == ("finished", 1, {"done": 100})

    assert main(["snapshots", "list", "--snapshots", "cuts", "--json"]) == 0
    cuts = summary(capsys)["cuts"]
    assert all(cut["restorable"] and cut["job"] == "halving" for cut in cuts)
    assert cuts[-1]["epoch"] > epoch
    assert main(["snapshots", "list", "--snapshots", "cuts"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(cuts) + 1
    shown = ["snapshots", "show", str(cuts[-1]["epoch"]), "--snapshots", "cuts"]
    assert main([*shown, "--json"]) == 0
    tasks = summary(capsys)["of_tasks"]
    assert {task["task"] for task in tasks} == {"numbers/0", "odd/0", "half/0"}
    assert main(shown) == 0
    assert "not restorable" not in capsys.readouterr().out

    file = next(file for task in tasks for file in task["files"])
    path = tmp_path / "cuts" / "halving" / file["name"]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert main(shown) == 1
    assert "not restorable: " in capsys.readouterr().out
    path.unlink()
    assert main(["snapshots", "list", "--snapshots", "cuts", "--json"]) == 0
    assert [cut["restorable"] for cut in summary(capsys)["cuts"]].count(False) >= 1

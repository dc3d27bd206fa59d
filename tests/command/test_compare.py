"""`backedge compare`, called as the entry point calls it, on a module of the user's."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from backedge import compare_command
from backedge.cases import case_of
from backedge.command import main
from backedge.compare_command import planned_kills
from backedge.engine.on_ray.planned_faults import Kill, role_of
from backedge.engine.on_ray.run_options import RunOptions
from backedge.flows import WrongCallError
from backedge.graphs.expansion import expand
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.cut_store import CutStore
from backedge.trials import Trial
from examples.cyclic import transfers
from tests.gates import Gate, opened_after
from tests.stores.snapshots import begin

CASE = """
import time

from backedge import Flow, JsonLines, Parquet
from tests.gates import Gate

SIZE = 200
SINK = "halved"
KEYS = ("start",)
STUCK = 64


def prepare(spark, inputs, size):
    spark.range(1, size + 1).withColumnRenamed("id", "start").write.parquet(f"{inputs}/numbers")


def flow(inputs, output, size):
    gate = Gate(f"{output}.gate")
    if output.endswith("clean"):
        gate.open()

    def halve(number):
        if number["start"] == STUCK and not gate.is_open:
            time.sleep(0.01)  # it goes round until the gate is open, and takes turns with the others
            return number
        return {**number, "now": number["now"] // 2, "times": number["times"] + 1}

    flow = Flow("halving")
    numbers = flow.read(Parquet(f"{inputs}/numbers"), name="numbers")
    again = flow.loop("again", of=dict)
    begun = numbers.map(lambda row: {"start": row["start"], "now": row["start"], "times": 0}, name="begun")
    even, odd = begun.merge(again).key_by("start").split(lambda number: number["now"] % 2 == 0, name="even")
    again.feed(even.key_by("start").map(halve, name="half"))
    odd.write(JsonLines(f"{output}/halved"), name="halved")
    return flow


def reference(spark, inputs):
    lowest = "start & -start"
    numbers = spark.read.parquet(f"{inputs}/numbers")
    return numbers.selectExpr("start", f"start div ({lowest}) AS now", f"CAST(log2({lowest}) AS INT) AS times")
"""

PLAIN = """
from backedge import Collect, Flow, Range

SIZE = 5
SINK = "all"
KEYS = ("n",)


def flow():
    flow = Flow("plain")
    flow.read(Range(5)).map(lambda n: {"n": n}, name="record").write(Collect(), name="all")
    return flow


def reference(spark):
    return spark.range(5).toDF("n")
"""

ODD = PLAIN.replace('Flow("plain")', 'Flow("_plain~")')
RAISING = PLAIN.replace('spark.range(5).toDF("n")', '{}["n"]')
MISTAKEN = PLAIN.replace("SIZE = 5", "SIZE, TOLERANCES = 5, 1e-9")
BLUNT = PLAIN.replace('KEYS = ("n",)', 'KEYS, TOLERANCES, IN_LOOP = (), {"n": 9}, False')
INCOMPLETE = "def flow():\n    pass\n"


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    texts = {
        "case_to_run": CASE,
        "plain_case": PLAIN,
        "blunt_case": BLUNT,
        "odd_case": ODD,
        "raising_case": RAISING,
        "wrong_case": MISTAKEN,
        "no_case": INCOMPLETE,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    for name in texts:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere"], r"module 'nowhere'"),
        (["no_case"], r"\bno_case\b.*\breference\(\)"),
        (["plain_case.py", "--rounds", "3"], r"flow\(\).*\bplain_case\b.*\brounds\b"),
        (["plain_case:flow", "--rounds", "3"], r"flow\(\).*\bplain_case\b.*\brounds\b"),
        (["wrong_case"], r"TOLERANCES of wrong_case is 1e-09: give one such as"),
        (["plain_case:orders"], r"'plain_case:orders'.* as a whole.*: write plain_case$"),
    ],
)
def test_a_wrong_call_is_refused_in_a_line(capsys: pytest.CaptureFixture[str], words: list[str], named: str):
    assert main(["compare", *words]) == 2
    said = capsys.readouterr()
    assert re.search(named, said.err), said.err
    assert (said.out, said.err.count("\n")) == ("", 1)


def test_a_seed_plans_kills_within_what_the_clean_run_did_and_a_loop_first():
    deployment = expand(transfers.flow().plan(), parallelism=2)
    by_task = {str(name): 1_000 for name in deployment.tasks}
    for in_loop in (True, False):
        planned = planned_kills(deployment, 5, 7, by_task=by_task, in_loop=in_loop)
        assert planned == planned_kills(deployment, 5, 7, by_task=by_task, in_loop=in_loop)
        kills = [Kill.parse(kill) for kill in planned]
        tasks = {str(name): task for name, task in deployment.tasks.items()}
        assert role_of(tasks[kills[0].who]) in ("head", "body")
        assert (kills[0].when, kills[0].amount == 1) == (("loop", True) if in_loop else ("records", False))
        assert "source" not in {role_of(tasks[kill.who]) for kill in kills}
        counted = [kill.amount for kill in kills if kill.when == "records"]
        assert counted == sorted(counted)
        assert counted[0] >= 200 and counted[-1] <= 700
    others = [planned_kills(deployment, 5, seed, by_task=by_task, in_loop=True) for seed in range(5)]
    assert any(planned != others[0] for planned in others)


def test_no_kill_waits_for_a_task_that_had_nothing_to_do():
    deployment = expand(transfers.flow().plan(), parallelism=2)
    by_task = {str(name): 0 if name.index else 10 for name in deployment.tasks}
    planned = [planned_kills(deployment, 4, seed, by_task=by_task, in_loop=True) for seed in range(10)]
    assert not any("/1@" in kill for kills in planned for kill in kills)


def test_what_a_function_of_the_module_raises_is_told_in_a_line(tmp_path: Path):
    trial = Trial(case_of("raising_case"), str(tmp_path), size=None, rounds=None, options=RunOptions())
    trial.spark = None
    with pytest.raises(
        WrongCallError, match=r"^reference\(\) of raising_case raises KeyError: 'n', at raising_case\.py:"
    ):
        trial.reference()


def test_cuts_are_found_whatever_the_name_of_their_job(tmp_path: Path):
    begin(CutStore(str(tmp_path), "_plain~"))
    trial = Trial(case_of("odd_case"), str(tmp_path), size=None, rounds=None, options=RunOptions())
    trial.spark = None
    with pytest.raises(UnreadableError, match=r"job _plain~ .* has no complete cut"):
        trial.audit(str(tmp_path), "latest")


@pytest.mark.usefixtures("local_ray", "spark")
class TestOnRay:
    def test_a_case_of_the_users_is_run_killed_computed_audited_and_found_equal(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        """A number is in the loop until both kills have happened."""
        folder = tmp_path / "compared"
        folder.mkdir()
        monkeypatch.setattr(compare_command.tempfile, "TemporaryDirectory", lambda prefix: nullcontext(str(folder)))
        with opened_after(3, Gate(folder / "killed.gate"), folder / "killed-cuts", "halving"):
            assert main(["compare", "case_to_run", "--kills", "2", "--seed", "7", "--json"]) == 0
        said = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (said["equal"], said["rows"], said["differing"], said["failures"]) == (True, 200, 0, [])
        assert (said["kills_planned"], said["kills_happened"], said["audit"]) == (2, 2, "consistent")
        assert said["restores"] == 2
        assert said["in_loop_records"] > 0
        assert min(said["recovery_seconds"], said["spark_seconds"]) > 0

    def test_a_planted_error_kills_that_miss_and_loops_that_are_none_are_failures(
        self, capsys: pytest.CaptureFixture[str]
    ):
        assert main(["compare", "plain_case", "--kills", "1", "--plant-error"]) == 1
        said = capsys.readouterr().out
        assert re.search(r"plain_case.*\b5 rows, 2\b.*\bdiffer", said), said
        assert re.search(r"reference\b.*\b2 of 5 rows differ\b", said), said
        assert re.search(r"kill read-1/0@loop=1 did not happen", said), said

    def test_a_comparison_that_would_miss_a_wrong_row_fails(self, capsys: pytest.CaptureFixture[str]):
        assert main(["compare", "blunt_case", "--kills", "0"]) == 1
        (wrong,) = re.findall("WRONG: (.*)", capsys.readouterr().out)
        assert "one wrong row would not be found" in wrong

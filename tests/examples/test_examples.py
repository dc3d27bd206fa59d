"""What transfers, payments, counters and the demo say comes true: in the simulator, and on Ray with kills."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backedge import CutView, RunOptions, case_of, simulate
from backedge.trials import Trial
from examples.cyclic import command_line, counters, demo, payments, transfers
from tests.examples.killed import gated
from tests.gates import Gate, behind, opened_after

Record = dict[str, Any]


@pytest.mark.usefixtures("local_ray", "spark")
class TestOnRay:
    @pytest.mark.long  # the simulator shows it below
    def test_the_counters_agree_after_three_kills(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        flow, gate = counters.flow(), Gate(tmp_path / "gate")
        monkeypatch.setattr(counters, "flow", lambda: behind(flow, gate, counters.NUMBERS // 4))
        monkeypatch.setattr(counters.tempfile, "TemporaryDirectory", lambda prefix: nullcontext(str(tmp_path / "cuts")))
        with opened_after(4, gate, tmp_path / "cuts", "counters"):
            counters.main()
        said = capsys.readouterr().out
        assert "3 processes were killed" in said
        assert "all 97 counters are at zero" in said

    def test_the_demo_is_killed_twice_and_loses_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        monkeypatch.setattr(demo, "OPTIONS", replace(demo.OPTIONS, snapshots=tmp_path / "cuts"))
        with gated(payments, payments.SIZE // 2, 3, tmp_path / "cuts"):
            demo.show_with_log()
        said = capsys.readouterr().out
        assert said.count("got SIGKILL") == 2
        assert "audit of the last cut on disk: consistent" in said and "recovered: 0 of 600 rows differ" in said


class TestTheCommandLine:
    @pytest.mark.parametrize(
        ("words", "fault"),
        [
            (["--size", "many"], r"--size: 'many'"),
            (["--every", "0"], r"--every: '0'"),
            (["--resume", "first"], r"--resume: 'first'"),
            (["--what"], r"--what\b"),
        ],
    )
    def test_a_wrong_option_ends_with_2(self, capsys: pytest.CaptureFixture[str], words: list[str], fault: str):
        with pytest.raises(SystemExit) as ended:
            command_line.call(transfers, words)
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith("python -m examples.cyclic.transfers: ") and re.search(fault, said)

    def test_a_folder_that_holds_a_run_is_refused_before_its_input_is_replaced(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Any
    ):
        (tmp_path / "inputs").mkdir()
        assert command_line.call(transfers, ["--snapshots", str(tmp_path)]) == 2
        assert "holds a run already" in capsys.readouterr().err
        assert list((tmp_path / "inputs").iterdir()) == []


def the_money_is_there(cut: CutView) -> bool:
    accounts = cut.state("accounts")
    held = sum(balance for balance, _ in accounts.values())
    return held + sum(transfer["brings"] for transfer in cut.in_loop("arriving")) == len(accounts) * transfers.OPENING


@pytest.mark.slow
class TestWithSpark:
    def simulated(
        self, example: ModuleType, spark: Any, tmp_path: Any, source: str, path: str, **options: Any
    ) -> list[Record]:
        """What a run in the simulator with crashes gives, with input of Spark's."""
        example.prepare(spark, str(tmp_path), 8)
        records = [row.asDict(recursive=True) for row in spark.read.json(str(tmp_path / path)).collect()]
        assert len(records) == 8
        flow = example.flow(size=10**6)
        return simulate(flow, inputs={source: records}, seeds=range(3), **options).outputs[example.SINK]

    def test_transfers_book_what_spark_says_and_a_wrong_booking_is_found(self, spark: Any, tmp_path: Any):
        # In which order an account has its bookings depends on what arrives first: the money is there all the same.
        ignore = {transfers.SINK: ["number", "balance"]}
        unordered: Record = {"ignore": ignore, "invariant": the_money_is_there}
        booked = self.simulated(transfers, spark, tmp_path, "read", "orders", **unordered)
        reference = transfers.reference(spark, str(tmp_path))
        told = spark.createDataFrame(booked).select(reference.columns)
        assert told.exceptAll(reference).isEmpty() and reference.exceptAll(told).isEmpty()
        first, *others = booked
        for rows, broken in ((booked, False), ([*others, {**first, "balance": 0}], True), ([*booked, first], True)):
            wrong = transfers.promised(spark, str(tmp_path), spark.createDataFrame(rows))
            assert wrong.isEmpty() is not broken

    def test_payments_are_tried_as_often_as_spark_says(self, spark: Any, tmp_path: Any):
        settled = self.simulated(payments, spark, tmp_path, "arriving", payments.RAW)
        reference = payments.reference(spark, str(tmp_path))
        told = spark.createDataFrame(settled).select(reference.columns)
        assert told.exceptAll(reference).isEmpty() and reference.exceptAll(told).isEmpty()

    def test_the_data_of_the_demo_has_payments_that_go_round_and_some_that_are_given_up(self, spark: Any):
        refusals = [row["refusals"] for row in spark.read.json(str(payments.DATA / payments.RAW)).collect()]
        assert len(refusals) == payments.SIZE
        assert any(0 < count <= payments.ROUNDS_MAX for count in refusals)
        assert any(count > payments.ROUNDS_MAX for count in refusals)


def test_a_counter_that_disagrees_is_found():
    good = [{"counter": counter, "total": 0, "added": 2, "subtracted": 2} for counter in range(3)]
    counters.check(good, list(range(6)), 6, 3)
    for totals, gone in (
        ([{**good[0], "total": 1}, *good[1:]], list(range(6))),
        ([{**good[0], "subtracted": 1}, *good[1:]], list(range(6))),
        (good[1:], list(range(6))),
        (good, [0, *range(5)]),
    ):
        with pytest.raises(ValueError, match=r"counter|numbers"):
            counters.check(totals, gone, 6, 3)


@pytest.mark.slow
def test_counters_agree_in_the_simulator():
    outputs = simulate(counters.flow(numbers=8, counters=3, pause_ms=0), seeds=range(4)).outputs
    counters.check(outputs["totals"], outputs["gone"], 8, 3)


def test_a_run_that_is_not_there_and_a_folder_that_cannot_be_are_refused_before_spark_starts(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
):
    (tmp_path / "file").write_text("")
    for words, fault in (
        (["--snapshots", str(tmp_path / "none"), "--resume", "3"], "holds no run, and so no cut 3"),
        (["--snapshots", str(tmp_path / "file" / "cuts")], "cannot be made (Not a directory)"),
        (["--snapshots", "s3://bucket/cuts"], "is not a local folder"),
        (["--resume", "latest"], "name its folder with --snapshots"),
        (["--kill", "nobody@epoch=2"], "no task has that name or role"),
        (["--rounds", "3"], "takes no rounds"),
    ):
        assert command_line.call(transfers, words) == 2
        said = capsys.readouterr().err
        assert fault in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_input_that_an_interruption_left_unfinished_is_no_run_and_is_written_anew(tmp_path: Any):
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "orders").write_text("half of th")
    (tmp_path / "inputs" / ".unfinished").write_text("")
    trial = Trial(
        case_of("examples.cyclic.async_training"), str(tmp_path), size=None, rounds=None, options=RunOptions()
    )
    assert not trial.is_prepared
    trial.prepare()
    assert trial.is_prepared
    assert list((tmp_path / "inputs").iterdir()) == []

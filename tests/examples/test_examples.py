"""What the examples say comes true: on Ray with kills, and in the simulator under many schedules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backedge import simulate
from examples.cyclic import counters, payments, transfers
from tests.jobs.rays import local_ray


@pytest.fixture(scope="module")
def ray() -> Iterator[None]:
    with local_ray():
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("ray")
class TestOnRay:
    def test_the_money_is_all_there_after_two_kills(self, capsys: pytest.CaptureFixture[str]):
        transfers.main()
        said = capsys.readouterr().out
        assert "50 accounts, opened with 50,000, closed with 50,000" in said
        assert "2 processes were killed" in said
        assert "5,000 bookings, each once; the total is 50,000" in said

    def test_the_counters_agree_after_three_kills(self, capsys: pytest.CaptureFixture[str]):
        counters.main()
        said = capsys.readouterr().out
        assert "3 processes were killed" in said
        assert "all 97 counters are at zero" in said

    def test_the_demo_loses_nothing_and_names_what_is_lost_without_the_log(self, capsys: pytest.CaptureFixture[str]):
        payments.main()
        said = capsys.readouterr().out
        assert said.count("got SIGKILL") == 2
        assert "600, each once" in said
        assert "Nothing lost, nothing doubled." in said
        assert "Lost: P1" in said


def test_the_demo_finds_payments_that_are_lost_doubled_or_wrong():
    arrived = payments.read(payments.DATA)[:4]
    tried = [{**payment, "tries": payment["refusals"] + 1} for payment in arrived]
    assert payments.differences(arrived, tried, []) == []
    assert payments.differences(arrived, tried[1:], []) == [f"{arrived[0]['id']} is lost"]
    assert payments.differences(arrived, [*tried, tried[2]], []) == [f"{arrived[2]['id']} is doubled"]
    late = [*tried[:3], {**tried[3], "tries": 9}]
    assert "and is done at try 9" in payments.differences(arrived, late, [])[0]
    assert "and is given_up at try" in payments.differences(arrived, tried[1:], tried[:1])[0]


def test_a_run_without_the_log_names_what_was_in_the_loop():
    told = payments.run_without_log()
    assert "attempts/0 dies" in told.turns
    assert told.lacking
    assert not told.surplus


def test_a_booking_that_is_lost_or_doubled_is_found():
    booked = simulate(transfers.flow(transfers=3, accounts=4, pause_ms=0), seeds=range(1)).outputs["booked"]
    assert transfers.check(booked) == 4 * transfers.OPENING
    for wrong in (booked[1:], [*booked, booked[0]]):
        with pytest.raises(ValueError, match=r"account|accounts"):
            transfers.check(wrong)


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


def test_counters_agree_in_the_simulator():
    outputs = simulate(counters.flow(numbers=8, counters=3, pause_ms=0), seeds=range(10)).outputs
    counters.check(outputs["totals"], outputs["gone"], 8, 3)


def test_the_data_of_the_demo_has_payments_that_go_round_and_some_that_are_given_up():
    refusals = [payment["refusals"] for payment in payments.read(Path(payments.DATA))]
    assert len(refusals) == 600
    assert any(0 < count <= payments.ROUNDS_MAX for count in refusals)
    assert any(count > payments.ROUNDS_MAX for count in refusals)

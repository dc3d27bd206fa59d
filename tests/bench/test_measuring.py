"""The benchmarks measure what they say, in turns, and see what is too slow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from backedge.graphs.ids import Attempt, ChannelId
from backedge.recovery.protocol.effects import Effect
from backedge.recovery.protocol.messages import Data, Item
from backedge.recovery.protocol.task import TaskCore
from bench import core, schedules
from bench.__main__ import main
from bench.measuring import Limit, Report, Samples, interleaved


def report(*limits: Limit) -> Report:
    return Report("some", "us", 5, {"ours": Samples((2.0, 3.0))}, {"theirs": Samples((1.0, 1.0))}, {}, limits)


# -- the command -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: NAME"),
        (["cores"], "argument NAME: invalid choice: 'cores' (choose from 'core', 'loop'"),
        (["loop", "--peer", "no-such-file.py"], "python -m bench loop: --peer no-such-file.py: there is no such"),
        (["core", "--repeats", "3"], "a median of 3 says little, take at least 5"),
    ],
)
def test_a_wrong_call_says_what_is_right(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]):
    try:
        code: Any = main(arguments)
    except SystemExit as exit:
        code = exit.code
    assert code == 2
    assert complaint.replace("'", "") in capsys.readouterr().err.replace("'", "")


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_the_last_line_and_the_exit_code_say_whether_the_limits_hold(
    holds: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(core, "run", lambda options: report(Limit("under 2 us", holds)))
    assert main(["core"]) == code
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["ok"] is holds
    assert told["missed"] == ([] if holds else ["under 2 us"])
    assert told["figures"] == {"ours": 2.5} and told["peers"] == {"theirs": 1.0}
    assert told["spread"] == {"ours": 0.4, "theirs": 0.0}


# -- measuring ---------------------------------------------------------------------------------------------------


def test_cases_take_turns_and_the_cold_turn_does_not_count():
    calls: list[str] = []

    def case(name: str, figures: Sequence[float]) -> Any:
        left = iter(figures)
        return lambda: (calls.append(name), next(left))[1]

    found = interleaved({"a": case("a", [9, 1, 2]), "b": case("b", [9, 4, 4])}, turns=2)
    assert calls == ["a", "b"] * 3
    assert found == {"a": Samples((1, 2)), "b": Samples((4, 4))}


def test_a_ratio_is_taken_turn_by_turn():
    """A turn in which the machine is ten times slower changes nothing."""
    assert Samples((2.0, 20.0, 2.0)).over(Samples((1.0, 10.0, 1.0))) == 2.0


# -- what passes a batch on --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", core.KINDS)
def test_every_batch_is_sent_received_and_processed(kind: str):
    passage = core.Passage(kind, "slice")
    assert passage.pass_on(b"a batch", 100) > 0
    inbox = passage.receiver.inboxes[passage.channel]
    assert passage.sender.outlets[passage.channel].sent == inbox.received == inbox.consumed == 100
    assert not inbox.queue
    assert inbox.is_back == (kind in ("back edge", "open log"))
    assert (passage.receiver.rounds is not None) == (kind == "round")


class Wasteful(TaskCore):
    """Does what no core may: it looks at every record, and takes its time."""

    def receive(self, channel: ChannelId, attempt: Attempt, item: Item) -> Sequence[Effect]:
        if isinstance(item, Data) and not isinstance(item.payload, bytes):
            self.records = sum(1 for _ in item.payload.records)
        self.wasted = sum(range(2_000))
        return super().receive(channel, attempt, item)


@pytest.mark.slow
def test_work_for_every_record_a_slow_core_and_a_slow_simulator_miss_their_limits():
    found = interleaved(core.cases(0, Wasteful, batches=200) | {schedules.STEP: lambda: 1e6}, turns=5)
    claims = [limit.claim for limit in core.limits(found) if not limit.holds]
    for kind in (*core.KINDS, "across, digest aside"):
        assert any(claim.startswith(f"{kind}: ") and "a bare deque" in claim for claim in claims)
    assert any(claim.startswith("batch: ") and "with 1,000 records" in claim for claim in claims)
    assert any(claim.startswith("simulated step: ") for claim in claims)


# -- schedules ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_schedule_that_violates_the_protocol_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    run_case = schedules.run_case
    monkeypatch.setattr(schedules, "run_case", lambda *case: run_case(*case, rule="no-loop-log"))
    with pytest.raises(RuntimeError, match=r"small '\w+', seed \d+: "):
        schedules.run_schedules((schedules.SMALL, 0, 100))

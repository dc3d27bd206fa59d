"""Every schedule of calls whose answers are kept: each rule is necessary, and together they are enough."""

from __future__ import annotations

from typing import Any

import pytest

from backedge.engine.simulation.breaks.broken_answers import ANSWERS
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.answers import Equals, Known, Questions
from proof.explored_answers import ANSWER_WALKS, FAULTS, FORGOTTEN, Walk, explore_answers
from proof.explored_callers import Rules

KEPT = "answers that are kept"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        (KEPT, {"epochs": 1}),
        ("answers that are kept, back and forth", {"epochs": 1, "restarts": 2}),
        ("answers that are kept, another question", {"epochs": 1}),
        (FORGOTTEN, {"restarts": 1}),
    ],
)
def test_no_schedule_makes_a_finished_call_again_or_uses_an_answer_twice(name: str, bounds: dict[str, int]):
    """The beginning of each walk. `python -m proof explore` takes them to their ends."""
    found = explore_answers(name, bounds=bounds)
    assert found.complete
    assert found.violations == []
    assert found.ends > 0
    assert all(found.exercised.values())


FOUND: dict[str, Any] = {
    "answer-sent-too-early": (1, 1, 0),
    "outlived-call-forgotten": (1, 1, 0),
    "answer-read-twice": (1, 1, 0),
    "answer-shared": (1, 1, 0),
    "one-segment-read": (1, 1, 0),
    "segment-removed-too-early": (1, 1, 0),
    "spare-answer-not-captured": (2, 2, 0),
    "answer-not-captured": (2, 2, 0),
    "answer-of-a-cut-sent": (2, 2, 1),
    "segment-of-the-restored-cut": (2, 2, 2),
}
"""How many epochs, restarts and ways back to another cut it takes to find each break."""


@pytest.mark.slow
@pytest.mark.parametrize("rule", ANSWERS)
def test_a_broken_rule_of_answers_is_found_with_its_story(rule: str):
    found = explore_answers(KEPT, ANSWERS[rule].parts(), dict(zip(FAULTS, FOUND[rule], strict=True)))
    assert found.violations and " make 0" in found.violations[0]


class TrustsEarlierSegments(Questions):
    """What was read from any segment is sent, though a later cut would not read it."""

    def load(self, known: Known, segment: Epoch) -> bool:
        return super().load(known, max(segment, self.segment))


@pytest.mark.slow
def test_an_answer_that_was_written_late_and_that_a_later_cut_does_not_read_is_found():
    bounds = {"epochs": 2, "restarts": 3, "go_backs": 2}
    (violation,) = Walk(KEPT, bounds, Rules("a", questions=TrustsEarlierSegments)).run().violations
    assert "is lost late a-0 restores 1" in violation


class ForgetsGaps(Questions):
    """Numbers begin above those that were forgotten, also above one that is not taken."""

    def _forget(self, key: int, identity: str) -> None:
        self.first = max(self.first, *(number + 1 for number in self._equals(key, identity).beyond), 0)
        super()._forget(key, identity)


def is_sent(equals: Equals) -> bool:
    return not (equals.waiting or equals.answers)


@pytest.mark.slow
def test_a_question_that_is_forgotten_before_an_equal_one_is_answered_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Equals, "is_settled", is_sent)
    rules = Rules("aa", forgets=True, questions=ForgetsGaps)
    (violation,) = Walk(FORGOTTEN, ANSWER_WALKS[FORGOTTEN], rules).run().violations
    assert "which was answered" in violation

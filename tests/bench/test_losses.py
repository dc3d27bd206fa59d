"""The loss report counts what its model was asked, and starts programs again until they end."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import losses
from bench.losses import BEGIN, END, Call, Losses, Model, divide, progress, started
from bench.ours import BenchError

KILLS_S = [5.0, 8.0]
AGAIN = Call(9, 9.5)
SOME = Losses(21, 0, 0, 1_750, 1_800, 0, 50, 1.5, 21.25, 20)


def test_a_call_made_again_was_answered_if_the_conversation_had_gone_on():
    answered, running = Call(2, 3.9), Call(4)
    assert divide({(0, 0): [answered, AGAIN], (0, 1): [Call(4.95)]}, KILLS_S) == (1, 0)
    assert divide({(0, 0): [answered, AGAIN], (0, 1): [Call(9.6)]}, KILLS_S) == (0, 1)
    assert divide({(0, 0): [running, AGAIN], (0, 1): [Call(9.6)]}, KILLS_S) == (0, 1)
    assert divide({(0, 0): [answered], (0, 1): [Call(4.95)]}, KILLS_S) == (0, 0)


def test_the_last_call_was_answered_if_a_second_passed_without_a_kill():
    assert divide({(0, 0): [Call(2, 3.9), AGAIN]}, KILLS_S) == (1, 0)
    for late in (Call(4, 4.1), Call(4, 5.1), Call(4)):
        assert divide({(0, 0): [late, AGAIN]}, KILLS_S) == (0, 1)


def test_progress_is_a_question_that_was_never_asked_before():
    assert progress({(0, 0): [Call(1), Call(6)], (0, 1): [Call(7)]}, KILLS_S) == [2.0]


PROGRAM = """
import asyncio, pathlib, sys
from bench.peers.conversations import ask, given, tell
url, folder, conversations = given()
begun = pathlib.Path(folder, "begun")
if not begun.exists():
    begun.touch()
    sys.exit("the first time it fails")
asyncio.run(ask(url, 0, []))
tell([0, 0])
"""


@pytest.mark.slow
def test_a_program_that_fails_is_started_again_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = Model(seed=0)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(losses, "command", lambda system: [str(tmp_path / system)])
    with started("program.py", model, 1) as program:
        program.until(program.has_ended)
        assert program.ended() == [0, 0] and program.restarts == 1
    assert [call.answered_s is not None for call in model.calls[0, 0]] == [True]


def test_a_program_that_fails_again_and_again_is_reported_with_its_words(tmp_path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "program.py").write_text("raise SystemExit('no such model')")
    monkeypatch.setattr(losses, "command", lambda system: [str(tmp_path / system)])
    monkeypatch.setattr(losses, "RESTARTS_MAX", 1)
    with started("program.py", Model(seed=0), 1) as program, pytest.raises(BenchError, match="no such model"):
        program.until(program.has_ended)


def test_the_page_gets_a_row_for_each_system_and_keeps_its_prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = tmp_path / "losses.md"
    page.write_text(f"before\n\n{BEGIN}\nold\n\n{END}\nafter\n")
    monkeypatch.setattr(losses, "PAGE", page)
    losses.write_page({"backedge": SOME, "dbos": SOME._replace(lost=3)})
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old" not in text
    assert "| dbos | 21 | 3 |" in text and "| 21.2 |" in text
    losses.write_page({"backedge": SOME})
    assert "dbos" not in page.read_text()


@pytest.mark.long
@pytest.mark.parametrize("system", ["backedge", "by_hand"])
def test_a_killed_system_ends_all_conversations_once(system: str):
    found = losses.of_system(system, conversations=100, seed=0)
    assert found.kills and not found.lost and not found.ended_twice
    assert found.paid == found.needed + found.answered_again + found.running_again
    assert found.answered_again == 0 or system != "backedge"

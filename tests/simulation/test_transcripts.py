"""The transcripts are those that are kept, and each shows what it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.transcripts import SCRIPTS, transcript

KEPT = Path(__file__).parent / "transcripts"
SHOWN = {
    "takeover": ("chain 3 is not cut 2 of attempt 1", "chain 3: attempt 2 from cut 1"),
    "rescale": ("from cut 2, with 2 tasks of try", "try/1 is restored, with 1 logged batches"),
    "replaced_output": ("publishes done.0.attempt-1.epoch-2", "what was published after cut 1 is removed"),
    "overtaking": ("in flight: 1 of numbers/0 to try/0; in flight: 1 of try/0 to judge/0",),
    "deltas": ("cut 4 of attempt 1; state of try/0 in the files of 1, 2, 4", "attempt 2 from cut 4"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_transcript_is_as_it_was_read_last(name: str):
    """If the new one is right: python -m proof transcript NAME > tests/simulation/transcripts/NAME.txt"""
    told = transcript(name)
    assert told == (KEPT / f"{name}.txt").read_text()
    assert [words for words in SHOWN[name] if words not in told] == []
    assert told.endswith("the run is finished\n")


def test_every_kept_transcript_is_compared():
    assert {file.stem for file in KEPT.iterdir()} == set(SCRIPTS) == set(SHOWN)

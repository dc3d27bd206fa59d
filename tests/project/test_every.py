"""A case that fails fails its test, and is named; cases that would share what is of one alone are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.every import every


def test_the_case_that_fails_is_named_whatever_passes_before_it():
    @every("more", [0])
    @every(("one", "other"), [(1, 1), (1, 2), (3, 3)])
    def same(one: int, other: int, more: int):
        assert one == other + more

    with pytest.raises(AssertionError) as failed:
        same()
    assert failed.value.__notes__ == ["same: {'one': 1, 'other': 2}", "same: {'more': 0}"]


def test_cases_share_no_folder_and_there_is_one_at_least():
    def test(case: int, tmp_path: Path): ...

    for cases, told in (([1], "tmp_path"), ([], "no case")):
        with pytest.raises(TypeError, match=told):
            every("case", cases)(test if cases else lambda case: None)

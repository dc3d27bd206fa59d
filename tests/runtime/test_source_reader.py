"""What a source task makes of any source: splits one behind the other, others while one has nothing to read."""

from __future__ import annotations

from typing import Any

import pytest

from backedge import Generate, Items, Poll, Range, Source
from backedge.engine.io.files.file_errors import InputChangedError
from backedge.engine.io.files.pace import PacedReader
from backedge.engine.io.reader import SourceReader, positions_of
from backedge.graphs.task_errors import UserFunctionError


class Lines:
    """Lines of a dict; a line None stands for a moment at which there is nothing."""

    def __init__(self, lines: list[str | None], position: int) -> None:
        self._lines = lines
        self.position = position

    @property
    def is_done(self) -> bool:
        return self.position >= len(self._lines)

    def read(self, records_max: int) -> list[str]:
        found = self._lines[self.position : self.position + 1]
        self.position += len(found)
        return [line for line in found if line is not None]


class Book(Source[str]):
    def __init__(self, chapters: dict[str, list[str | None]]) -> None:
        self.chapters = chapters
        self.opened: list[str] = []

    def splits(self) -> list[str]:
        return list(self.chapters)

    def open_split(self, split: str, position: Any) -> Lines:
        self.opened.append(split)
        return Lines(self.chapters[split], position)


def test_splits_are_opened_one_behind_the_other_and_restored_ones_go_on_behind_their_positions():
    book = Book({"one": ["a", "b"], "two": ["c"]})
    reader = SourceReader("book", book, {"one": 0, "two": 0})
    assert [reader.read(1), list(book.opened)] == [["a"], ["one"]]
    assert [reader.read(1), reader.read(1), reader.exhausted] == [["b"], ["c"], True]
    assert reader.positions() == {"one": 2, "two": 1}
    restored = SourceReader("book", book, {"one": 1, "two": 1})
    assert [restored.read(9), restored.read(9), restored.exhausted] == [["b"], [], True]


def test_a_split_without_anything_to_read_at_the_moment_lets_the_others_go_first():
    reader = SourceReader("book", Book({"one": [None, "a"], "two": ["b"]}), {"one": 0, "two": 0})
    assert [reader.read(9), reader.read(9), reader.read(9), reader.exhausted] == [["b"], ["a"], [], True]


def test_an_idle_source_is_not_asked_again_at_once():
    now = [0.0]
    reader = PacedReader("book", Book({"one": [None, "a"]}), {"one": 0}, clock=lambda: now[0], idle_s=0.5)
    assert [reader.read(9), reader.read(9)] == [[], []]
    now[0] = 0.5
    assert reader.read(9) == ["a"]


def test_a_list_that_has_become_shorter_than_what_was_read_of_it_is_refused():
    """It was taken for read to its end, and the records behind that were lost."""
    shorter, *others = (SourceReader("numbers", Items(list(range(count))), {"1-of-2": 2}) for count in (3, 4, 9))
    assert [reader.read(9) for reader in others] == [[], [5, 7]]
    # Not before it reads: a task that has ended reads nothing more.
    with pytest.raises(InputChangedError, match="split '1-of-2' has 1 records, and 2 of it were read before"):
        shorter.read(9)


def test_numbers_that_end_before_what_was_read_are_read():
    """A number is the same record in a shorter source, so nothing is lost."""
    for source in (Range(3), Generate(str, count=3)):
        assert SourceReader("numbers", source, {"0-of-1": 7}).exhausted


def test_splits_are_dealt_in_turn_and_in_their_order():
    splits = ("a", "b", "c", "d", "e")
    dealt = [list(positions_of(Book({}), index, 2, splits)) for index in range(2)]
    assert dealt == [["a", "c", "e"], ["b", "d"]]


def test_records_are_copied_where_the_source_shares_them():
    class Own(Items[dict[str, int]]):
        shares_records = False

    record = {"n": 1}
    read = [SourceReader("given", of([record]), {"0-of-1": 0}).read(9) for of in (Items, Own)]
    assert [one is record for (one,) in read] == [False, True]


def test_a_polled_function_gets_the_position_that_it_returned_last():
    asked: list[Any] = []

    def ask(position: int) -> tuple[list[str], int] | None:
        asked.append(position)
        return {0: (["a", "b"], 2), 2: ([], 2), 3: None}.get(position)

    reader = SourceReader("ask", Poll(ask, start=0), {"polled": 0})
    assert [reader.read(1), reader.read(1), reader.positions()] == [["a", "b"], [], {"polled": 2}]
    restored = SourceReader("ask", Poll(ask, start=0), {"polled": 3})
    assert [restored.read(1), restored.exhausted, asked] == [[], True, [0, 2, 3]]


@pytest.mark.parametrize("wrong", [lambda position: [1, 2], lambda position: 1 / 0])
def test_a_polled_function_that_fails_is_blamed_with_its_position(wrong: Any):
    with pytest.raises(UserFunctionError, match=r"operator 'ask' raised .* in function\(7\)"):
        SourceReader("ask", Poll(wrong), {"polled": 7}).read(1)

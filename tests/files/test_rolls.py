"""Files of several cuts: exactly once, whatever dies, sleeps or gets no reply, and whatever is resumed.

In a folder and in an object store, which is in memory here; `tests/objects` does the same against servers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from backedge.engine.io.files.file_errors import OutputError, UnknownTransactionError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet
from backedge.engine.io.files.parquet_part import ParquetPart
from backedge.engine.io.files.rolls import PIECES_MAX, Rolls
from backedge.engine.io.files.staging import Staging
from backedge.engine.operators.services import close_writer
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.orders import Sweep
from tests.files.disks import Crash
from tests.files.opened import AT_ONCE, BIG, KINDS, RUN, Clock, files, ignore_records, swept_by, transaction, visible
from tests.files.rolled import Consumer, InFolder, InStore, OutputPlace, Task
from tests.files.stepped_objects import dies, fails


@pytest.fixture(params=["folder", "objects"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OutputPlace]:
    """Places, each of which is empty."""
    return (InFolder(tmp_path / str(n)) if request.param == "folder" else InStore() for n in count())


@pytest.fixture
def place(places: Iterator[OutputPlace]) -> OutputPlace:
    return next(places)


@pytest.fixture
def waiting(place: OutputPlace) -> Task:
    """A task that has written what its cuts 1 and 2 list, which waits."""
    task = Task(place.writer())
    task.write(1, 2)
    return task


def dying_at(monkeypatch: pytest.MonkeyPatch, call: Any, of: type, attempt: Callable[[], object]) -> None:
    """Have an attempt die where it would call this method."""

    def die(*arguments: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(of, call, die)
        attempt()


def ended(*committed: str) -> Any:
    """What is removed at the end of a run whose last cut lists these transactions, and which cannot be resumed."""
    nothing = frozenset[str]()
    return Sweep(Attempt(9), True, frozenset(), None, nothing, nothing, committed=frozenset(committed))


# -- when a file is published ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_transactions_of_several_cuts_become_one_file_in_their_order(place: OutputPlace, tmp_path: Path, kind: Any):
    task = Task(place.writer(kind))
    task.write(9, 10, 11)
    assert place.published == [] and task.listed == [transaction(n) for n in (9, 10, 11)]
    task.opened.close()
    assert place.published == [f"part-{RUN}.out.0.attempt-1.epoch-9{kind.ending}"]
    assert place.numbers(tmp_path, kind) == [9, 10, 11]
    assert place.staged == ["published", "rolls"]


def test_a_file_is_published_when_it_is_large_enough(place: OutputPlace, tmp_path: Path):
    Task(place.writer(roll_bytes=24, roll_s=None)).write(*range(1, 10))  # lines of 8 bytes
    assert [place.read(name).count(b"\n") for name in place.published] == [3, 3, 3]
    assert place.numbers(tmp_path) == list(range(1, 10))


def test_a_file_is_published_when_its_first_record_has_waited_long_enough(
    place: OutputPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock = Clock()
    monkeypatch.setattr("backedge.engine.io.files.writers.monotonic", clock)
    task = Task(place.writer(roll_bytes=None, roll_s=60))
    clock.now_s = 100
    task.write(1)
    clock.now_s = 159
    task.write(2)
    assert place.published == []
    clock.now_s = 160
    task.commit()  # a cut without new records lists those that wait
    assert place.numbers(tmp_path) == [1, 2] and task.listed == []
    task.write(3)
    assert place.numbers(tmp_path) == [1, 2]


def test_a_cut_lists_a_limited_number_of_waiting_transactions(place: OutputPlace):
    task = Task(place.writer())
    task.write(*range(1, PIECES_MAX))
    assert len(task.listed) == PIECES_MAX - 1 and place.published == []
    task.write(PIECES_MAX)
    assert task.listed == [] and len(place.published) == 1


def test_without_limits_each_cut_has_its_file_at_once(place: OutputPlace):
    task = Task(place.writer(**AT_ONCE))
    task.write(1, 2)
    assert len(place.published) == 2 and task.listed == []
    assert place.staged == ["published", "published", "rolls", "rolls"]


@pytest.mark.parametrize("limits", [{"roll_bytes": 0}, {"roll_bytes": 1.5}, {"roll_s": 0}, {"roll_s": float("nan")}])
def test_limits_that_make_no_sense_are_refused(limits: dict[str, Any]):
    with pytest.raises(BadOptionError, match=next(iter(limits))):
        JsonLines("out", **limits)


# -- what a file holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [CSV, Parquet])
def test_records_with_other_columns_go_into_another_file(place: OutputPlace, kind: Any):
    task = Task(place.writer(kind))
    task.write(1, 2)
    task.write(3, more="x")
    task.write(4)
    task.opened.close()
    assert [name.split(".epoch-")[1] for name in place.published] == [f"{n}{kind.ending}" for n in (1, 3, 4)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_comes_in_the_middle_of_a_cut_is_one_of_all_its_records(
    place: OutputPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
):
    """CSV and Parquet write the file of a cut again."""
    monkeypatch.setattr(ParquetPart.__init__, "__defaults__", (1,))  # rows of a row group
    opened = place.writer(kind)
    opened.write([{"n": 1}])
    task = Task(opened)
    task.write(2, more="x")
    opened.close()
    assert place.numbers(tmp_path, kind) == [1, 2]


def test_a_csv_file_has_one_header_even_one_with_line_ends(place: OutputPlace):
    task = Task(place.writer(CSV))
    task.write(1, 2, **{'a "long"\nname': "x"})
    task.opened.close()
    (name,) = place.published
    assert place.read(name) == b'n,"a ""long""\nname"\n1,x\n2,x\n'


def test_the_rows_of_a_parquet_file_share_a_row_group(tmp_path: Path):
    opened = Task(files(tmp_path, kind=Parquet))
    opened.write(*range(1, 20))
    opened.opened.close()
    (name,) = visible(tmp_path)
    assert pq.ParquetFile(tmp_path / name).num_row_groups == 1


# -- who publishes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [BIG, AT_ONCE], ids=["rolls", "at once"])
def test_the_next_attempt_publishes_at_once_what_its_cut_lists(
    place: OutputPlace, waiting: Task, tmp_path: Path, limits: dict[str, Any]
):
    new = Task(place.writer(attempt=2, index=5, **limits), waiting.listed, 2)
    assert place.numbers(tmp_path) == [1, 2] and new.listed == []
    assert len(place.published) == (1 if limits is BIG else 2)
    new.write(3)
    new.opened.close()
    assert place.numbers(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize("limits", [BIG, AT_ONCE], ids=["rolls", "at once"])
@pytest.mark.parametrize(("former", "now"), [(JsonLines, Parquet), (Parquet, CSV), (CSV, JsonLines)])
def test_what_waits_in_a_former_format_is_published_in_that_format(
    place: OutputPlace, tmp_path: Path, former: Any, now: Any, limits: dict[str, Any]
):
    old = Task(place.writer(former))
    old.write(1, 2)
    Task(place.writer(now, 2, **limits), old.listed)
    firsts = [1] if limits is BIG else [1, 2]
    assert place.published == [f"part-{RUN}.{transaction(n)}{former.ending}" for n in firsts]
    assert place.numbers(tmp_path, former) == [1, 2]


def test_a_removal_during_the_run_leaves_what_waits_alone(place: OutputPlace, waiting: Task, tmp_path: Path):
    place.roll_back(9, swept_by(9, waiting.listed))
    waiting.write(3)
    waiting.opened.close()
    assert place.numbers(tmp_path) == [1, 2, 3]


def test_the_end_of_a_run_publishes_what_dead_tasks_have_left_and_removes_the_staging(
    place: OutputPlace, waiting: Task, tmp_path: Path
):
    Task(place.writer(index=1))
    place.roll_back(1, ended(*waiting.listed, transaction(8, name="another")))
    assert place.numbers(tmp_path) == [1, 2] and place.staged == []


def test_the_end_of_a_run_that_cannot_publish_says_what_waits_where(place: OutputPlace, waiting: Task):
    failing = place.process(3, fails)
    with pytest.raises(OutputError, match=r"'out'.*_staging/job/out.*resume"):
        place.roll_back(1, ended(*waiting.listed), failing)
    assert failing.happened


def test_a_lost_piece_is_an_error_that_names_it(place: OutputPlace, waiting: Task):
    place.remove(f"_staging/job/out/prepared/{transaction(2)}.jsonl")
    with pytest.raises(UnknownTransactionError, match=r"'out'.*epoch-1"):
        Task(place.writer(attempt=2), waiting.listed)


def test_what_a_record_names_and_is_lost_is_an_error_and_not_taken_for_published(
    place: OutputPlace, waiting: Task, monkeypatch: pytest.MonkeyPatch
):
    dying_at(monkeypatch, "_show", Rolls, lambda: Task(place.writer(attempt=2), waiting.listed, 2))
    place.remove(next(name for name in place.names() if "/joined/" in name))
    with pytest.raises(UnknownTransactionError, match=r"'out'.*epoch-1"):
        Task(place.writer(attempt=3), waiting.listed, 3)


# -- one roll, decided by any attempt ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [2, 3])
def test_attempts_that_list_more_or_fewer_pieces_publish_the_same_rolls(place: OutputPlace, tmp_path: Path, first: int):
    """A run goes back to the cut that lists 1 and 2; the latest lists 3, too, and must be published first."""
    old = Task(place.writer())
    lists = [old.cut(epoch) for epoch in (1, 2, 3)]
    for attempt, listed in enumerate((first, 5 - first, 3), 2):
        Task(place.writer(attempt=attempt), lists[listed - 1], attempt)
    old.commit()
    old.opened.close()
    assert place.numbers(tmp_path) == [1, 2, 3]
    assert len(place.published) == (2 if first == 2 else 1)


@pytest.mark.parametrize("is_planted", [False, True])
def test_an_attempt_that_died_before_its_note_has_decided_for_the_next_and_without_its_record_that_is_found(
    place: OutputPlace, waiting: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planted: bool
):
    """The second attempt has one piece more, so without the record it puts other pieces under the same name."""
    older, latest = list(waiting.listed), waiting.cut(3)
    dying_at(monkeypatch, "note", Staging, lambda: Task(place.writer(attempt=2), older, 2))
    assert place.published and "published" not in place.staged
    if is_planted:
        ignore_records(monkeypatch)
        with pytest.raises(OutputError, match="epoch-1"):
            Task(place.writer(attempt=3), latest, 3)
    else:
        Task(place.writer(attempt=3), latest, 3)
        assert place.numbers(tmp_path) == [1, 2, 3]


def test_going_back_to_a_cut_whose_pieces_were_published_publishes_nothing_again(place: OutputPlace, tmp_path: Path):
    old = Task(place.writer())
    old.write(1)
    older = old.cut(2)
    old.commit()
    old.write(3)
    old.opened.close()
    found = place.published
    Task(place.writer(attempt=2), older, 2)
    assert place.published == found and place.numbers(tmp_path) == [1, 2, 3]


def test_another_file_is_never_replaced(place: OutputPlace, tmp_path: Path):
    name = f"part-{RUN}.{transaction(1)}.jsonl"
    place.write(name, b'{"n":7}\n')
    task = Task(place.writer())
    task.write(1, 2)
    with pytest.raises(OutputError, match=r"epoch-1.*remove"):
        task.opened.close()
    assert place.numbers(tmp_path) == [7]
    place.remove(name)
    Task(place.writer(attempt=2), task.listed, 2)
    assert place.numbers(tmp_path) == [1, 2]


@pytest.mark.parametrize("is_recorded", [False, True])
def test_what_joins_pieces_stays_while_a_record_may_name_it_and_goes_when_no_cut_lists_them(
    place: OutputPlace, waiting: Task, monkeypatch: pytest.MonkeyPatch, is_recorded: bool
):
    call, of = ("_show", Rolls) if is_recorded else ("record", Staging)
    dying_at(monkeypatch, call, of, lambda: Task(place.writer(attempt=2), waiting.listed, 2))
    place.roll_back(3, swept_by(3, waiting.listed))
    assert place.staged.count("joined") == 1
    Task(place.writer(attempt=3), waiting.listed, 3)
    place.roll_back(4, swept_by(4))
    assert place.staged == [] and len(place.published) == 1


# -- deaths, sleep and lost replies, at every step ---------------------------------------------------------------------


def run_to_the_end(place: OutputPlace, attempt: int, listed: list[str]) -> None:
    """The next attempt, which nothing disturbs: it restores the last cut, writes and takes another, and ends."""
    task = Task(place.writer(attempt=attempt), listed, attempt)
    task.write(attempt * 10)
    task.opened.close()


def disturbed(place: OutputPlace, process: Any, attempt: int, listed: list[str]) -> Iterator[list[str]]:
    """An attempt that restores a cut and takes two more. Yields what each complete cut lists."""
    opened = place.writer(attempt=attempt, process=process)
    try:
        task = Task(opened, listed, attempt)
        for epoch in (attempt * 10, attempt * 10 + 1):
            yield task.cut(epoch)
            task.commit()
        opened.close()
    except OSError:
        close_writer(opened)  # as the engine does where an attempt has failed
        raise


def run_disturbed(place: OutputPlace, process: Any, attempt: int, last: list[str], written: list[int]) -> None:
    """The same until it ends, dies or fails. `last` becomes what the last complete cut lists; `written` gets epochs."""
    for cut in disturbed(place, process, attempt, list(last)):
        if process.happened:
            return  # another attempt has the job by now, so this cut is never complete
        last[:] = cut
        written.append(int(cut[-1].rpartition("-")[2]))


def pairs(steps: int, seconds: int) -> Iterator[tuple[int, int]]:
    """Each step of one attempt with about `seconds` steps of another, which take turns."""
    stride = steps // seconds
    return ((step, second) for step in range(steps) for second in range(step % stride, steps, stride))


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("happens", [dies, fails])
def test_an_attempt_that_stops_at_any_step_loses_and_doubles_nothing(
    places: Iterator[OutputPlace], happens: Callable[[str], None], is_after: bool
):
    """Two attempts in a row stop at any of their steps. Between them the consumer takes what it may."""
    happened: list[str] = []
    kinds = next(places).kinds
    for place, (step, second) in zip(places, pairs(next(places).steps, 4), strict=False):
        consumer = Consumer(place)
        listed: list[str] = []
        wanted: list[int] = []
        for attempt, at in ((1, step), (2, second)):
            process = place.process(at, happens, is_after=is_after)
            with suppress(Crash, OSError):
                run_disturbed(place, process, attempt, listed, wanted)
            happened += process.happened
            consumer.take()
            place.roll_back(attempt + 1, swept_by(attempt + 1, listed))
        run_to_the_end(place, 3, listed)
        assert consumer.all() == sorted([*wanted, 30]), (step, second)
    assert kinds <= set(happened) and len(happened) > 120

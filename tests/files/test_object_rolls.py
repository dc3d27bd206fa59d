"""Objects of several cuts: exactly once, whatever dies, sleeps or gets no reply, and whatever is resumed.

The objects are in memory; `tests/objects` does the same against servers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from backedge.engine.io.files.file_errors import OutputError, UnknownTransactionError
from backedge.engine.io.files.file_formats import CSV, JsonLines, Parquet
from backedge.engine.io.files.object_output import ObjectOutput
from backedge.engine.io.files.object_rolls import PIECES_MAX
from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.engine.operators.services import close_writer
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.orders import Sweep
from tests.files.disks import Crash
from tests.files.opened import (
    AT_ONCE,
    BIG,
    KINDS,
    RUN,
    Clock,
    ignore_records,
    reader,
    rest,
    services,
    sink,
    transaction,
)
from tests.files.stepped_objects import SteppedObjects, dies, fails

WHERE = "s3://bucket/out"


def output(kind: Any, store: ObjectsInMemory, attempt: int = 1, index: int = 0, **limits: Any) -> ObjectOutput:
    description = kind(WHERE, **(limits or BIG))
    return ObjectOutput(description, services(attempt=Attempt(attempt)).place(sink(description), index), store)


def writer(kind: Any, store: ObjectsInMemory, attempt: int = 1, index: int = 0, **limits: Any) -> Any:
    types: dict[str, Any] = {}
    opened = output(kind, store, attempt, index, **limits)
    return opened.open_writer(lambda path: kind(WHERE).new_part(path, "out", types))


class Task:
    """A task of a sink: its writer, and the transactions that its cuts list, as `SinkOperator` keeps them."""

    def __init__(self, opened: Any, listed: Iterable[str] = (), attempt: int = 1) -> None:
        self.opened = opened
        self.listed = list(listed)
        self.attempt = attempt
        self.commit()

    def cut(self, epoch: int, **columns: Any) -> list[str]:
        """Write a record and take a cut. Returns what that lists."""
        self.opened.write([{"n": epoch, **columns}])
        assert self.opened.prepare(transaction(epoch, self.attempt))
        self.listed.append(transaction(epoch, self.attempt))
        return list(self.listed)

    def commit(self) -> None:
        """Commit all that is listed."""
        waiting = self.opened.commit_together(self.listed)
        self.listed = [name for name in self.listed if name in waiting]

    def write(self, *epochs: int, **columns: Any) -> None:
        for epoch in epochs:
            self.cut(epoch, **columns)
            self.commit()


def waiting(kind: Any = JsonLines) -> tuple[ObjectsInMemory, Task]:
    """A store in which what cuts 1 and 2 list waits, and the task that has written it."""
    store = ObjectsInMemory()
    task = Task(writer(kind, store))
    task.write(1, 2)
    return store, task


def published(store: ObjectsInMemory) -> list[str]:
    return sorted(name for name in store.list() if not name.startswith("_"))


def staged(store: ObjectsInMemory) -> list[str]:
    return sorted(name.split("/")[3] for name in store.list("_staging/job"))


def numbers(store: ObjectsInMemory, folder: Path, kind: Any = JsonLines) -> list[int]:
    """The published records, in the order of objects and lines."""
    found: list[int] = []
    for name in published(store):
        if kind is JsonLines:
            found += lines(store.read(name))
        else:
            (folder / name).write_bytes(store.read(name))
            found += [int(record["n"]) for record in rest(reader(kind(str(folder / name))))]
    return found


def lines(data: bytes) -> list[int]:
    return [json.loads(line)["n"] for line in data.splitlines()]


def ended(*committed: str) -> Any:
    """What is removed at the end of a run whose last cut lists these transactions, and which cannot be resumed."""
    nothing = frozenset[str]()
    return Sweep(Attempt(9), True, frozenset(), None, nothing, nothing, committed=frozenset(committed))


def forgotten(attempt: int, listed: Iterable[str] = ()) -> Any:
    """What a supervisor removes if only these transactions are in its cuts."""
    kept = frozenset(listed)
    return Sweep(Attempt(attempt), False, frozenset(), None, kept, kept)


# -- when an object is published -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_transactions_of_several_cuts_become_one_object_in_their_order(tmp_path: Path, kind: Any):
    store = ObjectsInMemory()
    task = Task(writer(kind, store))
    task.write(9, 10, 11)
    assert published(store) == [] and task.listed == [transaction(n) for n in (9, 10, 11)]
    task.opened.close()
    assert published(store) == [f"part-{RUN}.out.0.attempt-1.epoch-9{kind.ending}"]
    assert numbers(store, tmp_path, kind) == [9, 10, 11]
    assert staged(store) == ["published", "rolls"]


def test_an_object_is_published_when_it_is_large_enough(tmp_path: Path):
    store = ObjectsInMemory()
    Task(writer(JsonLines, store, roll_bytes=24, roll_s=None)).write(*range(1, 10))  # lines of 8 bytes
    assert [store.read(name).count(b"\n") for name in published(store)] == [3, 3, 3]
    assert numbers(store, tmp_path) == list(range(1, 10))


def test_an_object_is_published_when_its_first_record_has_waited_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    clock, store = Clock(), ObjectsInMemory()
    monkeypatch.setattr("backedge.engine.io.files.object_output.monotonic", clock)
    task = Task(writer(JsonLines, store, roll_bytes=None, roll_s=60))
    clock.now_s = 100
    task.write(1)
    clock.now_s = 159
    task.write(2)
    assert published(store) == []
    clock.now_s = 160
    task.commit()  # a cut without new records lists those that wait
    assert numbers(store, tmp_path) == [1, 2] and task.listed == []
    task.write(3)
    assert numbers(store, tmp_path) == [1, 2]


def test_a_cut_lists_a_limited_number_of_waiting_transactions():
    store = ObjectsInMemory()
    task = Task(writer(JsonLines, store))
    task.write(*range(1, PIECES_MAX))
    assert len(task.listed) == PIECES_MAX - 1 and published(store) == []
    task.write(PIECES_MAX)
    assert task.listed == [] and len(published(store)) == 1


def test_without_limits_each_cut_has_its_object_at_once():
    store = ObjectsInMemory()
    task = Task(writer(JsonLines, store, **AT_ONCE))
    task.write(1, 2)
    assert len(published(store)) == 2 and task.listed == []
    assert staged(store) == ["published", "published", "rolls", "rolls"]


@pytest.mark.parametrize("kind", [CSV, Parquet])
def test_records_with_other_columns_go_into_another_object(kind: Any):
    store, task = waiting(kind)
    task.write(3, more="x")
    task.write(4)
    task.opened.close()
    assert [name.split(".epoch-")[1] for name in published(store)] == [f"{n}{kind.ending}" for n in (1, 3, 4)]


# -- who publishes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [BIG, AT_ONCE], ids=["rolls", "at once"])
def test_the_next_attempt_publishes_at_once_what_its_cut_lists(tmp_path: Path, limits: dict[str, Any]):
    store, old = waiting()
    new = Task(writer(JsonLines, store, 2, index=5, **limits), old.listed, 2)
    assert numbers(store, tmp_path) == [1, 2] and new.listed == []
    assert len(published(store)) == (1 if limits is BIG else 2)
    new.write(3)
    new.opened.close()
    assert numbers(store, tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(("former", "now"), [(JsonLines, Parquet), (Parquet, CSV), (CSV, JsonLines)])
def test_what_waits_in_a_former_format_is_joined_and_published_in_that_format(tmp_path: Path, former: Any, now: Any):
    store, old = waiting(former)
    Task(writer(now, store, 2), old.listed)
    assert published(store) == [f"part-{RUN}.{transaction(1)}{former.ending}"]
    assert numbers(store, tmp_path, former) == [1, 2]


def test_the_end_of_a_run_publishes_what_dead_tasks_have_left_and_removes_the_staging(tmp_path: Path):
    store = ObjectsInMemory()
    tasks = [Task(writer(JsonLines, store, index=index)) for index in (0, 1)]
    tasks[0].write(1, 2)
    output(JsonLines, store, 1).roll_back(ended(*tasks[0].listed, transaction(8, name="another")))
    assert numbers(store, tmp_path) == [1, 2] and staged(store) == []


def test_the_end_of_a_run_that_cannot_publish_says_what_waits_where():
    store, task = waiting()
    failing = SteppedObjects(store, 3, fails)
    with pytest.raises(OutputError, match=r"'out'.*_staging/job/out.*resume"):
        output(JsonLines, failing).roll_back(ended(*task.listed))
    assert failing.happened


def test_a_lost_piece_is_an_error_that_names_it():
    store, task = waiting()
    store.remove([name for name in store.list() if "/prepared/" in name and "epoch-2" in name])
    with pytest.raises(UnknownTransactionError, match=r"'out'.*epoch-1"):
        Task(writer(JsonLines, store, 2), task.listed)


def test_what_a_record_names_and_is_lost_is_an_error_and_not_taken_for_published():
    store, task = waiting()
    with pytest.raises(Crash):
        Task(writer(JsonLines, SteppedObjects(store, 5, dies, is_after=True), 2), task.listed, 2)
    store.remove([name for name in store.list() if "/joined/" in name])
    with pytest.raises(UnknownTransactionError, match=r"'out'.*epoch-1"):
        Task(writer(JsonLines, store, 3), task.listed, 3)


# -- one roll, decided by any attempt ----------------------------------------------------------------------------------


def of_two_cuts() -> tuple[ObjectsInMemory, Task, list[str], list[str]]:
    """A store, its task, and what two cuts list: 1 and 2, and 3 as well."""
    store = ObjectsInMemory()
    task = Task(writer(JsonLines, store))
    return store, task, [*task.cut(1), *task.cut(2)[1:]], task.cut(3)


@pytest.mark.parametrize("first", [[1, 2], [1, 2, 3]])
def test_attempts_that_list_more_or_fewer_pieces_publish_the_same_rolls(tmp_path: Path, first: list[int]):
    """A run goes back to the cut that lists 1 and 2; the latest lists 3, too, and must be published first."""
    store, old, older, latest = of_two_cuts()
    lists = {2: older, 3: latest}
    for attempt, count in enumerate([len(first), 5 - len(first), 3], 2):
        Task(writer(JsonLines, store, attempt), lists[count], attempt)
    old.commit()
    old.opened.close()
    assert numbers(store, tmp_path) == [1, 2, 3]
    assert len(published(store)) == (2 if len(first) == 2 else 1)


@pytest.mark.parametrize("is_planted", [False, True])
def test_an_attempt_that_died_before_its_note_has_decided_for_the_next_and_without_its_record_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_planted: bool
):
    """The second attempt has one piece more, so without the record it puts other pieces under the same name."""
    store, _, older, latest = of_two_cuts()
    with pytest.raises(Crash):
        Task(writer(JsonLines, SteppedObjects(store, 7, dies, is_after=True), 2), older, 2)
    assert published(store) and "published" not in staged(store)
    if is_planted:
        ignore_records(monkeypatch)
        with pytest.raises(OutputError, match="epoch-1"):
            Task(writer(JsonLines, store, 3), latest, 3)
    else:
        Task(writer(JsonLines, store, 3), latest, 3)
        assert numbers(store, tmp_path) == [1, 2, 3]


def test_going_back_to_a_cut_whose_pieces_were_published_publishes_nothing_again(tmp_path: Path):
    store = ObjectsInMemory()
    old = Task(writer(JsonLines, store))
    old.write(1)
    older = old.cut(2)
    old.commit()
    old.write(3)
    old.opened.close()
    objects = published(store)
    Task(writer(JsonLines, store, 2), older, 2)
    assert published(store) == objects and numbers(store, tmp_path) == [1, 2, 3]


def test_another_object_is_never_replaced(tmp_path: Path):
    store = ObjectsInMemory()
    store.write({f"part-{RUN}.{transaction(1)}.jsonl": b'{"n":7}\n'})
    task = Task(writer(JsonLines, store))
    task.write(1, 2)
    with pytest.raises(OutputError, match=r"epoch-1.*remove"):
        task.opened.close()
    assert numbers(store, tmp_path) == [7]


@pytest.mark.parametrize("is_after", [False, True], ids=["unrecorded", "recorded"])
def test_what_joins_pieces_stays_while_a_record_may_name_it_and_goes_when_no_cut_lists_them(is_after: bool):
    store, task = waiting()
    dying = SteppedObjects(store, 5, dies, is_after=is_after)
    with pytest.raises(Crash):
        Task(writer(JsonLines, dying, 2), task.listed, 2)
    assert dying.happened == ["create"] and staged(store).count("joined") == 1
    output(JsonLines, store, 3).roll_back(forgotten(3, task.listed))
    assert staged(store).count("joined") == 1
    Task(writer(JsonLines, store, 3), task.listed, 3)
    output(JsonLines, store, 4).roll_back(forgotten(4))
    assert staged(store) == [] and len(published(store)) == 1


# -- deaths, sleep and lost replies, at every request ------------------------------------------------------------------


STEPS = 30
"""More than the requests of an attempt."""


def run_to_the_end(store: ObjectsInMemory, attempt: int, listed: list[str]) -> None:
    """The next attempt, which nothing disturbs: it restores the last cut, writes and takes another, and ends."""
    task = Task(writer(JsonLines, store, attempt), listed, attempt)
    task.write(attempt * 10)
    task.opened.close()


def disturbed(store: ObjectsInMemory, attempt: int, listed: list[str]) -> Iterator[list[str]]:
    """An attempt that restores a cut and takes two more. Yields what each complete cut lists."""
    opened = writer(JsonLines, store, attempt)
    try:
        task = Task(opened, listed, attempt)
        for epoch in (attempt * 10, attempt * 10 + 1):
            yield task.cut(epoch)
            task.commit()
        opened.close()
    except OSError:
        close_writer(opened)  # as the engine does where an attempt has failed
        raise


def run_disturbed(process: SteppedObjects, attempt: int, last: list[str], written: list[int]) -> None:
    """The same until it ends, dies or fails. `last` becomes what the last complete cut lists; `written` gets epochs."""
    for cut in disturbed(process, attempt, list(last)):
        if process.happened:
            return  # another attempt has the job by now, so this cut is never complete
        last[:] = cut
        written.append(int(cut[-1].rpartition("-")[2]))


class Consumer:
    """Takes every published object that is noted, as the documentation allows."""

    def __init__(self, store: ObjectsInMemory) -> None:
        self._store = store
        self.taken: list[int] = []

    def take(self) -> None:
        for name in published(self._store):
            noted = name.removeprefix(f"part-{RUN}.").removesuffix(".jsonl")
            if f"_staging/job/out/published/{noted}" in self._store.list():
                self.taken += lines(self._store.read(name))
                self._store.remove([name])

    def all(self) -> list[int]:
        self.taken += [n for name in published(self._store) for n in lines(self._store.read(name))]
        return sorted(self.taken)


@pytest.mark.slow
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("happens", [dies, fails])
def test_an_attempt_that_stops_at_any_request_loses_and_doubles_nothing(happens: Callable[[str], None], is_after: bool):
    """Two attempts in a row stop at any of their requests. Between them the consumer takes what it may."""
    happened: list[str] = []
    for step in range(STEPS):
        for second in range(step % 3, STEPS, 3):
            store = ObjectsInMemory()
            consumer = Consumer(store)
            listed: list[str] = []
            wanted: list[int] = []
            for attempt, at in ((1, step), (2, second)):
                process = SteppedObjects(store, at, happens, is_after=is_after)
                with suppress(Crash, OSError):
                    run_disturbed(process, attempt, listed, wanted)
                happened += process.happened
                consumer.take()
                output(JsonLines, store, attempt + 1).roll_back(forgotten(attempt + 1, listed))
            run_to_the_end(store, 3, listed)
            assert consumer.all() == sorted([*wanted, 30]), (step, second)
    assert {"upload", "create", "copy", "write", "remove"} <= set(happened)
    assert len(happened) > 300


@pytest.mark.slow
@pytest.mark.parametrize("forgets", [False, True], ids=["remembered", "forgotten"])
def test_a_task_that_sleeps_at_any_request_while_others_go_on_loses_and_doubles_nothing(forgets: bool):
    """Another attempt publishes what the last cut lists, its consumer takes it, and later cuts may forget it."""
    slept: list[str] = []
    for is_after in (False, True):
        for step in range(STEPS):
            store = ObjectsInMemory()
            consumer = Consumer(store)
            wanted: list[int] = []
            last: list[str] = []

            def others(kind: str, store: Any = store, last: list[str] = last, consumer: Any = consumer) -> None:
                run_to_the_end(store, 2, list(last))
                consumer.take()
                if forgets:
                    output(JsonLines, store, 3).roll_back(forgotten(3))

            process = SteppedObjects(store, step, others, is_after=is_after)
            with suppress(OSError, OutputError):  # it finds that it was superseded
                run_disturbed(process, 1, last, wanted)
            slept += process.happened
            found = [*wanted, 20] if process.happened else wanted
            assert consumer.all() == found, (step, is_after)
    assert {"upload", "create", "copy", "write", "remove"} <= set(slept)


@pytest.mark.slow
def test_a_task_that_sleeps_while_its_successor_stops_at_any_request_loses_and_doubles_nothing():
    """The successor has done a part of what the task is about to do. Then the task goes on, and a third attempt."""
    met: set[tuple[str, str]] = set()
    for step in range(STEPS):
        for stop in range(step % 2, STEPS, 2):
            store = ObjectsInMemory()
            consumer = Consumer(store)
            wanted: list[int] = []
            last: list[str] = []

            def successor(
                kind: str, stop: int = stop, store: Any = store, last: list[str] = last, wanted: list[int] = wanted
            ) -> None:
                dying = SteppedObjects(store, stop, dies)
                with suppress(Crash):
                    run_disturbed(dying, 2, last, wanted)
                met.update((kind, died) for died in dying.happened)

            process = SteppedObjects(store, step, successor)
            with suppress(OSError, OutputError):  # it finds that it was superseded
                run_disturbed(process, 1, last, wanted)
            run_to_the_end(store, 3, list(last))
            assert consumer.all() == sorted([*wanted, 30]), (step, stop)
    assert len(met) > 30

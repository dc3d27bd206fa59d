"""One harness for all sources and sinks: what is built in passes it, and what lies is found.

Those that need a server call `check_source` and `check_sink` beside its other tests.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from backedge import (
    CSV,
    Call,
    Collect,
    ConnectorContractError,
    Flow,
    FoundSplits,
    Generate,
    Items,
    JsonLines,
    MisuseError,
    NoInputError,
    Parquet,
    Range,
    SimulationError,
    Sink,
    SinkPlace,
    Source,
    SqliteTable,
    TextLines,
    simulate,
)
from backedge.engine.io.databases import sqlite_table
from backedge.engine.io.files import text_splits
from backedge.engine.io.files.file_formats import FileSink, RehearsedObjects
from backedge.engine.io.files.objects_in_memory import ObjectsInMemory
from backedge.testing import check_sink, check_source
from tests.every import every
from tests.extending.outside.sqlite_sink import SqliteSink, SqliteWriter, transaction
from tests.extending.outside.sqlite_source import SqliteTable as TableOutside
from tests.faults.evidence import Evidence
from tests.files.opened import AT_ONCE, BIG, reader, writer

ROWS = [{"n": n} for n in range(40)]


def table(folder: Path, name: str, rows: Iterable[Mapping[str, int]] = ()) -> str:
    """A SQLite database with the table `numbers`."""
    with closing(sqlite3.connect(folder / name)) as database, database:
        database.execute("CREATE TABLE numbers (n integer UNIQUE)")
        database.executemany("INSERT INTO numbers (n) VALUES (:n)", rows)
    return str(folder / name)


# -- sources ---------------------------------------------------------------------------------------------------------


def lines(folder: Path, kind: Any, *files: str) -> Source[Any]:
    (folder / "in").mkdir()
    for number, name in enumerate(files):
        texts = map(json.dumps, ROWS[number :: len(files)])
        if kind is CSV:
            texts = ["n", *(str(row["n"]) for row in ROWS[number :: len(files)])]
        data = "\n".join(texts).encode()
        (folder / "in" / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return kind(str(folder / "in"))


def parquet(folder: Path) -> Parquet:
    pq.write_table(pa.table({"n": range(40)}), folder / "a.parquet", row_group_size=7)
    return Parquet(str(folder / "a.parquet"))


TEXT_ROWS = [{"n": str(row["n"])} for row in ROWS]
SOURCES: dict[str, tuple[Callable[[Path], Source[Any]], Sequence[Any]]] = {
    "items": (lambda folder: Items(ROWS), ROWS),
    "columns": (lambda folder: Items(pa.table({"n": range(40)})), ROWS),
    "range": (lambda folder: Range(50, start=10), range(10, 50)),
    "generate": (lambda folder: Generate(lambda n: [n], 40), [[n] for n in range(40)]),
    "json lines": (lambda folder: lines(folder, JsonLines, "a.jsonl", "b.jsonl"), ROWS),
    "json lines, packed": (lambda folder: lines(folder, JsonLines, "a.jsonl.gz", "b.jsonl"), ROWS),
    "csv": (lambda folder: lines(folder, CSV, "a.csv", "b.csv.gz"), TEXT_ROWS),
    "text": (lambda folder: lines(folder, TextLines, "a.txt"), [json.dumps(row) for row in ROWS]),
    "parquet": (parquet, ROWS),
    "sqlite": (lambda folder: SqliteTable(table(folder, "in.db", ROWS), "numbers"), ROWS),
    "outside": (lambda folder: TableOutside(table(folder, "in.db", ROWS), "numbers"), ROWS),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_source_gives_each_record_once_from_wherever_a_run_goes_on(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(text_splits, "BLOCK_BYTES", 16)
    monkeypatch.setattr(sqlite_table, "RANGE_ROWS_MIN", 9)
    monkeypatch.setattr(sqlite_table, "PAGE_ROWS", 4)
    new, records = SOURCES[source]
    check_source(new(tmp_path), records)


@dataclass
class Numbers(Source[Any]):
    """Numbers in two splits, each of which has ten. What derives from it lies."""

    def splits(self) -> Sequence[str]:
        return ["0", "10"]

    def first_position(self, split: str) -> Any:
        return int(split)

    def open_split(self, split: str, position: Any) -> NumbersReader:
        return NumbersReader(self, position, int(split) + 10)

    def first(self, position: Any) -> int:
        return position

    def position(self, next: int) -> Any:
        return next

    def record(self, number: int) -> Any:
        return number


class NumbersReader:
    def __init__(self, source: Numbers, position: Any, stop: int) -> None:
        self.source = source
        self.stop = stop
        self.next = source.first(position)

    @property
    def position(self) -> Any:
        return self.source.position(self.next)

    @property
    def is_done(self) -> bool:
        return self.next >= self.stop

    def read(self, records_max: int) -> list[Any]:
        start, self.next = self.next, min(self.next + records_max, self.stop)
        return list(map(self.source.record, range(start, self.next)))


class RepeatsOne(Numbers):
    def first(self, position: Any) -> int:
        return position - (position % 10 == 3)


class SkipsOne(Numbers):
    def first(self, position: Any) -> int:
        return position + (position % 10 == 3)


class Shuffles(Numbers):
    def splits(self) -> Sequence[str]:
        return random.sample(["0", "10", *map(str, range(20, 99, 10))], 10)


class GivesObjects(Numbers):
    def position(self, next: int) -> Any:
        return {"next": range(next, 100)}

    def first(self, position: Any) -> int:
        return position if isinstance(position, int) else position["next"].start


class SaysTooSoon(Numbers):
    def is_read(self, split: str, position: Any) -> bool:
        return position >= int(split) + 9


class GivesMore(Numbers):
    def open_split(self, split: str, position: Any) -> NumbersReader:
        reader = super().open_split(split, position)
        read = reader.read
        reader.read = lambda records_max: read(records_max + 1)
        return reader


class Counts(Numbers):
    """Numbers records by when they are read."""

    clock = itertools.count()

    def record(self, number: int) -> Any:
        return number if number < 19 else next(self.clock)


class GivesTheSame(Numbers):
    same: ClassVar = {number: [number] for number in range(20)}

    def record(self, number: int) -> Any:
        return self.same[number]


class GivesTuples(Numbers):
    def open_split(self, split: str, position: Any) -> Any:
        reader: Any = super().open_split(split, position)
        read = reader.read
        reader.read = lambda records_max: tuple(read(records_max))
        return reader


class Finds(Numbers):
    """Its splits are found in one look after the other."""

    look_s = 1.0
    sizes: ClassVar = ["0", "10"]

    def splits(self) -> None:
        return None

    def find_splits(self, known: Collection[str]) -> FoundSplits:
        return FoundSplits([split for split in self.sizes if split not in known], is_last=False)


class FindsAgain(Finds):
    def find_splits(self, known: Collection[str]) -> FoundSplits:
        return super().find_splits(())


class FindsAList(Finds):
    def find_splits(self, known: Collection[str]) -> Any:
        return super().find_splits(known).new


class FindsNothing(Finds):
    def validate_input(self) -> None:
        raise OSError("the host is away")


class FindsNumbers(Finds):
    sizes: ClassVar = [0, 10]


LYING_SOURCES: dict[str, tuple[type[Numbers], str]] = {
    "repeats one": (RepeatsOne, "other records"),
    "skips one": (SkipsOne, "other records"),
    "shuffles its splits": (Shuffles, "lists its splits"),
    "gives objects as positions": (GivesObjects, "no plain value"),
    "says too soon that all is read": (SaysTooSoon, "is_read"),
    "gives more than it is asked for": (GivesMore, "at most"),
    "gives other records at each time": (Counts, "other records|each record once"),
    "gives the same objects": (GivesTheSame, "shares_records"),
    "gives tuples": (GivesTuples, r"of type tuple: return a list"),
}


@pytest.mark.slow
@every("liar", LYING_SOURCES)
def test_a_source_that_lies_is_found(liar: str):
    kind, told = LYING_SOURCES[liar]
    wanted = [kind().record(number) for number in range(20)]
    with pytest.raises(ConnectorContractError, match=told):
        check_source(kind(), wanted)


def test_what_a_source_or_a_sink_opens_without_all_its_members_is_named(tmp_path: Path):
    class Reads(Numbers):
        def open_split(self, split: str, position: Any) -> Any:
            return SimpleNamespace(read=lambda records_max: [], position=0)

    class Writes(SqliteSink):
        def open_writer(self, place: SinkPlace) -> Any:
            return SimpleNamespace(prepare=len, commit=print)

    with pytest.raises(MisuseError, match=r"'in' opens .*SimpleNamespace, which has no is_done"):
        reader(Reads()).read(1)
    with pytest.raises(MisuseError, match=r"'out' opens .*SimpleNamespace, which has no write"):
        writer(Writes(str(tmp_path / "a.db")))


def test_a_writer_that_commits_together_needs_no_other_commit():
    class Writes(SqliteSink):
        def open_writer(self, place: SinkPlace) -> Any:
            return SimpleNamespace(write=len, prepare=len, commit_together=lambda names: names[1:])

    opened = writer(Writes("a.db"))
    assert opened.commit_together(["a", "b"]) == ["b"]


def test_a_source_that_finds_what_are_no_new_splits_is_refused():
    check_source(Finds(), range(20))
    wrong: list[tuple[type[Finds], Any, str]] = [
        (FindsAgain, NoInputError, "'checked' has found splits again"),
        (FindsAList, MisuseError, r"'checked' finds \['0', '10'\]: return FoundSplits"),
        (FindsNumbers, NoInputError, "name splits by text"),
        (FindsNothing, (NoInputError, SimulationError), "source 'checked' cannot read .* away"),
    ]
    for kind, error, told in wrong:
        with pytest.raises(error, match=told):
            check_source(kind(), range(20))
        flow = Flow("found")
        flow.read(kind(), name="checked").write(Collect(), name="numbers")
        with pytest.raises(error, match=told):
            simulate(flow, seeds=[])


def test_a_source_that_lacks_records_is_found():
    check_source(Numbers(), range(20))
    with pytest.raises(ConnectorContractError, match="lacking 20"):
        check_source(Numbers(), range(21))


def test_a_source_whose_splits_depend_on_the_tasks_is_found():
    class ByTask(Range):
        def open_split(self, split: str, position: Any) -> Any:
            return super().open_split("0-of-1" if split == "0-of-3" else split, position)

    with pytest.raises(ConnectorContractError, match="surplus"):
        check_source(ByTask(20), range(20))


# -- sinks -----------------------------------------------------------------------------------------------------------


def in_lines(sink: FileSink) -> list[Any]:
    return [json.loads(line) for file in Path(sink.path).glob("part-*") for line in file.read_text().splitlines()]


def in_csv(sink: FileSink) -> list[Any]:
    found: list[Any] = []
    for file in Path(sink.path).glob("part-*"):
        with file.open() as opened:
            found += [{"n": int(row["n"])} for row in csv.DictReader(opened)]
    return found


def in_parquet(sink: FileSink) -> list[Any]:
    return [row for file in Path(sink.path).glob("part-*") for row in pq.read_table(file).to_pylist()]


def in_table(sink: SqliteTable) -> list[Any]:
    with closing(sqlite3.connect(sink.database)) as database:
        return [{"n": n} for (n,) in database.execute("SELECT n FROM numbers")]


class SharedObjects(ObjectsInMemory):
    """Objects that all processes see."""

    shared: ClassVar[dict[int, dict[str, bytes]]] = {}
    one_at_a_time = Lock()

    def __getstate__(self) -> tuple[str, int]:
        self.shared[id(self._objects)] = self._objects
        return self._prefix, id(self._objects)

    def __setstate__(self, state: tuple[str, int]) -> None:
        self._prefix, number = state
        self._objects = self.shared[number]

    def create(self, name: str, data: bytes) -> bool:
        with self.one_at_a_time:
            return super().create(name, data)


def calling(path: Path) -> Call[Any]:
    def append(records: list[Any]) -> None:
        with path.open("a") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    path.touch()
    return Call(append)


def of_call(sink: Any) -> list[Any]:
    (path,) = (cell.cell_contents for cell in sink.function.__closure__)
    return list(map(json.loads, path.read_text().splitlines()))


Published = Callable[[Any], Iterable[Any]]
SINKS: dict[str, tuple[Callable[[Path], Sink[Any]], Published]] = {
    "json lines": (lambda place: JsonLines(str(place), **BIG), in_lines),
    "json lines, at once": (lambda place: JsonLines(str(place), **AT_ONCE), in_lines),
    "json lines, in small files": (lambda place: JsonLines(str(place), roll_bytes=30, roll_s=None), in_lines),
    "csv": (lambda place: CSV(str(place), **BIG), in_csv),
    "parquet": (lambda place: Parquet(str(place), **BIG), in_parquet),
    "parquet, at once": (lambda place: Parquet(str(place), **AT_ONCE), in_parquet),
    "objects": (lambda place: RehearsedObjects("out", store=SharedObjects(), **BIG), RehearsedObjects.published),
    "objects, at once": (
        lambda place: RehearsedObjects("out", store=SharedObjects(), **AT_ONCE),
        RehearsedObjects.published,
    ),
    "sqlite": (lambda place: SqliteTable(table(place.parent, place.name), "numbers"), in_table),
    "sqlite, by key": (lambda place: SqliteTable(table(place.parent, place.name), "numbers", key="n"), in_table),
    "call": (calling, of_call),
    "outside": (lambda place: SqliteSink(str(place)), SqliteSink.published),
}


def new_in(folder: Path, new: Callable[[Path], Sink[Any]]) -> Callable[[], Sink[Any]]:
    numbers = itertools.count()
    return lambda: new(folder / str(next(numbers)))


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(12), marks=pytest.mark.slow),
        pytest.param(range(12, 300), marks=pytest.mark.long),
    ],
    ids=["few", "many"],
)
@pytest.mark.parametrize("sink", SINKS)
def test_a_sink_publishes_each_record_once_whatever_happens(
    sink: str, seeds: range, tmp_path: Path, evidence: Evidence
):
    new, published = SINKS[sink]
    happened = check_sink(new_in(tmp_path, new), published, seeds=seeds)
    for fault in ("process dies", "process sleeps", "without an answer", "by another task", "by two tasks"):
        evidence.happened(f"a {fault}", sum(count for what, count in happened.items() if fault in what))
    evidence.survived("schedules in which each record was published once", len(seeds))


class Lying(SqliteWriter):
    """A writer of the sink of the page on extending. What derives from it lies."""

    def staged(self, name: str) -> list[Any]:
        with transaction(self._database) as database:
            found = database.execute("SELECT records FROM staged WHERE name = ?", (name,)).fetchone()
            if found is None and not database.execute("SELECT 1 FROM noted WHERE name = ?", (name,)).fetchone():
                raise LookupError(name)
            return [] if found is None else json.loads(found[0])

    def publish(self, records: list[Any]) -> None:
        with transaction(self._database) as database:
            database.executemany("INSERT INTO published VALUES (?)", [(json.dumps(record),) for record in records])

    def note(self, name: str) -> None:
        with transaction(self._database) as database:
            database.execute("DELETE FROM staged WHERE name = ?", (name,))
            database.execute("INSERT OR IGNORE INTO noted VALUES (?)", (name,))


class Doubles(Lying):
    """Publishes again what it is asked to commit again."""

    def commit(self, name: str) -> None:
        self.publish(self.staged(name))


class NotesLater(Lying):
    """Publishes in one transaction and notes that in another."""

    def commit(self, name: str) -> None:
        self.publish(self.staged(name))
        self.note(name)


class NotesFirst(Lying):
    def commit(self, name: str) -> None:
        records = self.staged(name)
        self.note(name)
        self.publish(records)


class IsNotFenced(Lying):
    """Looks for the note when it publishes, and trusts what it has read before."""

    def commit(self, name: str) -> None:
        records = self.staged(name)
        with transaction(self._database) as database:
            if database.execute("SELECT 1 FROM noted WHERE name = ?", (name,)).fetchone():
                return
            database.executemany("INSERT INTO published VALUES (?)", [(json.dumps(record),) for record in records])
            database.execute("DELETE FROM staged WHERE name = ?", (name,))
            database.execute("INSERT INTO noted VALUES (?)", (name,))


class PublishesTooSoon(Lying):
    def prepare(self, name: str) -> bool:
        self.publish(self._open)
        return super().prepare(name)

    def commit(self, name: str) -> None:
        self.staged(name)
        self.note(name)


class IgnoresWhatIsLost(Lying):
    def commit(self, name: str) -> None:
        try:
            super().commit(name)
        except LookupError:
            return


class IsNeverEmpty(Lying):
    def prepare(self, name: str) -> bool:
        super().prepare(name)
        return True


class LosesOne(Lying):
    def write(self, records: list[Any]) -> None:
        super().write(records[:2])


class KeepsInMemory(Lying):
    """What it has prepared is lost with its process."""

    def prepare(self, name: str) -> bool:
        self.prepared = {**getattr(self, "prepared", {}), name: self._open}
        is_written, self._open = bool(self._open), []
        return is_written

    def commit(self, name: str) -> None:
        self.publish(self.prepared.pop(name))


class Waits(Lying):
    """Has all that it commits wait, and publishes none of it in the end."""

    def commit_together(self, names: Sequence[str]) -> Sequence[str]:
        for name in names:
            self.staged(name)
        return names


LYING_WRITERS: dict[str, tuple[type[Lying], str]] = {
    "doubles": (Doubles, "too often"),
    "notes later": (NotesLater, "too often"),
    "notes first": (NotesFirst, "lacks|too often"),
    "is not fenced": (IsNotFenced, "too often"),
    "publishes too soon": (PublishesTooSoon, "of no complete cut"),
    "ignores what is lost": (IgnoresWhatIsLost, "never prepared"),
    "is never empty": (IsNeverEmpty, "prepare returns True"),
    "loses one": (LosesOne, "lacks"),
    "keeps in memory": (KeepsInMemory, "commit.* failed|lacks"),
    "waits for ever": (Waits, "lacks"),
}


@pytest.mark.slow
@pytest.mark.parametrize("liar", LYING_WRITERS)
def test_a_sink_that_lies_is_found(liar: str, tmp_path: Path):
    kind, told = LYING_WRITERS[liar]

    @dataclass(frozen=True)
    class Liar(SqliteSink):
        def open_writer(self, place: SinkPlace) -> SqliteWriter:
            return kind(self.database)

    with pytest.raises(ConnectorContractError, match=told):
        check_sink(new_in(tmp_path, lambda place: Liar(str(place))), SqliteSink.published)


def test_records_that_are_read_back_in_another_form_are_shown_beside_those_that_lack(tmp_path: Path):
    def as_texts(sink: SqliteSink) -> list[str]:
        return list(map(json.dumps, sink.published()))

    with pytest.raises(ConnectorContractError, match=r"lacks \d+ records: \{'n': .*, and has, .*: '\{\"n\": "):
        check_sink(new_in(tmp_path, lambda place: SqliteSink(str(place))), as_texts)


@dataclass(frozen=True)
class RemovesAll(SqliteSink):
    def roll_back(self, place: SinkPlace, rollback: Any) -> None:
        with transaction(self.database) as database:
            database.execute("DELETE FROM staged")


@dataclass(frozen=True)
class RemovesNothing(SqliteSink):
    def can_withdraw(self, place: SinkPlace) -> bool:
        return True

    def withdraw(self, place: SinkPlace, later: Any) -> None:
        """Nothing is removed."""


@dataclass(frozen=True)
class RemovesNotes(SqliteSink):
    """Removes the notes of all that is published."""

    def roll_back(self, place: SinkPlace, rollback: Any) -> None:
        super().roll_back(place, rollback)
        with transaction(self.database) as database:
            database.execute("DELETE FROM noted")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [RemovesAll, RemovesNothing, RemovesNotes])
def test_a_sink_that_removes_too_much_or_nothing_is_found(kind: Any, tmp_path: Path):
    with pytest.raises(ConnectorContractError):
        check_sink(new_in(tmp_path, lambda place: kind(str(place))), SqliteSink.published)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "fails"), [(SqliteSink, False), (RemovesAll, True)])
def test_the_tests_on_the_page_on_extending_pass_and_fail_for_what_lies(tmp_path: Path, kind: Any, fails: bool):
    page = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
    blocks = [block.split("```")[0] for block in page.split("```python\n")]
    source, sink = (block for block in blocks if "def test_it_is_a_source" in block or "def test_it_is_a_sink" in block)
    names: dict[str, Any] = {"SqliteSink": kind, "SqliteTable": TableOutside}
    exec(source, names)
    exec(sink, names)
    names["test_it_is_a_source"](table(tmp_path, "in", [{"n": n} for n in range(100)]))
    with pytest.raises(ConnectorContractError) if fails else nullcontext():
        names["test_it_is_a_sink"](tmp_path)


# -- what is not installed -------------------------------------------------------------------------------------------

_WITHOUT = """
import sys
for driver in {drivers!r}:
    sys.modules[driver] = None
import backedge
for name, arguments in {connectors!r}:
    try:
        getattr(backedge, name)(*arguments).validate_input()
    except Exception as error:
        print(error)
"""
EXTRAS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "delta": ("deltalake", "DeltaTable", ("lake",)),
    "iceberg": ("pyiceberg", "IcebergTable", (".", "shop.orders")),
    "kafka": ("confluent_kafka", "KafkaTopic", ("localhost:9092", "orders")),
    "postgres": ("psycopg", "PostgresTable", ("postgresql://localhost", "orders")),
    "redis": ("redis", "RedisStream", ("redis://localhost", "orders")),
}


def test_a_connector_without_its_extra_says_how_to_install_it():
    drivers, connectors = [extra[0] for extra in EXTRAS.values()], [extra[1:] for extra in EXTRAS.values()]
    program = _WITHOUT.format(drivers=drivers, connectors=connectors)
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"pip install 'backedge\[(\w+)\]'$", told, re.MULTILINE) == list(EXTRAS), told

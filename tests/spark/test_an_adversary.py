"""An adversary changes values of a cut and seals it again: the audit finds that, or a restore reads what it judged.

The values are those of a file of state, or of a manifest and its entry in the chain.

No Spark: these are the checks of documents and of one file, and the rows that Spark's tables show, which Spark's tasks
call.
"""

from __future__ import annotations

import pickle
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.ids import Epoch
from backedge.graphs.routing import KEY_GROUPS, key_group
from backedge.recovery.cut.cut import OperatorState
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.spark.audit.file_verification import check_file
from backedge.recovery.spark.cut_tables.decoding import json_of
from backedge.recovery.spark.cut_tables.file_rows import batches_of
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.parquet_tables import pa
from backedge.recovery.stores.state_table import KINDS, STATE
from backedge.recovery.stores.store_errors import StoreError
from proof.runner import run_seed
from tests.spark.forging import Forged, Row, before_rows
from tests.spark.simulated import write_run
from tests.stores.snapshots import begin, complete

SHOWN = pa.schema([*STATE, pa.field("key", pa.string()), pa.field("value", pa.string())])

KEYS: tuple[Any, ...] = (
    7,
    8,
    -1,
    1 << 62,
    1 << 70,
    True,
    7.0,
    2.5,
    "a",
    "ä",
    "columns",
    "\ud800",
    b"a",
    None,
    (1, "x"),
)
VALUES: tuple[Any, ...] = (0, 1, 1_000_000, 1 << 70, 2.5, "text", b"bytes", None, [1], {"n": 1}, (7, 1))


def entry(chance: random.Random) -> bytes:
    """The pickle of an entry of any kind, or of none."""
    key, value = chance.choice(KEYS), chance.choice(VALUES)
    some: Any = chance.choice(((key, value), (key, value), (key, 50, 0), (key,), key, (key, 1, 2, 3)))
    if chance.random() < 0.05:
        some = ("columns", "i", "i", (7).to_bytes(8, "little"), (9).to_bytes(8, "little"))
    return pickle.dumps(some, chance.choice((4, 5)))


def cell(column: str, chance: random.Random) -> Any:
    """Any value of a column's type."""
    numbers, texts = (0, 7, 8, 50, 100, 578, 1_000_000), ("a", "b", "ä", "columns", "text")
    match column:
        case "kind":
            return chance.choice((*KINDS, "other"))
        case "key_group":
            return chance.choice((0, key_group(7), key_group("a"), KEY_GROUPS - 1))
        case "key_int" | "value_int":
            return chance.choice(numbers)
        case "value_float":
            return chance.choice((0.0, 2.5, float("nan")))
        case "key_str" | "value_str":
            return chance.choice(texts)
        case _:
            return entry(chance)


def change_a_cell(rows: list[Row], chance: random.Random) -> list[Row]:
    row, column = chance.choice(rows), chance.choice(STATE.names)
    row[column] = None if row[column] is not None and chance.random() < 0.3 else cell(column, chance)
    return rows


def swap_cells(rows: list[Row], chance: random.Random) -> list[Row]:
    one, other, column = chance.choice(rows), chance.choice(rows), chance.choice(STATE.names)
    one[column], other[column] = other[column], one[column]
    return rows


def change_a_pickle(rows: list[Row], chance: random.Random) -> list[Row]:
    row = chance.choice([row for row in rows if row["data"] is not None] or rows)
    data = row["data"] or entry(chance)
    more = entry(chance)
    row["data"] = chance.choice((data + more, more + data, data[:-1], data + b"\0", more, b"."))
    return rows


def put_a_pickle_over_a_value(rows: list[Row], chance: random.Random) -> list[Row]:
    row = chance.choice(rows)
    key = row["key_int"] if row["key_int"] is not None else row["key_str"]
    row["data"] = pickle.dumps((key, chance.choice(VALUES)), 5)
    if chance.random() < 0.5:
        row.update(value_int=None, value_float=None, value_str=None, value_bytes=None)
    return rows


def double_a_row(rows: list[Row], chance: random.Random) -> list[Row]:
    return [*rows, {**chance.choice(rows)}]


def add_a_row(rows: list[Row], chance: random.Random) -> list[Row]:
    key = chance.choice(KEYS)
    row = dict.fromkeys(STATE.names) | {"kind": chance.choice(KINDS), "key_group": key_group(key)}
    row["data"] = pickle.dumps(chance.choice(((key, 1), (key,), (key, 60, 0))), 5)
    if type(key) is int and key < 1 << 63 and chance.random() < 0.7:
        row["key_int"] = key
    return [*rows, row]


CHANGES = (
    change_a_cell,
    change_a_cell,
    swap_cells,
    change_a_pickle,
    change_a_pickle,
    put_a_pickle_over_a_value,
    double_a_row,
    add_a_row,
)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with two cuts, of which the second holds what has changed since the first."""
    folder = tmp_path_factory.mktemp("job")
    store = CutStore(str(folder), "job")
    begin(store)
    complete(store, 1)
    complete(store, 2)
    return folder


def judged(job: Path, manifest: Any) -> Counter[tuple[str, str, str | None, str | None]] | None:
    """The rows of state that the audit calls sound, as it shows them; None if it finds a fault."""
    found: Counter[tuple[str, str, str | None, str | None]] = Counter()
    for task in manifest["tasks"]:
        for file in task["files"]:
            if "/table=state/" not in file["name"]:
                continue
            listed = str(job), file["name"], file["size"], file["digest"]
            span = None if file["groups"] is None else tuple(file["groups"])
            if check_file(*listed, span):
                return None
            operator = file["name"].partition("operator=")[2].partition("/")[0]
            for batch in batches_of("state", listed, {}, SHOWN):
                for row in batch.to_pylist():
                    value = str(row["value_int"]) if row["kind"] == "timer" else row["value"]
                    found[operator, row["kind"], row["key"], value] += 1
    return found


def restored(store: CutStore, epoch: int) -> Counter[tuple[str, str, str | None, str | None]]:
    """The same as a restore reads it."""
    cut = store.manifest_of(Epoch(epoch))
    found: Counter[tuple[str, str, str | None, str | None]] = Counter()
    for task in cut.tasks.values():
        reader = store.reader_of(task)
        for facts in task.operators:
            state = reader.state(facts.name)
            for kind, key, value in entries_of(state):
                found[facts.name, kind, key, value] += 1
    return found


def entries_of(state: OperatorState) -> Iterator[tuple[str, str | None, str | None]]:
    values, timers, gone = keyed_entries(state)
    yield from (("value", json_of(key), json_of(value)) for key, value in values.items())
    yield from (("timer", json_of(key), str(at_ms)) for key, at_ms, _ in timers)
    yield from (("gone", json_of(key), None) for key in gone)
    yield from (("pending", None, json_of(pickle.loads(data))) for data in state.pending)
    if state.whole is not None:
        yield "whole", None, json_of(pickle.loads(state.whole))


def changed(job: Path, copy: Path, chance: random.Random) -> tuple[Forged, int, str]:
    """A copy of the job in which one file of state has other values, sealed again."""
    forged = Forged(job / "job", copy / "job")
    epoch = chance.choice(sorted(forged.manifests))
    names = [
        f["name"] for task in forged.manifests[epoch]["tasks"] for f in task["files"] if "/table=state/" in f["name"]
    ]
    how = chance.choice(CHANGES)
    forged.change(chance.choice(names), lambda rows: how(rows, chance))
    forged.seal()
    return forged, epoch, how.__name__


def check_changes(job: Path, folder: Path, seeds: range) -> Counter[str]:
    """What became of these changes. Raises for one after which a restore reads what the audit has not judged."""
    found = Counter[str]()
    for seed in seeds:
        chance = random.Random(seed)
        forged, epoch, how = changed(job, folder / str(seed), chance)
        shown = judged(forged.path, forged.manifests[epoch])
        if shown is None:
            found["found"] += 1
            continue
        read = restored(CutStore(str(forged.path.parent), "job"), epoch)
        assert read == shown, f"seed {seed}, {how}: {read - shown} instead of {shown - read}"
        found["judged"] += 1
    return found


def test_an_unchanged_cut_is_read_as_it_is_judged(job: Path):
    forged = Forged(job / "job", job.with_name("unchanged") / "job")
    for epoch, manifest in forged.manifests.items():
        assert judged(forged.path, manifest) == restored(CutStore(str(job), "job"), epoch)


@pytest.mark.slow
def test_of_a_hundred_changes_each_is_found_or_read_as_it_is_judged(job: Path, tmp_path: Path):
    found = check_changes(job, tmp_path, range(100))
    assert found["found"] > 20 and found["judged"] > 5


@pytest.mark.long
def test_of_two_thousand_changes_each_is_found_or_read_as_it_is_judged(job: Path, tmp_path: Path):
    assert check_changes(job, tmp_path, range(100, 2_100)).total() == 2_000


# -- documents -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Jobs that have crashed: with loops, deltas and output, and with rounds and state of tasks."""
    folder = tmp_path_factory.mktemp("lived")
    return [write_run(run_seed(seed, 3)[1], folder / str(seed), first=5) for seed in (7, 41)]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all values in a document, lists and objects included."""
    items: Any = enumerate(cast("list[Any]", value)) if isinstance(value, list) else ()
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value).items()
    for name, item in items:
        yield (*path, name)
        yield from leaves(item, (*path, name))


def another(value: Any, chance: random.Random) -> Any:
    """Another value of the kind."""
    match value:
        case bool():
            return not value
        case int():
            return chance.choice([number for number in (0, 1, 2, 7, value + 1, max(value - 1, 0)) if number != value])
        case str():
            return chance.choice((value + "x", value[:-1], value.replace("1", "2") + "0"))
        case [_, *_]:
            place = chance.randrange(len(value))
            return chance.choice(
                ([*value[:place], *value[place + 1 :]], [*value[1:], value[0]], [*value, value[place]])
            )
        case None:
            return chance.choice((0, 1, True))
        case _:
            return value


def change_a_document(cut: Forged, epoch: int, chance: random.Random) -> tuple[Any, ...]:
    """Change one value in what a manifest says of a task, or in the cut's entry or the start of its attempt."""
    tasks = cut.manifests[epoch]["tasks"]
    starts = [entry for entry in cut.entries if entry["kind"] == "attempt"]
    entry = {name: cut.entry(epoch)[name] for name in ("transactions", "states", "files")}
    restored = {"restored": [start["restored"] for start in starts]}
    document: Any = chance.choice([*chance.choices(tasks, k=4), entry, restored])
    # Each field as often as any other, however many items some have.
    by_name: dict[Any, list[tuple[Any, ...]]] = {}
    for path in leaves(document):
        if path[-1] in ("name", "size", "digest") and "files" in path:
            continue  # it is hashed anew
        by_name.setdefault(tuple(part for part in path if isinstance(part, str)), []).append(path)
    path = chance.choice(by_name[chance.choice(sorted(by_name))])
    *above, last = path
    for part in above:
        document = document[part]
    document[last] = another(document[last], chance)
    cut.entry(epoch).update(entry)
    for start, of in zip(starts, restored["restored"], strict=False):
        start["restored"] = of
    return path


UNTOLD = {"whole_can_move", "records", "splits", "edge", "sender", "receiver", "own", "others", "restored"}
"""What only a comparison of rows finds (counts of sources and sinks, positions, ends of channels), or nothing."""


def planned_from(job: Path, epoch: int) -> Any:
    """What a restore is planned from, except for what is `UNTOLD`."""
    store = CutStore(str(job.parent), job.name)
    outline = store.manifest_of(Epoch(epoch)).outline
    tasks = {
        task: (
            {name: (facts.has_whole, facts.has_transactions) for name, facts in of.operators.items()},
            (of.logs, of.rounds, of.transactions),
        )
        for task, of in outline.tasks.items()
    }
    entry = next(link for link in store.chain() if isinstance(link, Manifest) and link.epoch == epoch)
    starts = [link.restored for link in store.chain() if isinstance(link, AttemptStart)]
    return (
        tasks,
        entry.transactions,
        {task: [file[:2] for file in files] for task, files in entry.states.items()},
        starts,
    )


def check_documents(jobs: Sequence[Path], folder: Path, seeds: range) -> Counter[str]:
    """What became of these changes. Raises for one that is not found and changes what a restore is planned from."""
    found = Counter[str]()
    for seed in seeds:
        chance = random.Random(seed)
        job = chance.choice(jobs)
        cut = Forged(job, folder / str(seed) / "job")
        epoch = chance.choice(sorted(cut.manifests))
        path = change_a_document(cut, epoch, chance)
        cut.seal()
        try:
            is_sound = before_rows(cut.path, epoch).consistent
        except (UnreadableError, StoreError):
            is_sound = False
        if not is_sound:
            found["found"] += 1
        elif UNTOLD.isdisjoint(path):
            assert planned_from(cut.path, epoch) == planned_from(job, epoch), f"seed {seed}: {path} of epoch {epoch}"
            CutStore(str(cut.path.parent), "job").cut(Epoch(epoch))
            found["harmless"] += 1
        shutil.rmtree(cut.path)
    return found


@pytest.mark.slow
def test_of_a_hundred_changed_documents_each_is_found_or_restored_as_before(lived: list[Path], tmp_path: Path):
    assert check_documents(lived, tmp_path, range(100))["found"] > 50


@pytest.mark.long
def test_of_two_thousand_changed_documents_each_is_found_or_restored_as_before(lived: list[Path], tmp_path: Path):
    assert check_documents(lived, tmp_path, range(100, 2_100))["found"] > 1_000

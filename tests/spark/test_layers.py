"""State in layers: tables show what they make up, and a list that somebody has changed is found out."""

from __future__ import annotations

import math
import pickle
import signal
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from backedge.engine.state.keyed_state import keyed_entries
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.routing import key_group
from backedge.inspecting.cut_contents import CutContents
from backedge.recovery.cut.keyed_parts import Pickles
from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.spark import register
from backedge.recovery.spark.audit.cut_roles import CutRoles
from backedge.recovery.spark.audit.file_verification import check_file
from backedge.recovery.spark.audit.job_documents import judge_documents, read_documents
from backedge.recovery.spark.audit.manifest_checks import CutDocuments, check_lists, continued
from backedge.recovery.spark.audit.replaced_files import replaced_files
from backedge.recovery.spark.cut_tables.cut_tables import cut_tables
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.links import Link
from proof.runner import compacts, run_seed
from tests.spark.forging import Forged
from tests.spark.simulated import write_run
from tests.stores.layered import TASK as CUTS_OF
from tests.stores.layered import Cuts
from tests.stores.snapshots import held

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEED, TASK = 17, ("count", 0)
SEEDS_OF_COMPACTIONS = [seed for seed in range(200) if compacts(seed)][:12]
Facts = dict[str, Any]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    _, world, _ = run_seed(SEED, crashes=1)
    return write_run(world, tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def epoch(job: Path) -> int:
    """The first cut in which the state of the task has more than two layers below the last."""
    folder = JobFolder.open(str(job))
    return next(epoch for epoch in folder.cuts() if len(layers_below(folder, epoch)) > 2)


def layers_below(folder: JobFolder, epoch: int) -> list[Facts]:
    return next(t["below"] for t in folder.manifest(epoch)["tasks"] if (t["task"], t["index"]) == TASK)


def leave_out(layers: list[Facts], states: list[Any]) -> None:
    del layers[1], states[1]


def put_in_twice(layers: list[Facts], states: list[Any]) -> None:
    layers.insert(1, layers[1])
    states.insert(1, states[1])


def swap(layers: list[Facts], states: list[Any]) -> None:
    layers[1], layers[2] = layers[2], layers[1]
    states[1], states[2] = states[2], states[1]


def leave_out_of_the_manifest(layers: list[Facts], states: list[Any]) -> None:
    del layers[:]


def name_files_of_another_epoch(layers: list[Facts], states: list[Any]) -> None:
    layers[1]["files"], layers[2]["files"] = layers[2]["files"], layers[1]["files"]


def test_the_list_of_a_sound_cut_has_no_fault(job: Path, epoch: int):
    found = judge_documents(read_documents(JobFolder.open(str(job)), "all"))
    assert epoch in found and not [one for of_cut in found.values() for one in of_cut.findings]


@pytest.mark.slow
def test_a_delta_that_is_put_on_a_compaction_of_what_it_could_take_the_place_of_is_no_fault(tmp_path: Path):
    """It holds what changed since an older cut than the one that the compaction is of."""
    older = 0
    for seed in SEEDS_OF_COMPACTIONS:
        _, world, _ = run_seed(seed, crashes=3)
        documents = read_documents(JobFolder.open(str(write_run(world, tmp_path, f"seed-{seed}"))), "all")
        for cut in documents.cuts.values():
            for task in cut.manifest["tasks"]:
                files = [*task["below"], task]
                older += sum(later["base"] < before["epoch"] for before, later in pairwise(files))
        found = judge_documents(documents)
        assert not [one for of_cut in found.values() for one in of_cut.findings], seed
    assert older > 0


@pytest.mark.parametrize(
    ("forge", "told"),
    [
        (leave_out, "has the base"),
        (put_in_twice, "has the base"),
        (swap, "has the base"),
        (leave_out_of_the_manifest, "but the chain records"),
        (name_files_of_another_epoch, "belongs to another cut or task"),
    ],
)
def test_a_changed_list_breaks_statement_5(
    job: Path, epoch: int, tmp_path: Path, forge: Callable[[list[Facts], list[Any]], None], told: str
):
    forged = Forged(job, tmp_path / "job")
    task = forged.task(epoch, *TASK)
    states = next(files for name, index, files in forged.entry(epoch)["states"] if (name, index) == TASK)
    assert len(task["below"]) > 2
    forge(task["below"], states)
    found = judge_documents(read_documents(JobFolder.open(str(forged.seal())), [epoch]))[epoch].findings
    assert any(one.statement == 5 and told in one.story and one.task == "count/0" for one in found)


def test_a_missing_or_changed_file_below_is_not_read(job: Path, epoch: int):
    file = next(file for layer in layers_below(JobFolder.open(str(job)), epoch) for file in layer["files"])
    facts = (file["size"], file["digest"], tuple(file["groups"]))
    assert check_file(str(job), file["name"], *facts) is None
    assert "was changed" in str(check_file(str(job), file["name"], file["size"], f"blake3:{0:064}", facts[2]))
    missing = file["name"].replace("count.0", "count.9")
    assert "is missing" in str(check_file(str(job), missing, *facts))


def test_a_key_that_is_in_a_delta_twice_breaks_statement_5(tmp_path: Path):
    cuts = Cuts(tmp_path)
    cuts.complete(1, held({"a": 1}))
    cuts.complete(2, held({"a": 2}, gone=["a"]), base=1)
    (task,) = JobFolder.open(str(tmp_path)).manifest(2)["tasks"]
    (file,) = task["files"]
    found = check_file(f"{tmp_path}/job", file["name"], file["size"], file["digest"], tuple(file["groups"]))
    assert found == [(5, "1 duplicate key; first: 'a'")]


class Place(NamedTuple):
    row: int
    column: str


class Size(Enum):
    SMALL = 8


class Of(NamedTuple):
    size: Size
    day: date


DAY, ID = date(2024, 1, 1), UUID(int=7)
BELOW = {
    1: "a",
    1e16: "b",
    "NaN": "c",
    math.nan: "d",
    (1, 2): "e",
    "\ud800": "f",
    b"k": "g",
    "1": "h",
    np.int64(5): "i",
    "z": "j",
    (3, "z"): "k",
    2: "l",
    8: "m",
    str(DAY): "n",
    str(ID): "p",
    "1.50": "q",
    (str(DAY), 8): "r",
    (str(DAY), Size.SMALL): "s",
    (Size.SMALL, DAY): "w",
    0.5: "t",
    Fraction(1, 3): "u",
    (1, 3): "v",
    datetime(2024, 1, 1, 12, tzinfo=UTC): "x",
    datetime(2024, 1, 1, 14, tzinfo=UTC): "o",
    datetime(2024, 1, 1, 12): "y",
}
ABOVE = {
    True: "A",
    10**16: "B",
    math.nan: "D",
    (1.0, np.float64(2)): "E",
    5: "I",
    np.str_("z"): "J",
    Place(3, np.str_("z")): "K",
    signal.SIGINT: "L",
    Size.SMALL: "M",
    DAY: "N",
    ID: "P",
    Decimal("1.50"): "Q",
    (DAY, Size.SMALL): "R",
    Decimal("0.50"): "T",
    Fraction(1, 3): "U",
    Of(Size.SMALL, DAY): "W",
    datetime(2024, 1, 1, 13, tzinfo=ZoneInfo("Europe/Berlin")): "X",
    datetime(2024, 1, 1, 15, tzinfo=timezone(timedelta(hours=1))): "O",
}


def of_many_kinds(root: Path) -> list[str]:
    """Two layers; returns the values that they make up, as JSON."""
    cuts = Cuts(root)
    cuts.complete(1, held(BELOW))
    cuts.complete(2, held(ABOVE, gone=["\ud800"]), base=1)
    values = keyed_entries(cuts.store.cut(Epoch(2)).snapshots[CUTS_OF].operators["rank"]).values
    assert sorted(values.values()) == sorted("ABDEIJKLMNOPQRTUWXcghmnpqrsvy")
    return sorted(f'"{value}"' for value in values.values())


def test_keys_of_several_kinds_are_the_same_where_they_are_equal(tmp_path: Path):
    expected = of_many_kinds(tmp_path)
    store = CutStore(str(tmp_path), "job")
    found = [entry.value for entry in CutContents(store, store.manifest_of(Epoch(2))).state("rank")]
    assert sorted(map(str, found)) == expected


@pytest.mark.slow
def test_tables_take_keys_for_the_same_where_they_are_equal(spark: SparkSession, tmp_path: Path):
    expected = of_many_kinds(tmp_path)
    register(spark)
    in_place = cut_tables(spark, JobFolder.open(str(tmp_path)), [2])["state"]
    by_name = spark.read.format("backedge").option("table", "state").load(str(tmp_path))
    for state in (in_place, by_name):
        assert sorted(row.value for row in state.collect()) == expected


def test_keys_that_cannot_be_read_hide_none_below(tmp_path: Path):
    """They may be any keys."""
    cuts = Cuts(tmp_path)
    for epoch in (1, 2):
        data, group = pickle.dumps((7, [epoch]), 5)[:-1] + b"\x97.", np.array([key_group(7)])
        cuts.complete(epoch, [Pickles("value", group, np.array([0, len(data)]), data, [None])], base=epoch - 1 or None)
    found = list(CutContents(cuts.store, cuts.store.manifest_of(Epoch(2))).state("rank"))
    assert [(entry.kind, entry.key) for entry in found] == [("value", None)] * 2


@pytest.mark.slow
def test_keys_of_every_kind_that_a_cut_loses_with_a_file_are_found(spark: SparkSession, tmp_path: Path):
    keys: list[Any] = [7, "a", (1, 2), 8]
    cuts = Cuts(tmp_path)
    cuts.complete(1, held(dict.fromkeys(keys, 1)))
    for epoch, changed in ((2, keys), (3, keys), (4, keys[3:])):
        cuts.complete(epoch, held(dict.fromkeys(changed, epoch)), base=1)
    folder = JobFolder.open(str(tmp_path))
    recorded = [(link, link.entry) for link in folder.links() if isinstance(link.entry, Manifest)]
    documents = {
        entry.epoch: CutDocuments(link, entry, folder.manifest(entry.epoch), {}, {}) for link, entry in recorded
    }
    roles = CutRoles(cut_tables(spark, folder, [2, 3, 4]), (3, 4), {}, {3: 2, 4: 3}, {}, {}, {})
    found = replaced_files(spark, roles, documents)
    assert found is not None
    assert [(row.epoch, row.lost, row.wrong) for row in found.collect()] == [(4, 3, 0)]


@pytest.mark.slow
def test_tables_show_for_each_key_what_the_last_layer_says(spark: SparkSession, tmp_path: Path):
    cuts = Cuts(tmp_path)
    cuts.complete(1, held({"a": 1, "b": 2, 7: 3, (1, 2): 4, True: 5}, [("a", 100, 0), (7, 50, 0)]))
    cuts.complete(2, held({"a": 10}, gone=["b", 7]), base=1)
    cuts.complete(3, held({"b": 20, 1: 6}, [((1, 2), 70, 0)]), base=2)
    register(spark)
    folder = JobFolder.open(str(tmp_path))
    in_place = cut_tables(spark, folder, [1, 2, 3])["state"]
    by_name = spark.read.format("backedge").option("table", "state").option("epoch", "all").load(str(tmp_path))
    for state in (in_place, by_name):
        shown: dict[int, list[tuple[str, str, str]]] = {}
        for row in state.collect():
            shown.setdefault(row.epoch, []).append((row.kind, row.key, row.value))
        assert sorted(shown[2]) == [("value", '"a"', "10"), ("value", "[1,2]", "4"), ("value", "true", "5")]
        assert sorted(shown[3]) == [
            ("timer", "[1,2]", "70"),
            ("value", '"a"', "10"),
            ("value", '"b"', "20"),
            ("value", "1", "6"),
        ]
        assert len(shown[1]) == 7


def cut_of(epoch: int, base: int | None, *below: tuple[int, int]) -> CutDocuments:
    """A cut of a task with a delta since a base, on top of files: the epoch that each is filed under, and its own."""
    layers = [{"attempt": 1, "filed": filed, "epoch": of} for filed, of in below]
    task = {"task": "count", "index": 0, "attempt": 1, "filed": epoch, "epoch": epoch, "base": base, "below": layers}
    entry = Manifest(Epoch(epoch), Attempt(1), Mode.ALIGNED, {}, {})
    return CutDocuments(Link(1, entry, None, "", None), entry, {"tasks": [task]}, {}, {})


def test_a_list_may_go_on_with_that_of_neither_the_previous_cut_nor_the_base():
    """Cuts 3, 4 and 10 were open together, and the delta of 10 supersedes that of 3, which a compaction holds."""
    cuts = {cut.epoch: cut for cut in (cut_of(1, None), cut_of(3, 1, (1, 1)), cut_of(4, 1, (1, 1)))}
    last = cut_of(10, 1, (8, 3))
    (id,) = last.tasks
    assert not list(check_lists(last, cuts, 4))
    assert continued(id, last.tasks[id], cuts, 4) is cuts[3]
    of_none = cut_of(10, 1, (8, 2))
    assert not list(check_lists(of_none, cuts, 4)), "the cut that it went on with is gone"
    assert [found.statement for found in check_lists(of_none, cuts | {2: cut_of(1, None)}, 4)] == [8]

"""A manifest or an entry that contradicts the files of its cut, or another document, is found though all is sealed."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backedge.recovery.stores.documents import sealed
from proof.runner import run_seed
from tests.spark.forging import Facts, ForgedChannels, before_rows, plain
from tests.spark.simulated import write_run

SEEDS = {"lists": 67, "loop": 3, "loops": 7, "rounds": 41}
"""A loop with deltas and output; overlapping loops; rounds whose operators have state of their own."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("jobs")
    return {name: write_run(run_seed(seed, 3)[1], folder / name) for name, seed in SEEDS.items()}


Is = Callable[[Facts], Any]


class Subject(ForgedChannels):
    """A copy of a job, to be changed in the cut of the first task that is as wanted."""

    epoch = 0

    def first(self, what: Is) -> Facts:
        """The first task of the job's cuts of which this is true. Its cut is the one that is changed."""
        for epoch, manifest in sorted(self.manifests.items()):
            self.epoch = epoch
            for task in manifest["tasks"]:
                if what(task):
                    return task
        raise LookupError("the seed has another schedule now: choose one that has such a task")

    def first_operator(self, what: Is) -> Facts:
        """The first operator of which this is true."""
        task = self.first(lambda task: any(map(what, task["operators"])))
        return next(filter(what, task["operators"]))

    def list_transactions(self, task: Facts, names: list[str]) -> None:
        """Let manifest and chain list these for a task."""
        task["transactions"] = names
        for document in (self.manifests[self.epoch], self.entry(self.epoch)):
            others = [row for row in document["transactions"] if row[:2] != [task["task"], task["index"]]]
            document["transactions"] = [*others, [task["task"], task["index"], names]] if names else others

    def change_graph(self, change: Callable[[Facts], None]) -> None:
        (file,) = self.path.glob("graph-*.json")
        document = plain(file)
        change(document["graph"])
        file.write_bytes(sealed(document, None))
        self.epoch = min(self.manifests)

    def move(self, name: str, new: str) -> str:
        (self.path / new).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.path / name, self.path / new)
        return new


def sent(task: Facts) -> list[Facts]:
    return [end for end in task["channels"] if end["direction"] == "in"]


# -- what is forged: each returns the words that the finding must have ---------------------------------------------


def leave_out_transactions(cut: Subject) -> str:
    task = cut.first(lambda task: task["transactions"])
    cut.list_transactions(task, [])
    return "table=transactions"


def leave_out_one_transaction(cut: Subject) -> str:
    task = cut.first(lambda task: len(task["transactions"]) > 1)
    cut.list_transactions(task, task["transactions"][1:])
    return "table=transactions"


def invent_a_transaction(cut: Subject) -> str:
    task = cut.first(lambda task: task["transactions"])
    cut.list_transactions(task, [*task["transactions"], task["transactions"][0].replace("epoch-", "epoch-1")])
    return "table=transactions"


def invent_a_transaction_where_there_is_none(cut: Subject) -> str:
    task = cut.first(lambda task: not task["transactions"] and task["task"] == "count")
    cut.list_transactions(task, ["done.0.attempt-1.epoch-1"])
    return "table=transactions"


def invent_state_of_a_task(cut: Subject) -> str:
    cut.first_operator(lambda facts: facts["kind"] == "stateful_map" and not facts["has_whole"])["has_whole"] = True
    return "table=state"


def hide_state_of_a_task(cut: Subject) -> str:
    cut.first_operator(lambda facts: facts["has_whole"])["has_whole"] = False
    return "table=state"


def say_another_round(cut: Subject) -> str:
    cut.first(lambda task: task["rounds"])["rounds"]["current"] = [77]
    return "table=rounds"


def say_between_two_rounds(cut: Subject) -> str:
    rounds = cut.first(lambda task: task["rounds"] and task["rounds"]["in_a_round"])["rounds"]
    rounds["in_a_round"] = False
    return "table=rounds"


def say_no_rounds(cut: Subject) -> str:
    cut.first(lambda task: task["rounds"])["rounds"] = None
    return "rounds"


def show_another_round_beside_the_pickle(cut: Subject) -> str:
    task = cut.first(lambda task: task["rounds"])
    (name,) = [file["name"] for file in task["files"] if "/table=rounds/" in file["name"]]
    cut.change(name, lambda rows: [{**rows[0], "current": "77"}])
    return "differs from its pickle"


def break_the_rounds(cut: Subject) -> str:
    task = cut.first(lambda task: task["rounds"])
    (name,) = [file["name"] for file in task["files"] if "/table=rounds/" in file["name"]]
    cut.change(name, lambda rows: [{**rows[0], "data": pickle.dumps((1, 2), 5)}])
    return "table=rounds"


def change_figures(**changes: Any) -> Callable[[Subject], str]:
    def change(cut: Subject) -> str:
        cut.first(lambda task: task["logs"])["logs"][0].update(changes)
        return "log"

    change.__name__ = f"say_that_a_log_has_other_{'_'.join(changes)}"
    return change


def invent_a_log(cut: Subject) -> str:
    task = cut.first(lambda task: not task["logs"] and sent(task))
    task["logs"].append({"loop": "again", "batches": 0, "size": 0, "records": 0})
    return "log"


def file_a_log_under_another_loop(cut: Subject) -> str:
    task = cut.first(lambda task: any(log["loop"] == "again" for log in task["logs"]))
    (log,) = [log for log in task["logs"] if log["loop"] == "again"]
    (file,) = [file for file in task["files"] if "/loop=again/" in file["name"]]
    log["loop"] = "other"
    file["name"] = cut.move(file["name"], file["name"].replace("/loop=again/", "/loop=other/"))
    return "'other'"


def exchange_two_logs(cut: Subject) -> str:
    """Each file has the other's batches, and each figure fits its file."""
    task = cut.first(lambda task: len(task["logs"]) > 1)
    files = [file for file in task["files"] if "/table=log/" in file["name"]][:2]
    one, other = ((cut.path / file["name"]).read_bytes() for file in files)
    (cut.path / files[0]["name"]).write_bytes(other)
    (cut.path / files[1]["name"]).write_bytes(one)
    return "table=log"


def rename_a_split(cut: Subject) -> str:
    split = cut.first_operator(lambda facts: facts["splits"])["splits"][0]
    split[0] += "x"
    return f"{split[0]}"


def add_a_split(cut: Subject) -> str:
    splits = cut.first_operator(lambda facts: facts["splits"])["splits"]
    splits.append(["7-of-8", pickle.dumps(0, 5).hex()])
    return "7-of-8"


def say_that_inputs_ended(cut: Subject) -> str:
    task = cut.first(lambda task: any(not end["ended"] and not end["is_back"] for end in sent(task)))
    for end in sent(task):
        end["ended"] = True
    return "ended"


def say_that_an_input_goes_on(cut: Subject) -> str:
    task = cut.first(lambda task: not task["ended"] and any(end["ended"] for end in sent(task)))
    for end in sent(task):
        end["ended"] = False
    return "ended"


def name_a_loop_by_nothing(cut: Subject) -> str:
    def change(graph: Facts) -> None:
        next(edge for edge in graph["edges"] if edge["loop"] is None)["loop"] = ""

    cut.change_graph(change)
    return "loop"


def give_an_edge_another_end(cut: Subject) -> str:
    """The hash covers names of edges, not their ends."""

    def change(graph: Facts) -> None:
        edge = next(edge for edge in graph["edges"] if len(edge["input"]) > 1)
        edge["input"] = edge["input"][:-1]

    cut.change_graph(change)
    return "does not match its ends"


def limit_rounds_of_no_loop(cut: Subject) -> str:
    def change(graph: Facts) -> None:
        next(edge for edge in graph["edges"] if edge["loop"] is None)["max_rounds"] = 7

    cut.change_graph(change)
    return "max_rounds"


def call_a_map_a_source(cut: Subject) -> str:
    def change(graph: Facts) -> None:
        next(operator for operator in graph["operators"] if operator["kind"] not in ("source", "sink"))["source"] = "X"

    cut.change_graph(change)
    return "source"


def say_whether_files_are_settled(cut: Subject) -> str:
    """A restore refuses such a manifest."""
    cut.first(lambda task: True)["is_settled"] = True
    return "is_settled"


def start_an_attempt_from_the_beginning(cut: Subject) -> str:
    start = next(entry for entry in reversed(cut.entries) if entry["kind"] == "attempt" and entry["restored"])
    start["restored"] = None
    cut.epoch = max(cut.manifests)
    return f"attempt {start['attempt']}"


def start_an_attempt_from_an_older_cut(cut: Subject) -> str:
    start = next(entry for entry in reversed(cut.entries) if entry["kind"] == "attempt" and entry["restored"])
    start["restored"] = min(cut.manifests)
    cut.epoch = max(cut.manifests)
    return f"attempt {start['attempt']}"


def leave_out_a_delta_behind_a_compaction(cut: Subject) -> str:
    """The first file is called a compaction of an epoch that no cut has, so that it is not compared."""

    def without_cut(task: Facts) -> set[int]:
        return set(range(task["below"][1]["epoch"], cut.epoch)) - cut.manifests.keys()

    task = cut.first(lambda task: len(task["below"]) > 1 and not task["ended"] and without_cut(task))
    epoch = max(without_cut(task))
    del task["below"][1]
    first = task["below"][0]
    (file,) = first["files"]
    file["name"] = cut.move(file["name"], file["name"].replace(f"epoch={first['filed']}/", f"epoch={epoch}/"))
    first.update(filed=epoch, epoch=epoch)
    task["base"] = epoch
    for row in cut.entry(cut.epoch)["states"]:
        if row[:2] == [task["task"], task["index"]]:
            row[2] = [[first["attempt"], epoch, *row[2][0][2:]], *row[2][2:]]
    return f"the base {epoch}"


FORGERIES: list[tuple[str, Callable[[Subject], str]]] = [
    ("loop", leave_out_transactions),
    ("rounds", leave_out_one_transaction),
    ("loop", invent_a_transaction),
    ("loop", invent_a_transaction_where_there_is_none),
    ("loop", invent_state_of_a_task),
    ("rounds", hide_state_of_a_task),
    ("rounds", say_another_round),
    ("rounds", say_between_two_rounds),
    ("rounds", say_no_rounds),
    ("rounds", show_another_round_beside_the_pickle),
    ("rounds", break_the_rounds),
    ("loop", change_figures(batches=1)),
    ("loop", change_figures(size=7)),
    ("loop", change_figures(records=123_456)),
    ("loop", change_figures(records=None)),
    ("loop", invent_a_log),
    ("loop", file_a_log_under_another_loop),
    ("loops", exchange_two_logs),
    ("loop", rename_a_split),
    ("loop", add_a_split),
    ("loop", say_that_inputs_ended),
    ("loop", say_that_an_input_goes_on),
    ("loop", name_a_loop_by_nothing),
    ("rounds", give_an_edge_another_end),
    ("loop", limit_rounds_of_no_loop),
    ("loop", call_a_map_a_source),
    ("loop", say_whether_files_are_settled),
    ("loop", start_an_attempt_from_the_beginning),
    ("loop", start_an_attempt_from_an_older_cut),
    ("lists", leave_out_a_delta_behind_a_compaction),
]


@pytest.mark.parametrize(("run", "forge"), FORGERIES, ids=[forge.__name__ for _, forge in FORGERIES])
def test_a_sealed_contradiction_is_found(
    jobs: dict[str, Path], tmp_path: Path, run: str, forge: Callable[[Subject], str]
):
    cut = Subject(jobs[run], tmp_path / "copy")
    words = forge(cut)
    verdict = before_rows(cut.seal(), cut.epoch)
    found = [str(one) for one in verdict.findings if one.epoch in (cut.epoch, None)]
    assert any(words in told for told in found), "\n".join(verdict.lines())


@pytest.mark.parametrize("run", SEEDS)
def test_a_job_that_was_only_sealed_again_has_no_contradiction(jobs: dict[str, Path], tmp_path: Path, run: str):
    cut = Subject(jobs[run], tmp_path / "copy")
    cut.seal()
    for epoch in cut.manifests:
        verdict = before_rows(cut.path, epoch)
        assert verdict.consistent, "\n".join(verdict.lines())

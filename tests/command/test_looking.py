"""`backedge jobs`, `status`, `state`, `inflight`, `snapshots diff` and `delete`, in a folder of jobs."""

from __future__ import annotations

import json
import pickle
import re
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from pytest import MonkeyPatch

from backedge.command import main
from backedge.graphs.ids import Epoch
from backedge.inspecting import jobs
from backedge.page.page_source import PageSource
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.run_status import (
    ChannelStatus,
    CountedStatus,
    EpochStatus,
    FailureStatus,
    HistogramStatus,
    LoopStatus,
    OperatorStatus,
    RunStatus,
    TaskStatus,
)
from backedge.recovery.stores.store_errors import StoreError
from backedge.status_command import head_lines
from tests.stores.layered import Cuts
from tests.stores.snapshots import (
    DEPLOYMENT,
    RANK,
    SINK,
    SOURCE,
    begin,
    complete,
    held,
    manifest_for,
    snapshots_of,
    write,
)
from tests.stores.test_opening import let_others_reach, somebody_without_rights

GRAPH = {
    "name": "job",
    "operators": [
        {"name": name, "kind": kind, "inputs": [], "outputs": [], "numbered": False, "source": source, "sink": sink}
        | {"state_version": 1}
        for name, kind, source, sink in (
            ("orders", "source", "Items", None),
            ("cleaned", "map", None, None),
            ("rank", "process", None, None),
            ("counts", "stateful_map", None, None),
            ("done", "sink", None, "Collect"),
        )
    ],
    "edges": [
        {"name": name, "sender": sender, "output": "out", "receiver": receiver, "input": "in", "routing": "hash"}
        | {"by": None, "loop": loop, "max_rounds": rounds, "endless": False}
        for name, sender, receiver, loop, rounds in (
            ("orders.out->rank.in", "cleaned", "rank", None, None),
            ("rank.out->rank.in", "rank", "rank", "again", 9),
            ("rank.done->done.in", "counts", "done", None, None),
        )
    ],
}


pytestmark = pytest.mark.usefixtures("no_cluster")


@pytest.fixture
def store(tmp_path: Path) -> CutStore:
    """A job with two cuts of three tasks, one of which has a loop."""
    store = CutStore(str(tmp_path), "job")
    begin(store)
    store.describe_graph("abc", GRAPH)
    complete(store, 1)
    complete(store, 2)
    return store


class Call:
    """Calls the command as its entry point does; `json` has its answer read."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._printed = capsys

    def __call__(self, *words: str | Path) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *self._printed.readouterr()

    def json(self, *words: str | Path) -> Any:
        code, out, err = self(*words, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(capsys)


# -- jobs and status -----------------------------------------------------------------------------------------------


def test_jobs_of_a_folder_are_listed_with_what_is_certain(store: CutStore, tmp_path: Path, call: Call):
    begin(CutStore(str(tmp_path), "other"))
    found = call.json("jobs", "--snapshots", tmp_path)["jobs"]
    told = [(job["job"], job["state"], job["is_live"], job["last_epoch"], job["cuts"]) for job in found]
    assert told == [("job", "unfinished", False, 2, 2), ("other", "unfinished", False, None, 0)]
    code, out, _ = call("jobs", "--snapshots", tmp_path)
    assert code == 0 and [line.split()[0] for line in out.splitlines()] == ["job", "job", "other"]


def test_a_damaged_job_does_not_hide_the_others(store: CutStore, tmp_path: Path, call: Call):
    begin(CutStore(str(tmp_path), "torn"))
    (tmp_path / "torn" / "job.json").write_text("{")
    code, out, err = call("jobs", "--snapshots", tmp_path)
    assert (code, "unfinished" in out, err.count("\n"), "torn/job.json" in err) == (1, True, 1, True)


def test_a_folder_whose_name_no_job_has_hides_no_job(store: CutStore, tmp_path: Path, call: Call):
    (tmp_path / "a#b").mkdir()
    (tmp_path / "a#b" / "job.json").write_text("{}")
    assert [job["job"] for job in call.json("jobs", "--snapshots", tmp_path)["jobs"]] == ["job"]


def test_a_file_of_any_time_ends_no_command(store: CutStore, tmp_path: Path, call: Call, monkeypatch: MonkeyPatch):
    monkeypatch.setattr(CutStore, "written_s", lambda *_: float(1 << 40))  # some file systems keep no such time
    assert call("snapshots", "list", "--snapshots", tmp_path)[0] == 0
    status = RunStatus("job", "4f", "running", True, 1e20, 5.0, store.root, 1, 2, 2)
    store.keep_status(status)
    assert call("jobs", "--snapshots", tmp_path)[0] == 0


def test_cuts_that_may_only_be_read_are_shown_and_stay_as_they_are(store: CutStore, tmp_path: Path, call: Call):
    let_others_reach(tmp_path)
    everything = [tmp_path, *tmp_path.rglob("*")]
    for path in everything:
        path.chmod(0o555 if path.is_dir() else 0o444)
    at = ("--snapshots", str(tmp_path))
    with somebody_without_rights():
        for words in (
            ["jobs"],
            ["status", "job"],
            ["snapshots", "list"],
            ["snapshots", "show", "2"],
            ["snapshots", "diff", "job", "1", "2"],
            ["state", "job", "counts"],
            ["inflight", "job", "again"],
        ):
            assert call(*words, *at)[::2] == (0, ""), words
        code, _, err = call("snapshots", "delete", "job", "1", *at)
        assert (code, err.count("\n"), "ermission denied" in err) == (2, 1, True)
        with pytest.raises(StoreError, match=r"/job\b.*may not write"):
            CutStore(str(tmp_path), "job").probe()
    assert [tmp_path, *tmp_path.rglob("*")] == everything


def test_a_living_run_is_told_by_its_supervisor_and_not_by_its_store(
    store: CutStore, tmp_path: Path, call: Call, monkeypatch: MonkeyPatch
):
    alive(monkeypatch, store, epochs=())
    (job,) = call.json("jobs", "--snapshots", tmp_path)["jobs"]
    assert (job["state"], job["is_live"], job["attempt"]) == ("running", True, 4)
    assert call.json("status", "job")["records"] == 70
    code, out, _ = call("status", "job", "--snapshots", tmp_path)
    assert code == 0 and "job: running, attempt 4" in out and "from the store" not in out


def test_a_run_of_the_same_name_in_another_folder_is_another_run(
    store: CutStore, tmp_path: Path, call: Call, monkeypatch: MonkeyPatch
):
    alive(monkeypatch, store, snapshots="/another")
    assert call.json("status", "job", "--snapshots", tmp_path)["is_live"] is False
    assert [job["is_live"] for job in call.json("jobs", "--snapshots", tmp_path)["jobs"]] == [True, False]


def alive(monkeypatch: MonkeyPatch, store: CutStore, **changed: Any) -> RunStatus:
    """A run of this store that is alive on the cluster."""
    known: dict[str, Any] = {"snapshots": store.root, "attempt": 4, "last_epoch": 2, "cuts": 2, "records": 70}
    status = RunStatus("job", "4f", "running", True, 1_000.0, 5.0, **{**known, **changed})
    monkeypatch.setattr(jobs, "_runs_on_the_cluster", lambda **_: [status])
    return status


NONE = HistogramStatus()
"""Of a histogram that was asked for and has observed nothing yet."""


def test_the_status_shows_operators_loops_epochs_and_failures(
    store: CutStore, tmp_path: Path, call: Call, monkeypatch: MonkeyPatch
):
    task = TaskStatus(0, "a", 12_000, 5, 30.0, 1, 0.5, 0, calls_running=8, calls_waiting=30)
    alive(
        monkeypatch,
        store,
        operators=(
            OperatorStatus(
                *("rank", ("rank", "counts"), False, False, (task,)),
                counted={"counts": CountedStatus({"words": 1_500}, {"seconds": HistogramStatus(4, 3.0), "new": NONE})},
            ),
        ),
        loops=(LoopStatus("again", ("rank",), 1_234, 5_600, 2.5, {"1": 7, "16": 1}),),
        epochs=(
            EpochStatus(7, 4, "aligned", "given up", "declined by rank/0: no\nroom"),
            EpochStatus(8, 4, "aligned", "open", waiting={"rank/0": "1 barrier missing"}),
        ),
        failures=(FailureStatus(3, 990.0, "process 7 died\x1b[2J", 2, 40, 1.25),),
    )
    code, out, _ = call("status", "job")
    assert code == 0
    rows = {line.split("  ")[0]: line.split() for line in reversed(out.splitlines()) if line}
    assert rows["rank > counts"][3:] == ["1", "12,000", "5", "30", "1", "50", "%", "0", "%"]
    (calls,) = (line for line in out.splitlines() if "calls running" in line)
    assert " ".join(calls.split()) == "rank > counts calls running + waiting 8 + 30 -"
    counts = [line.split()[1:] for line in out.splitlines() if line.startswith("counts")]
    assert counts == [["words", "1,500", "-"], ["seconds", "4", "0.75"], ["new", "0", "-"]]
    assert rows["again"][:5] == ["again", "1,234", "5.6", "kB", "2.5"]
    assert "1: 7, 16: 1" in out
    assert "epoch 8 is open and waits for rank/0: 1 barrier missing" in out
    assert "epoch 7 was given up: declined by rank/0: no room" in out
    assert "attempt 3 failed: process 7 died\\x1b[2J; ran again after 1.25 s, from cut 2 with 40 records" in out


def test_a_job_that_is_not_there_is_answered_with_those_that_are(store: CutStore, tmp_path: Path, call: Call):
    for command in (["status"], ["state"], ["inflight"]):
        more = ["rank"] if command[0] != "status" else []
        code, out, err = call(*command, "jib", *more, "--snapshots", tmp_path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "job 'jib' is not in" in err and "it holds job" in err
    assert not (tmp_path / "jib").exists()


@pytest.mark.parametrize("command", ["jobs --snapshots", "status job --snapshots", "state job rank --snapshots", "ui"])
def test_a_folder_that_does_not_exist_is_refused_by_its_name(command: str, tmp_path: Path, call: Call):
    code, out, err = call(*command.split(), tmp_path / "kuts")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{tmp_path}/kuts is not a folder" in err


def test_figures_of_a_clock_that_is_ahead_are_not_called_old(store: CutStore):
    status = RunStatus("job", "4f", "unfinished", False, 1_000.0, 5.0, store.root, 1, 2, 2)
    (_, old), (_, ahead) = (list(head_lines(status, now_s)) for now_s in (1_060.0, 940.0))
    assert re.search(r"; figures of [0-9-]+ [0-9:]+, 1 min 0 s ago$", old)
    assert re.search(r"; figures of [0-9-]+ [0-9:]+$", ahead)


def test_what_waited_when_a_run_ended_is_not_shown_as_waiting(store: CutStore, tmp_path: Path, call: Call):
    waiting = (ChannelStatus("again", "rank/0", "rank/0", "again", 7, 7, 70, 2.5),)
    ended = RunStatus("job", "4f", "running", True, 1.0, 5.0, store.root, 1, 2, 2, channels=waiting)
    for state, is_shown in (("running", True), ("finished", False)):
        store.keep_status(replace(ended, state=state))
        _, out, _ = call("status", "job", "--snapshots", tmp_path)
        assert ("rank/0 -> rank/0" in out) is is_shown


def test_without_a_folder_and_without_a_cluster_there_is_no_place_to_look(call: Call):
    for command in (["jobs"], ["status", "job"], ["state", "job", "rank"]):
        code, _, err = call(*command)
        assert (code, err.count("\n")) == (2, 1)
        assert "--snapshots" in err


# -- state ---------------------------------------------------------------------------------------------------------


def state_of(call: Call, root: Path, *words: str) -> list[dict[str, Any]]:
    return call.json("state", "job", *words, "--snapshots", root)["state"]


def test_the_state_is_shown_by_key_with_timers_and_waiting_inputs(store: CutStore, tmp_path: Path, call: Call):
    entries = state_of(call, tmp_path, "rank")
    values = {json.dumps(entry["key"]): entry["value"] for entry in entries if entry["kind"] == "value"}
    assert values['"a"'] == 1 and values["7"] == "seven" and values['[1, "x"]'] is None
    assert values["true"] == {"k": [1, 2]} and values[str(1 << 70)] == 1
    assert sorted(entry["value"] for entry in entries if entry["kind"] == "timer") == [50, 90, 100]
    assert [entry["value"] for entry in entries if entry["kind"] == "pending"] == [[{"n": 1}, 0], ["waits", 2]]
    assert len(state_of(call, tmp_path, "counts")) == 1_000


def test_one_key_is_found_as_text_or_as_json(store: CutStore, tmp_path: Path, call: Call):
    for word in ("7", '[1, "x"]', "true", str(1 << 70)):
        (entry,) = state_of(call, tmp_path, "rank", word)
        assert json.dumps(entry["key"]) == word
    assert {entry["kind"] for entry in state_of(call, tmp_path, "rank", "a")} == {"value", "timer"}
    assert state_of(call, tmp_path, "counts", "12")[0]["value"] == 144
    assert call("state", "job", "rank", 20_000 * "[", "--snapshots", tmp_path)[0] == 1
    code, out, err = call("state", "job", "rank", "zz", "--snapshots", tmp_path)
    assert (code, out) == (1, "") and "rank has no key zz in cut 2 of job" in err


def test_what_the_encoding_of_the_output_lacks_is_written_as_escapes(
    store: CutStore, tmp_path: Path, monkeypatch: MonkeyPatch
):
    written = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(written, encoding="ascii"))
    assert main(["state", "job", "rank", "--snapshots", str(tmp_path)]) == 0
    assert rb'"\xe4" ' in written.getvalue()


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_by_looking(tmp_path: Path, call: Call):
    sprung = tmp_path / "sprung"
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists(), "the trap works"
    sprung.unlink()
    cuts = Cuts(tmp_path / "cuts")
    cuts.store.describe_graph("abc", GRAPH)
    cuts.complete(1, held({"a": Trap(sprung), "b": 1}))
    cuts.complete(2, held({"b": Trap(sprung)}), base=1)
    sprung.unlink(missing_ok=True)  # a class that is new to the process is read back once
    (entry,) = state_of(call, tmp_path / "cuts", "rank", "a")
    assert entry["value"]["class"] == "pathlib.Path.touch"
    for words in (["snapshots", "diff", "job", "1", "2"], ["inflight", "job", "again"], ["status", "job"]):
        assert call(*words, "--snapshots", tmp_path / "cuts")[0] == 0
    assert not sprung.exists()


def test_names_and_values_from_files_are_printed_escaped(tmp_path: Path, call: Call):
    cuts = Cuts(tmp_path)
    cuts.complete(1, held({"a\x1b[2J\nb": "c\u202ed"}))
    _, out, _ = call("state", "job", "rank", "--snapshots", tmp_path)
    assert out.isascii() and "\x1b" not in out and len(out.splitlines()) == 3


def test_a_long_state_is_cut_short_for_people_and_whole_for_programs(store: CutStore, tmp_path: Path, call: Call):
    _, out, _ = call("state", "job", "counts", "--snapshots", tmp_path)
    lines = out.splitlines()
    assert lines[0] == "cut 2: 1,000 entries" and lines[-1] == "and 800 more; --json prints all" and len(lines) == 203


def test_a_wrong_operator_loop_or_cut_is_answered_with_what_exists(store: CutStore, tmp_path: Path, call: Call):
    for words, told in (
        (["state", "job", "rang"], "no operator 'rang'; there are: orders, cleaned, rank, counts, done"),
        (["inflight", "job", "agian"], "no loop 'agian'; there are: again"),
        (["state", "job", "rank", "--epoch", "7"], "epoch 7 is not a cut"),
        (["snapshots", "diff", "job", "1", "7"], "it holds 1, 2"),
        (["snapshots", "delete", "job", "9"], "it holds 1, 2"),
    ):
        code, out, err = call(*words, "--snapshots", tmp_path)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert told in err


def test_state_and_records_in_flight_are_those_of_the_pipeline_that_has_them(tmp_path: Path, call: Call):
    store = CutStore(str(tmp_path), "job")
    store.describe_graph("abc", GRAPH)
    store.describe_graph("def", {**GRAPH, "edges": GRAPH["edges"][:1]})
    for epoch, name, hash, tasks in ((1, "orders", "abc", {SOURCE, RANK, SINK}), (2, "others", "def", {SOURCE})):
        files = write(store, {task: snapshot for task, snapshot in snapshots_of(epoch).items() if task in tasks})
        of_pipeline = replace(
            DEPLOYMENT, plan=replace(DEPLOYMENT.plan, hash=hash), parallelism={task.name: 1 for task in tasks}
        )
        assert store.create(epoch, replace(manifest_for(files, epoch), pipeline=name), files, of_pipeline)
    assert call.json("state", "job", "rank", "--snapshots", tmp_path)["epoch"] == 1
    assert call.json("inflight", "job", "again", "--snapshots", tmp_path)["epoch"] == 1


def test_a_damaged_file_is_refused_and_not_shown(store: CutStore, tmp_path: Path, call: Call):
    for file in Path(store.path, "epoch=2").rglob("table=state/operator=rank/*.parquet"):
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    code, out, err = call("state", "job", "rank", "--snapshots", tmp_path)
    assert (code, out, "was changed" in err) == (2, "", True)


# -- records in flight ---------------------------------------------------------------------------------------------


def test_records_of_the_log_are_shown_with_where_they_come_from(store: CutStore, tmp_path: Path, call: Call):
    found = call.json("inflight", "job", "again", "--snapshots", tmp_path)
    assert [record["record"] for record in found["records"]] == ["old", "x", "y", {"id": 1}]
    assert {record["receiver"] for record in found["records"]} == {"rank/0"}
    assert [record["rounds"] for record in found["records"]] == [0, 0, 0, 0]
    _, out, _ = call("inflight", "job", "again", "--snapshots", tmp_path)
    assert out.splitlines()[0] == "cut 2: 4 records in flight"


# -- diff ----------------------------------------------------------------------------------------------------------


def test_two_cuts_differ_in_the_keys_that_were_added_removed_and_changed(tmp_path: Path, call: Call):
    cuts = Cuts(tmp_path)
    cuts.complete(1, held({"a": 1, "b": 2, "c": 3}, [("c", 50, 0)]))
    cuts.complete(2, held({"a": 10, "d": 4}, gone=["b", "c"]), base=1)
    found = call.json("snapshots", "diff", "job", "1", "2", "--snapshots", tmp_path)
    (state,) = found["state"]
    assert (state["added"], state["removed"], state["changed"], state["other"]) == (1, 2, 1, 1)
    assert state["keys"] == {'"a"': ["1", "10"], '"d"': [None, "4"], '"b"': ["2", None], '"c"': ["3", None]}
    _, out, _ = call("snapshots", "diff", "job", "2", "1", "--snapshots", tmp_path)
    assert "rank: 2 keys added, 1 removed, 1 changed; 1 timers, waiting inputs or states of tasks differ" in out


def test_values_that_cannot_be_read_are_not_called_the_same(tmp_path: Path, call: Call):
    cuts = Cuts(tmp_path)
    cuts.complete(1, held({"a": np.zeros(2, complex), "b": 1}))
    cuts.complete(2, held({"a": np.ones(2, complex), "b": 1}))
    (state,) = call.json("snapshots", "diff", "job", "1", "2", "--snapshots", tmp_path)["state"]
    assert (state["added"], state["removed"], state["changed"], state["unread"]) == (0, 0, 0, 1)
    _, out, _ = call("snapshots", "diff", "job", "1", "2", "--snapshots", tmp_path)
    assert "1 value cannot be read, and may differ" in out and "the same" not in out
    (row,) = PageSource(str(tmp_path), None, tuple).diff("job", 1, 2, "")["entries"]
    assert row["after"] == "1 may differ"


# -- delete --------------------------------------------------------------------------------------------------------


def kept(root: Path) -> list[int]:
    store = CutStore(str(root), "job")
    return [entry.epoch for entry in store.chain() if isinstance(entry, Manifest) and store.keeps(entry)]


def test_a_cut_is_deleted_without_what_later_cuts_are_on_top_of(tmp_path: Path, call: Call):
    cuts = Cuts(tmp_path)
    cuts.complete(1, held({"a": 1, "b": 2}))
    cuts.complete(2, held({"a": 10}), base=1)
    cuts.complete(3, held({"c": 3}))
    told = call.json("snapshots", "delete", "job", "1", "--snapshots", tmp_path)
    assert (told["deleted"], told["cuts"], kept(tmp_path)) == (1, [2, 3], [2, 3])
    CutStore(str(tmp_path), "job").verify(Epoch(2))
    assert cuts.values(2) == {"a": 10, "b": 2}


def test_the_latest_cut_is_deleted_only_by_force(store: CutStore, tmp_path: Path, call: Call):
    words = ["snapshots", "delete", "job", "2", "--snapshots", str(tmp_path)]
    code, _, err = call(*words)
    assert (code, "--force" in err, kept(tmp_path)) == (2, True, [1, 2])
    assert call(*words, "--force")[0] == 0
    assert kept(tmp_path) == [1]


def test_what_a_living_run_needs_is_not_deleted_even_by_force(
    store: CutStore, tmp_path: Path, call: Call, monkeypatch: MonkeyPatch
):
    complete(store, 3)
    alive(monkeypatch, store, last_epoch=3, epochs=(EpochStatus(4, 4, "aligned", "open", base=2),))
    for epoch, why in ((3, "is the latest"), (2, "epoch 4 is being written on top of cut 2")):
        code, _, err = call("snapshots", "delete", "job", str(epoch), "--force", "--snapshots", tmp_path)
        assert code == 2 and why in err
    assert call("snapshots", "delete", "job", "1")[0] == 0
    assert kept(tmp_path) == [2, 3]


def test_a_living_run_is_found_though_it_knows_its_folder_by_another_name(
    store: CutStore,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    call: Call,
    monkeypatch: MonkeyPatch,
):
    status = alive(monkeypatch, store, last_epoch=2)
    store.keep_status(status)
    above = tmp_path_factory.mktemp("links") / "above"
    above.symlink_to(tmp_path.parent)
    link = above / tmp_path.name
    code, _, err = call("snapshots", "delete", "job", "2", "--force", "--snapshots", link)
    assert (code, kept(tmp_path)) == (2, [1, 2]) and "whose run is alive" in err
    another = replace(status, run="another", snapshots="/elsewhere")
    monkeypatch.setattr(jobs, "_runs_on_the_cluster", lambda **_: [another])
    assert call("snapshots", "delete", "job", "2", "--force", "--snapshots", link)[0] == 0


# -- the page ------------------------------------------------------------------------------------------------------


def test_the_commands_of_the_page_run(store: CutStore, tmp_path: Path, call: Call):
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    # These need a cluster, look at this machine, or need what a run has kept; tests of their own call them.
    elsewhere = "ui|run|top|logs|doctor|replay"
    commands = re.findall(rf"^    backedge (?!{elsewhere})(.*)$", page, flags=re.MULTILINE)
    names = {"transfers": "job", "accounts": "counts", "cuts": str(tmp_path), "7": "2"}
    for command in commands:
        words = [names.get(word, word) for word in command.split() if word != "3"]
        if words[:2] in (["snapshots", "diff"], ["snapshots", "delete"]):
            words.insert(3, "1")
        assert call(*words)[0] == 0, command
    assert len(commands) == 7

"""A wrong call of `backedge run` and `backedge snapshots`: one line that says what to do, and exit code 2."""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from backedge import living_commands
from backedge.command import main
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.launch_checks import RunExistsError
from backedge.engine.on_ray.run_spec import RequestFailedError, RunFailedError
from backedge.following import JsonFile
from backedge.recovery.stores.cut_store import CutStore
from tests.gates import HANG_S
from tests.jobs.rays import SharedRay
from tests.page.stored import two_cuts
from tests.stores.snapshots import begin

MODULE = """
from backedge import Collect, Flow, Items


def flow(size: int = 3, name: str = "sizes"):
    flow = Flow(name)
    flow.read(Items(list(range(size)))).write(Collect(), name="sizes")
    return flow

fixed = flow()
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "module_to_run.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != ""])
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield
    sys.modules.pop("module_to_run", None)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a call says that must be refused in one line."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["module_to_run:flow", "--set", "sise=3"], r"'sise'.*--set.*\bsize, name"),
        (["module_to_run:flow", "--set", "size"], r"--set 'size'.*\bkey=value"),
        (["module_to_run:flow", "--set", "size=1", "--set", "size=2"], r"--set .*\bsize twice"),
        (["module_to_run:fixed", "--set", "size=1"], r"\bfixed\b.*\bFlow\b.*--set size="),
        (["module_to_run:flow", "--kill", "head"], r"--kill .*\bhead\b.*WHO@WHEN"),
        (["module_to_run:flow", "--resume", "7"], r"--snapshots"),
        (["module_to_run:flow", "--resume", "7", "--snapshots", "nowhere"], r"\bnowhere\b.*'sizes'"),
        (["module_to_run:flow", "--set", f"size={20_000 * '['}"], r"TypeError: 'str' object"),
        (["module_to_run:flow", "--set", "size=abc"], r"TypeError: 'str' object.*\bmodule_to_run\.py:7\b"),
        (["module_to_run:flow", "--json-out", "module_to_run.py/run.json"], r"--json-out module_to_run\.py/run\.json"),
        (["module_to_run:flow", "--json-out", "."], r"--json-out \. .*\bfolder\b"),
        (["module_to_run:flow", "--json-out", "nothing://at/all"], r"--json-out nothing://at/all "),
        (["module_to_run:flow", "--control"], r"--control: .*--ui"),
        (["module_to_run:flow", "--snapshots", "cuts", "--rename", "a=b", "--rename", "a=c"], r"--rename .*\ba twice"),
    ],
)
def test_a_wrong_run_is_refused_in_one_line(words: list[str], named: str, capsys: pytest.CaptureFixture[str]):
    said = refused(capsys, "run", *words)
    assert said.startswith("backedge run: ")
    assert re.search(named, said), said


RUN = ["run", "module_to_run:flow"]


@pytest.mark.parametrize(
    "words",
    [
        [*RUN, "--parallelism", "²"],
        [*RUN, "--snapshots", ""],
        ["audit", ""],
        ["audit", ".", "--epoch", "²"],
        ["audit", ".", "--key-file", ""],
        ["prepare", "", ""],
        ["snapshots", "list", "--snapshots", ""],
        ["snapshots", "check", "module_to_run:flow", "--snapshots", ".", "--job", "another"],
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["audit", ".", "--invariant", "sum=SELECT 1", "--invariant", "sum=SELECT 2"], r"--invariant .*\bsum twice"),
        (["rescale", "sizes", "--parallelism", "done=2", "--parallelism", "done=3"], r"parallelism .*\bdone twice"),
        (["replay", "sizes", "--epoch", "1", "--operator", "sizes", "--set", "size=2"], r"--set size=2 .*--flow"),
        (["snapshots", "check", "module_to_run:flow", "--snapshots", "."], r"--snapshots \. .*\bjob\b"),
    ],
)
def test_words_of_which_some_would_count_for_nothing_are_refused(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
):
    said = refused(capsys, *words)
    assert re.search(named, said), said


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_replaced_by_one_that_leads_nowhere(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, name, None)
    assert main(["graph", "nothing"]) == 2
    with getattr(sys, name) as stream:
        assert not stream.isatty()
    assert capsys.readouterr().out == ""


def test_a_refused_call_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    before = set(tmp_path.iterdir())
    refused(capsys, "run", "module_to_run:flow", "--resume", "7", "--snapshots", ".")
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"__pycache__"}


@pytest.fixture
def unconnected(shared_ray: SharedRay) -> None:
    """A process that is connected to no Ray looks for the one in RAY_ADDRESS."""
    shared_ray.end()


@pytest.mark.usefixtures("unconnected")
def test_a_cluster_where_nothing_listens_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{taken.getsockname()[1]}")
        said = refused(capsys, "run", "module_to_run:flow")
    assert "RAY_ADDRESS=127.0.0.1:" in said and "local Ray" in said


@pytest.mark.usefixtures("unconnected")
def test_a_cluster_of_a_name_that_no_machine_has_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("RAY_ADDRESS", "head..local:6379")
    assert "RAY_ADDRESS=head..local:6379" in refused(capsys, "jobs")


@pytest.fixture
def two_rays(unconnected: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes of this machine have started a Ray for themselves, without `ray start`."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "_noted_address", lambda: None)
    monkeypatch.setattr(cluster, "_running_here", lambda: {"192.0.2.9:1", "192.0.2.9:2"})


@pytest.mark.usefixtures("two_rays")
@pytest.mark.parametrize("words", [["jobs"], ["status", "shop"], ["top"], ["logs", "shop"], ["cancel", "shop"], ["ui"]])
def test_a_cluster_is_not_chosen_by_chance(words: list[str], capsys: pytest.CaptureFixture[str]):
    said = refused(capsys, *words)
    assert "name one in RAY_ADDRESS, 192.0.2.9:1 or 192.0.2.9:2" in said


@pytest.mark.usefixtures("unconnected")
@pytest.mark.parametrize("words", [["jobs"], ["status", "shop"]])
def test_a_command_that_is_given_a_folder_searches_for_no_cluster(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    begin(CutStore(str(tmp_path), "shop"))
    searched: list[bool] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "connect", lambda **_: searched.append(True))
    assert main([*words, "--snapshots", str(tmp_path)]) == 0
    assert not searched and "shop" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.usefixtures("unconnected")
def test_a_port_where_something_else_listens_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.getsockname()[1]}")
        answering = threading.Thread(target=_answer_all, args=(server,), daemon=True)
        answering.start()
        said = refused(capsys, "run", "module_to_run:flow")
        server.shutdown(socket.SHUT_RDWR)
    answering.join(timeout=HANG_S)
    assert "RAY_ADDRESS=127.0.0.1:" in said and "does not answer like a Ray cluster" in said


def _answer_all(server: socket.socket) -> None:
    """A server of something else."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["list", "--snapshots", "nowhere"], r"--snapshots nowhere .*\bfolder\b"),
        (["list", "--snapshots", "."], r"--snapshots \. .*\bjob\b"),
        (["show", "1", "--snapshots", "."], r"--snapshots \. .*\bjob\b"),
    ],
)
def test_a_folder_without_cuts_is_refused(words: list[str], named: str, capsys: pytest.CaptureFixture[str]):
    said = refused(capsys, "snapshots", *words)
    assert re.search(named, said), said


def test_the_uri_of_a_folder_is_that_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = tmp_path / "of May"
    begin(CutStore(str(folder), "sizes"))
    words = ["module_to_run:flow", "--resume", "7", "--snapshots", folder.as_uri()]
    assert f"epoch 7 is not a complete cut in {folder}/sizes" in refused(capsys, "run", *words)
    JsonFile((folder / "run.json").as_uri()).write({})
    assert (folder / "run.json").read_text() == "{}\n"


def test_settings_reach_the_function_that_makes_the_flow(capsys: pytest.CaptureFixture[str]):
    said = refused(capsys, "run", "module_to_run:flow", "--set", "name=../x", "--set", "size=2")
    assert "'../x'" in said


def test_a_preparation_for_too_many_tasks_is_refused_before_spark_is_started(capsys: pytest.CaptureFixture[str]):
    said = refused(capsys, "prepare", "rows.csv", "prepared", "--tasks", "999")
    assert "tasks=999" in said and "1 to 128" in said


def test_a_link_that_leads_to_itself_is_no_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "link").symlink_to("link")
    said = refused(capsys, "prepare", str(tmp_path / "link"), str(tmp_path / "prepared"))
    assert f"{tmp_path}/link does not exist" in said


@pytest.mark.parametrize(
    ("option", "place", "told"),
    [
        ("--page", "nowhere/audit.html", "no folder nowhere"),
        ("--page", ".", "is a folder"),
        ("--parquet", "file/tables", "file is a file: name a folder"),
    ],
)
def test_what_an_audit_cannot_write_is_refused_before_spark_is_started(
    option: str,
    place: str,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("backedge.recovery.spark.sessions.spark_session.session_for", None)
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    two_cuts(tmp_path / "cuts")
    assert told in refused(capsys, "audit", str(tmp_path / "cuts" / "job"), option, place)


def test_a_folder_that_holds_a_run_is_refused_with_the_options_of_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object, **__: object) -> None:
        raise RunExistsError("cuts/sizes holds a run of 'sizes' already")

    monkeypatch.setattr("backedge.run_command.start_run", refuse)
    said = refused(capsys, "run", "module_to_run:flow", "--snapshots", str(tmp_path / "cuts"))
    assert "run of 'sizes'" in said and "--resume latest" in said
    assert "resume=" not in said


@pytest.mark.parametrize("words", [["rescale", "--parallelism", "count=3"], ["savepoint"]])
@pytest.mark.parametrize(("is_for_good", "code"), [(True, 2), (False, 1)])
def test_a_refusal_that_stays_is_a_wrong_call_and_one_that_may_pass_is_not(
    words: list[str], is_for_good: bool, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Refusing:
        """A run that refuses everything."""

        def rescale(self, parallelism: object) -> int:
            raise RequestFailedError("it is refused", is_for_good=is_for_good)

        savepoint = rescale

    monkeypatch.setattr(living_commands, "attach", lambda job, progress: Refusing())
    command, *options = words
    assert main([command, "shop", *options]) == code
    assert capsys.readouterr().err == f"backedge {command}: it is refused\n"


def test_a_ray_that_does_not_come_up_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    def init(**options: object) -> None:
        # In these words, and as this type, Ray 2.60 gives up on a busy machine.
        raise Exception("The current node timed out during startup. This could happen")

    monkeypatch.setattr(cluster, "is_connected", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", init)
    said = refused(capsys, "run", "module_to_run:flow")
    assert "Ray did not start: The current node timed out" in said
    assert "try again later" in said


@pytest.mark.parametrize("words", [["rescale", "--parallelism", "3"], ["savepoint"], ["rate", "orders", "5/s"]])
@pytest.mark.parametrize("part", ["cluster", "supervisor"])
def test_a_run_that_is_lost_meanwhile_is_reported_in_one_line(
    words: list[str], part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    class Lost:
        """A run whose cluster or supervisor is gone."""

        def rescale(self, *_: object) -> int:
            raise (RunFailedError if part == "cluster" else cluster.RayError)(f"the {part} is gone")

        savepoint = rate = rescale

    monkeypatch.setattr(living_commands, "attach", lambda job, progress: Lost())
    command, *options = words
    assert main([command, "shop", *options]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"backedge {command}: ") and said.count("\n") == 1 and f"the {part} is gone" in said

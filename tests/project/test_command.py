"""The command `backedge`, called as its entry point calls it."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import backedge_command
from backedge.command import main
from backedge.flows import told_in_a_line
from backedge.following import Following
from backedge.version import VERSION

MODULE = """
from backedge import Collect, Flow, Items

flow = Flow("retries")
again = flow.loop("again", max_rounds=5)
done, failed = flow.read(Items([1, 2])).merge(again).map(lambda n: n + 1, name="attempt").split(lambda n: n > 3)
again.feed(failed)
done.write(Collect())

open_loop = Flow("open")
open_loop.read(Items([1])).merge(open_loop.loop("forgotten")).write(Collect())
number = 7


def made():
    return flow


def made_wrong():
    return number


def made_of(parts, *others, size=3):
    return flow
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with flows in the current folder, which is not on the path."""
    name = "module_with_flows"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != ""])
    yield name
    sys.modules.pop(name, None)


def test_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"backedge {VERSION}\n"


def test_graph_draws_a_flow_or_what_a_function_gives_in_each_format(module: str, capsys: pytest.CaptureFixture[str]):
    places = ("{}:flow", "{}:made", "./{}:flow", "{}.py:flow", "./{}.py:flow")
    formats = {"text": "flow retries", "mermaid": "flowchart", "dot": "digraph", "svg": "<svg"}
    drawings = [([place], "flow retries") for place in places]
    drawings += [([places[0], "--format", name], mark) for name, mark in formats.items()]
    for words, mark in drawings:
        assert main(["graph", *(word.format(module) for word in words)]) == 0
        drawn = capsys.readouterr().out
        assert mark in drawn and "attempt" in drawn


def test_graph_that_cannot_run_is_refused_with_the_reason(module: str, capsys: pytest.CaptureFixture[str]):
    assert main(["graph", f"{module}:open_loop"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{module}:open_loop cannot run: " in said.err
    assert "forgotten" in said.err


@pytest.mark.parametrize(
    ("where", "complaint"),
    [
        ("flow", r"'flow'.*MODULE:NAME"),
        (":flow", r"':flow'.*MODULE:NAME"),
        ("no_such_module:flow", r"'no_such_module'"),
        ("../module_with_flows:flow", r"'\.\./module_with_flows'.*folder"),
        ("module_with_flows:flaw", r"flow, open_loop\b.*made, made_of"),
        ("module_with_flows:number", r"'number'.*\bint\b.*\bFlow\b"),
        ("module_with_flows:made_wrong", r"'made_wrong'.*\bint\b.*\bFlow\b"),
        ("module_with_flows:made_of", r"made_of\b.*--set parts=VALUE"),
        ("os:getcwd", r"'getcwd'.*\bFlow\b"),
    ],
)
def test_wrong_call_says_what_is_wrong(module: str, where: str, complaint: str, capsys: pytest.CaptureFixture[str]):
    assert main(["graph", where]) == 2
    said = capsys.readouterr().err
    assert re.search(complaint, said), said


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("import missing_here\n", r"ModuleNotFoundError.*'missing_here'.* faulty\.py:1\b"),
        ("\nflow = (\n", r"SyntaxError.* faulty\.py:2\b"),
        ("import json\njson.loads('}')\n", r" faulty\.py:2\b"),
        ("import sys\nsys.exit(0)\n", r"SystemExit: 0, at faulty\.py:2\b"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_in_a_line_with_its_place(
    source: str, complaint: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "faulty.py").write_text(source)
    assert main(["graph", "faulty:flow"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and re.search(complaint, said), said


@pytest.mark.slow
def test_only_what_needs_a_cluster_loads_ray(module: str):
    code = (
        "import sys; from backedge.command import main; from backedge.engine.on_ray import cluster;"
        f"print(main(['graph', '{module}:flow', '--format', 'dot']), cluster.is_connected(), 'ray' in sys.modules);"
        "print(cluster.RayError.__module__, 'ray' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-2:] == ["0 False False", "ray.exceptions True"]
    refused = (
        "import sys; from backedge.command import main; print(main(['run', 'no_such:flow']), 'ray' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", refused], capture_output=True, text=True, check=True)
    assert said.stdout == "2 False\n"


INTERRUPTED_WHILE_LOADING = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == "MODULE":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
"""


def interrupted_while_loading(module: str, folder: Path) -> dict[str, str]:
    """The environment of a process that gets Ctrl-C when it loads this module."""
    (folder / "sitecustomize.py").write_text(INTERRUPTED_WHILE_LOADING.replace("MODULE", module))
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "start"),
    [
        ("backedge", ["-c", "from backedge_command import main; main()"]),
        ("backedge.command", ["-c", "from backedge_command import main; main()"]),
        ("numpy", ["-m", "backedge", "--version"]),
        ("backedge.command", ["-m", "backedge", "--version"]),
    ],
)
def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_traceback(module: str, start: list[str], tmp_path: Path):
    environment = interrupted_while_loading(module, tmp_path)
    told = subprocess.run([sys.executable, *start], capture_output=True, text=True, env=environment)
    assert (told.returncode, told.stderr) == (-signal.SIGINT, "")


@pytest.mark.slow
def test_ctrl_c_while_ray_is_loaded_ends_a_run_without_a_traceback(module: str, tmp_path: Path):
    environment = interrupted_while_loading("ray._private.worker", tmp_path)
    command = [sys.executable, "-m", "backedge", "run", f"{module}:flow"]
    told = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (told.returncode, told.stderr) == (130, "")


@pytest.mark.slow
def test_ctrl_c_while_ray_is_loaded_does_not_spoil_what_the_process_does_later(tmp_path: Path):
    code = (
        "from backedge.engine.on_ray import cluster\n"
        "try: cluster.RayError\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "print(cluster.RayError.__module__)"
    )
    environment = interrupted_while_loading("ray._private.worker", tmp_path)
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert said.stdout == "interrupted\nray.exceptions\n"


@pytest.mark.parametrize("reaction", [signal.default_int_handler, signal.SIG_IGN])
def test_once_it_is_loaded_ctrl_c_does_what_it_did_before(reaction: Any, monkeypatch: pytest.MonkeyPatch):
    found: list[Any] = []
    monkeypatch.setattr("backedge.command.main", lambda: found.append(signal.getsignal(signal.SIGINT)) or 0)
    before = signal.signal(signal.SIGINT, reaction)
    try:
        assert backedge_command.main() == 0
        assert found == [signal.getsignal(signal.SIGINT)] == [reaction]
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["graph", "module_with_flows:flow"], ["snapshots", "--help"]])
def test_a_reader_that_has_gone_is_no_fault(module: str, words: list[str]):
    command, environment = [sys.executable, "-m", "backedge", *words], {**os.environ, "PYTHONUNBUFFERED": ""}
    told = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert told.stdout is not None
    told.stdout.close()
    _, fault = told.communicate(timeout=60)
    assert (told.returncode, fault) == (141, "")


def test_a_summary_that_nobody_reads_does_not_change_how_a_run_ended(monkeypatch: pytest.MonkeyPatch):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as nobody:
        monkeypatch.setattr(sys, "stdout", nobody)
        following = Following("run", argparse.Namespace(json=False, json_out=None))
        assert following.obey(lambda: following.tell({}, "finished") or 0) == 0


def test_sigterm_while_a_module_is_imported_is_no_fault_of_the_module(capsys: pytest.CaptureFixture[str]):
    def interrupted() -> int:
        with told_in_a_line("a module raises"):
            signal.raise_signal(signal.SIGTERM)
        return 0

    assert Following("run", argparse.Namespace(json=False, json_out=None)).obey(interrupted) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_command_without_an_output_ends_as_it_does_with_one(module: str):
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-m', 'backedge', *sys.argv[1:]])"
    told = subprocess.run([sys.executable, "-c", code, "graph", f"{module}:flow"], stderr=subprocess.PIPE, text=True)
    assert (told.returncode, told.stderr) == (0, "")


def test_another_pipe_that_breaks_is_not_taken_for_the_reader(module: str, monkeypatch: pytest.MonkeyPatch):
    def break_elsewhere(_: object) -> int:
        raise BrokenPipeError("a socket")

    monkeypatch.setattr("backedge.command._obey", break_elsewhere)
    with pytest.raises(BrokenPipeError, match="a socket"):
        main(["graph", f"{module}:flow"])

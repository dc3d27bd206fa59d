"""An editor and a type checker find the package as `make setup` installs it, and know process classes and operators."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CLEAN = """
from dataclasses import dataclass
from typing import Any, assert_type

from backedge import Context, Flow, Items, OperatorKind, OperatorRuntime, Place, Process, ProcessInputs, Stream


class Polite(Process[str, int]):
    def __init__(self, every: int) -> None:
        self.every = every

    def on_start(self, ctx: Context[int]) -> None:
        print(ctx.task_index, ctx.parallelism)

    def on_record(self, ctx: Context[int], value: str) -> None:
        ctx.state.set(ctx.state.get(0) + 1)
        ctx.set_timer(ctx.now + self.every)
        ctx.emit(len(value))

    def on_timer(self, ctx: Context[int], at_ms: int) -> None:
        ctx.emit(at_ms)

    def on_round_end(self, ctx: Context[int]) -> None: ...

    def on_end(self, ctx: Context[int]) -> None:
        for key in ctx.keys():
            print(key)


class Learner(ProcessInputs[float, float]):
    inputs = ("samples", "weights")

    def on_batch(self, ctx: Context[float], input: str, values: list[float]) -> None:
        ctx.emit(sum(values))


@dataclass(frozen=True)
class Mine(OperatorKind):
    size: int

    def start(self, place: Place) -> OperatorRuntime:
        return OperatorRuntime(place)


class Plain:
    def on_record(self, ctx: Any, value: int) -> None: ...


flow = Flow("typed")
words = flow.read(Items(["a", "b"]))
assert_type(words.key_by(str.upper).process(Polite, every=20, name="polite"), Stream[int])
assert_type(flow.process(Learner, samples=flow.read(Items([1.0])), weights=flow.read(Items([2.0]))), Stream[float])
assert_type(words.process(Plain), Stream[Any])
words.apply(Mine(3), name="mine")
"""

WRONG = """
from backedge import Context, Flow, Items, Process


class Wrong(Process[str, int]):
    def on_record(self, ctx: Context[int], value: int, more: int) -> None:
        ctx.emit("text")

    def on_timer(self, ctx: Context[int]) -> None:
        ctx.emitt(1)

    def on_end(self, ctx: Context[int]) -> None:
        ctx.state.get().add


flow = Flow("typed")
flow.read(Items(["a"])).process(Wrong, on_error="ignore")
flow.read(Items(["a"])).apply(Wrong)
"""


def reports(folder: Path, code: str) -> list[tuple[int, str]]:
    """The lines and rules of what pyright finds in a file of a user's, outside of the checkout."""
    (folder / "mine.py").write_text(code)
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "mine.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    found: list[Any] = json.loads(ran.stdout)["generalDiagnostics"]
    return [(one["range"]["start"]["line"], one.get("rule", one["message"])) for one in found]


@pytest.mark.slow
def test_a_clean_file_of_a_user_passes(tmp_path: Path):
    assert reports(tmp_path, CLEAN) == []


@pytest.mark.slow
def test_mistakes_of_a_user_are_found_where_they_are(tmp_path: Path):
    lines = WRONG.splitlines()
    found = {(lines[line].strip().partition("(")[0], rule) for line, rule in reports(tmp_path, WRONG)}
    assert found == {
        ("def on_record", "reportIncompatibleMethodOverride"),
        ("ctx.emit", "reportArgumentType"),
        ("def on_timer", "reportIncompatibleMethodOverride"),
        ("ctx.emitt", "reportAttributeAccessIssue"),
        ("flow.read", "reportCallIssue"),
        ("flow.read", "reportArgumentType"),
    }

"""What a reader may rely on: small files, small functions, and words that mean something."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("graphs", "recovery", "engine", "backedge", "examples", "bench", "tests", "scripts")
FILE_LINES_MAX = 400
FUNCTION_LINES_MAX = 50
EMPTY_WORDS = {"checkpoint", "node", "worker", "manager", "handler", "utils", "helper"}

FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def long_functions(source: str) -> list[str]:
    found = (part for part in ast.walk(ast.parse(source)) if isinstance(part, FUNCTION))
    lengths = [(part, (part.end_lineno or part.lineno) - part.lineno + 1) for part in found]
    return [f"{part.name} has {lines} lines" for part, lines in lengths if lines > FUNCTION_LINES_MAX]


def named(source: str) -> Iterator[str]:
    """Every name that `source` gives to something."""
    for part in ast.walk(ast.parse(source)):
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
            case _:
                continue


def empty_words(source: str) -> set[str]:
    words = {word.lower() for name in named(source) for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    return words & (EMPTY_WORDS | {f"{word}s" for word in EMPTY_WORDS})


def test_code_is_small_and_named_with_care():
    files = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))
    assert ROOT / "graphs" / "plan.py" in files
    wrong: list[str] = []
    for file in files:
        source = file.read_text()
        complaints = long_functions(source) + [f"names something {word!r}" for word in empty_words(source)]
        lines = source.count("\n")
        complaints += [f"has {lines} lines"] if lines > FILE_LINES_MAX else []
        wrong += [f"{file.relative_to(ROOT)}: {complaint}" for complaint in complaints]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("lines", "complaints"), [(50, []), (51, ["long has 51 lines"])])
def test_a_function_over_the_limit_is_found(lines: int, complaints: list[str]):
    assert long_functions("def long():\n" + "    pass\n" * (lines - 1)) == complaints


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class JobManager: ...", {"manager"}),
        ("def f(node_id): ...", {"node"}),
        ("for worker in pool: ...", {"worker"}),
        ("self.checkpoints = []", {"checkpoints"}),
        ("class Visitor(ast.NodeVisitor): ...", set[str]()),
        ("manage = 'a manager'", set[str]()),
    ],
)
def test_a_word_that_says_nothing_is_found(source: str, found: set[str]):
    assert empty_words(source) == found

"""Who may import whom: graphs <- recovery <- engine <- backedge <- examples, bench, tests, and proof on top of engine.

Ray belongs to engine/on_ray and the command line, PySpark to recovery/spark and the examples' references.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

MAY_IMPORT = {
    "graphs": set[str](),
    "recovery": {"graphs"},
    "engine": {"graphs", "recovery"},
    "backedge": {"graphs", "recovery", "engine"},
    "proof": {"graphs", "recovery", "engine", "backedge"},
    "examples": {"backedge"},
    "bench": {"graphs", "recovery", "engine", "backedge", "proof"},
    "tests": {"graphs", "recovery", "engine", "backedge", "examples", "bench", "proof"},
}
"""For each folder the folders of ours that it may import, itself aside. Examples show users what they can have."""

LINKED = ("graphs", "recovery", "engine")
"""Folders that lie beside `backedge` and are imported as parts of it."""

FOREIGN_HOMES = {
    "ray": ("engine/on_ray/", "backedge/command.py", "bench/"),
    "pyspark": ("recovery/spark/", "examples/", "tests/spark/"),
    "psycopg": ("engine/databases/", "tests/databases/"),
}
"""The only places that may import a package which not every installation has."""


Found = ast.Import | ast.ImportFrom


@cache
def parsed(file: Path) -> tuple[list[Found], list[Found]]:
    """Every import, wherever in the file it stands; and those that run when the file is imported."""
    body = ast.parse(file.read_text()).body
    every = [statement for statement in statements(body) if isinstance(statement, Found)]
    return every, [statement for statement in body if isinstance(statement, Found)]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements in a body, without their expressions, which hold no import."""
    for statement in body:
        yield statement
        for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            for name in ("body", "orelse", "finalbody"):
                yield from statements(getattr(part, name, []))


def violations(file: Path) -> Iterator[str]:
    """What a file imports and must not. An absolute name says which layer it is of, so a relative one is refused."""
    path = file.relative_to(ROOT).as_posix()
    layer = path.split("/")[0]
    for found in parsed(file)[0]:
        names = [name.name for name in found.names] if isinstance(found, ast.Import) else [found.module or ""]
        if isinstance(found, ast.ImportFrom) and found.level:
            yield f"{path}:{found.lineno} is relative"
        for name in names:
            package, *parts = name.split(".")
            if package in LINKED:
                yield f"{path}:{found.lineno} imports {name}, which is installed as backedge.{name}"
            if package == "backedge" and parts and parts[0] in LINKED:
                package = parts[0]
            if package in MAY_IMPORT and package != layer and package not in MAY_IMPORT[layer]:
                yield f"{path}:{found.lineno} {layer} must not import {name}"
            if package in FOREIGN_HOMES and not path.startswith(FOREIGN_HOMES[package]):
                yield f"{path}:{found.lineno} only {', '.join(FOREIGN_HOMES[package])} may import {name}"


def files_of_ours() -> list[Path]:
    return sorted(file for layer in MAY_IMPORT for file in (ROOT / layer).rglob("*.py"))


@pytest.mark.slow
def test_every_import_goes_down_the_layers():
    files = files_of_ours()
    assert {file.relative_to(ROOT).parts[0] for file in files} >= {"graphs", "recovery", "engine", "backedge", "tests"}
    wrong = [line for file in files for line in violations(file)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_no_module_imports_itself_through_others():
    """As it is loaded: an import within a function comes later, and one for types alone never."""
    names = {_module_name(file): file for file in files_of_ours()}
    loads = {name: {found for found in _loaded(file) if found in names} for name, file in names.items()}
    assert any(loads.values())
    assert list(TopologicalSorter(loads).static_order())


def _module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("backedge", *parts) if parts[0] in LINKED else parts).removesuffix(".__init__")


def _loaded(file: Path) -> set[str]:
    """What a file imports when it is imported: modules, and names that may be modules."""
    found: set[str] = set()
    for statement in parsed(file)[1]:
        match statement:
            case ast.Import(names=names):
                found |= {name.name for name in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module, *(f"{module}.{name.name}" for name in names)}
            case _:
                continue
    return found


def test_every_package_is_in_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {_module_name(path) for top in ("backedge", *LINKED) for path in (ROOT / top).rglob("__init__.py")}
    assert sorted(listed) == sorted(there)

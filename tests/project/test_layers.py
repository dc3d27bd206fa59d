"""Who may import whom: the arrows between folders, which all lead down.

Ray belongs to engine/on_ray and the command line, PySpark to recovery/spark and the examples' references.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.every import every

ROOT = Path(__file__).resolve().parents[2]

CORE = {"graphs", "recovery/cut", "recovery/protocol", "recovery/restore", "recovery/stores"}
TASK = CORE | {"engine/batches", "engine/state", "engine/operators"}
WHOLE = TASK | {"engine", "engine/vertices", "engine/io", "engine/task", "engine/run"}
ON_TOP = {
    "engine/callees",
    "engine/parts",
    "engine/received",
    "engine/replay",
    "engine/simulation",
    "engine/on_ray",
    "backedge",
    "proof",
}
EVERYTHING = WHOLE | ON_TOP | {"recovery/spark"}

MAY_IMPORT: dict[str, set[str]] = {
    "graphs": set(),
    "recovery": set(),
    "recovery/cut": {"graphs"},
    "recovery/protocol": {"graphs", "recovery/cut"},
    "recovery/restore": {"graphs", "recovery/cut", "recovery/protocol"},
    "recovery/stores": CORE,
    "recovery/spark": CORE,
    "engine/batches": {"graphs", "recovery/protocol"},
    "engine/state": CORE | {"engine/batches"},
    "engine/operators": TASK,
    "engine/callees": TASK | {"engine/on_ray"},
    "engine/vertices": TASK,
    "engine/io": TASK,
    "engine/task": TASK,
    "engine/run": CORE | {"engine/io"},
    "engine/parts": {"graphs", "engine/callees"},
    "engine": TASK,
    "engine/received": TASK | {"engine/on_ray"},
    "engine/replay": WHOLE,
    "engine/simulation": WHOLE,
    "engine/on_ray": WHOLE | {"recovery/spark"},
    "backedge": EVERYTHING - {"proof"},
    "proof": EVERYTHING - {"engine/on_ray", "engine/callees", "engine/received"},
    "examples": {"backedge"},
    "bench": EVERYTHING | {"examples"},
    "tests": EVERYTHING | {"examples", "bench"},
}
"""For each folder of ours, with what is below it, the others that it may import. Examples show what users have."""

EXCEPTIONS = {"engine/on_ray/actor/broken_rule.py": {"engine/simulation"}}
"""A demonstration on Ray breaks a rule of the protocol as the simulator does."""

LOOSE_MAX = {"engine": 2, "recovery": 1}
"""How many modules a folder may have beside its packages."""

ATTRIBUTES_MAX = 20
ATTRIBUTES_FOLDERS = ("recovery/protocol", "engine/task", "engine/run", "engine/on_ray")
MORE_ATTRIBUTES = {"RunOptions": 36, "Story": 27, "TaskDriver": 24, "Coordinator": 21}
"""The classes with more attributes than that, and how many each has: no more are added to them. The options of a run
are one list because `run` takes them as its keywords.
"""

LINKED = ("graphs", "recovery", "engine")
"""Folders that lie beside `backedge` and are imported as parts of it."""

TOPS = ("graphs", "recovery", "engine", "backedge", "proof", "examples", "bench", "tests")

FOREIGN_HOMES = {
    "ray": ("engine/on_ray/", "backedge/command.py", "bench/"),
    "pyspark": ("recovery/spark/", "examples/", "tests/spark/"),
    "confluent_kafka": ("engine/io/streams/", "tests/kafka/"),
    "psycopg": ("engine/io/databases/", "tests/databases/"),
    "deltalake": ("engine/io/lakes/", "tests/lakes/"),
    "pyiceberg": ("engine/io/lakes/", "tests/lakes/"),
}
"""The only places that may import a package which not every installation has."""


Found = ast.Import | ast.ImportFrom


@cache
def parsed(source: str) -> tuple[list[Found], list[Found]]:
    """Every import, wherever in the file it stands; and those that run when the file is imported."""
    body = ast.parse(source).body
    every, loaded = ([one for one in found if isinstance(one, Found)] for found in (statements(body), body))
    return every, loaded


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements in a body, without their expressions, which hold no import."""
    for statement in body:
        yield statement
        for part in (statement, *getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            for name in ("body", "orelse", "finalbody"):
                yield from statements(getattr(part, name, []))


def imports(source: str) -> list[Found]:
    return parsed(source)[0]


def imported(source: str) -> Iterator[tuple[int, str]]:
    for found in imports(source):
        match found:
            case ast.Import(names=names):
                yield from ((found.lineno, name.name) for name in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield found.lineno, module
            case _:
                continue


def violations(path: str, source: str) -> list[str]:
    """What `source`, a file at `path` within the project, imports and must not."""
    folder = folder_of(path)
    allowed = MAY_IMPORT[folder] | EXCEPTIONS.get(path, set()) | {folder}
    wrong: list[str] = []
    for line, name in imported(source):
        package = name.split(".")[0]
        if package in LINKED:
            wrong.append(f"{path}:{line} imports {name}, which is installed as backedge.{name}")
        elif package in TOPS and (found := folder_of(name.replace(".", "/"))) not in allowed:
            wrong.append(f"{path}:{line} {folder} must not import {name}, which is in {found}")
        if package in FOREIGN_HOMES and not path.startswith(FOREIGN_HOMES[package]):
            wrong.append(f"{path}:{line} only {', '.join(FOREIGN_HOMES[package])} may import {name}")
    return wrong


def folder_of(path: str) -> str:
    """The folder of a file or module in `MAY_IMPORT`: the longest one above it."""
    parts = path.split("/")
    if parts[0] == "backedge" and len(parts) > 1 and parts[1] in LINKED:
        parts = parts[1:]
    return max(("/".join(parts[:n]) for n in (1, 2) if "/".join(parts[:n]) in MAY_IMPORT), key=len)


def files_of_ours() -> list[Path]:
    return sorted(file for top in TOPS for file in (ROOT / top).rglob("*.py"))


@pytest.mark.slow
def test_every_import_goes_down_the_layers():
    files = files_of_ours()
    assert {file.relative_to(ROOT).parts[0] for file in files} >= {"graphs", "recovery", "engine", "backedge", "tests"}
    wrong = [line for file in files for line in violations(file.relative_to(ROOT).as_posix(), file.read_text())]
    assert not wrong, "\n".join(wrong)


@every(
    ("path", "source", "complaint"),
    [
        ("recovery/protocol/task.py", "from backedge.graphs.ids import TaskId\nimport backedge.recovery.cut.cut", ""),
        ("engine/on_ray/actor/task_actor.py", "import ray", ""),
        ("recovery/spark/audit/audit_job.py", "from pyspark.sql import SparkSession", ""),
        ("graphs/flow.py", "import json, raylib\ntext = 'import backedge.recovery'", ""),
        ("graphs/plan.py", "import backedge.recovery", "plan.py:1 graphs must not import backedge.recovery"),
        ("graphs/plan.py", "import graphs.ids", "imports graphs.ids, which is installed as backedge.graphs.ids"),
        ("recovery/cut/cut.py", "import backedge.engine.batches.batch", "which is in engine/batches"),
        ("engine/state/capture.py", "import backedge.engine.operators.base", "which is in engine/operators"),
        ("engine/task/driver.py", "def f():\n    import backedge", "driver.py:2 engine/task must not import backedge"),
        ("backedge/command.py", "import examples.cyclic", "backedge must not import examples.cyclic"),
        ("examples/cyclic/rank.py", "import backedge.engine", "examples must not import backedge.engine"),
        ("engine/simulation/simulate.py", "from proof.runner import run_seed", "must not import proof.runner"),
        ("engine/task/driver.py", "import ray", "may import ray"),
        ("recovery/store.py", "from pyspark.sql import functions", "may import pyspark.sql"),
        ("engine/on_ray/actor/task_actor.py", "import pyspark", "may import pyspark"),
    ],
)
def test_an_import_up_the_layers_is_found_and_one_down_passes(path: str, source: str, complaint: str):
    found = violations(path, source)
    assert len(found) == bool(complaint) and complaint in "".join(found)


@pytest.mark.slow
def test_no_import_is_relative():
    """An absolute name says which layer it is of; the rule above reads nothing else."""
    relative = [
        f"{file.relative_to(ROOT)}:{found.lineno}"
        for file in files_of_ours()
        for found in imports(file.read_text())
        if isinstance(found, ast.ImportFrom) and found.level > 0
    ]
    assert not relative, "\n".join(relative)


@pytest.mark.slow
def test_no_module_imports_itself_through_others():
    """As it is loaded: an import within a function comes later, and one for types alone never."""
    names = {_module_name(file): file for file in files_of_ours()}
    loads = {name: {found for found in _loaded(file.read_text()) if found in names} for name, file in names.items()}
    assert any(loads.values())
    assert list(TopologicalSorter(loads).static_order())


def test_modules_that_import_each_other_are_found():
    loads = {
        "backedge.graphs.flow": _loaded("import backedge.graphs.plan"),
        "backedge.graphs.plan": ["backedge.graphs.flow"],
    }
    with pytest.raises(CycleError, match="cycle"):
        list(TopologicalSorter(loads).static_order())


def _module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(("backedge", *parts) if parts[0] in LINKED else parts).removesuffix(".__init__")


def _loaded(source: str) -> set[str]:
    """What a file imports when it is imported: modules, and names that may be modules."""
    found: set[str] = set()
    for statement in parsed(source)[1]:
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


def test_no_module_lies_loose():
    for folder, count_max in LOOSE_MAX.items():
        loose = [file.name for file in (ROOT / folder).glob("*.py") if file.name != "__init__.py"]
        assert len(loose) <= count_max, f"{folder}/ has {loose}: put them into the packages that they are part of"


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What a class declares with a type, and what its methods set on `self`."""
    declared = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    stored = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return declared | {each.attr for each in stored if isinstance(each.value, ast.Name) and each.value.id == "self"}


def crowded(source: str) -> dict[str, int]:
    """The classes with too many attributes to be one idea, and how many each has."""
    counts = {
        node.name: len(attributes_of(node)) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)
    }
    return {name: count for name, count in counts.items() if count > ATTRIBUTES_MAX}


@pytest.mark.slow
def test_a_class_is_one_idea():
    found: dict[str, int] = {}
    for folder in ATTRIBUTES_FOLDERS:
        for file in (ROOT / folder).rglob("*.py"):
            found |= crowded(file.read_text(encoding="utf-8"))
    assert found == MORE_ATTRIBUTES, "cut a class along its ideas; if one has become smaller, note that here"


def test_a_class_of_several_ideas_is_found():
    fields = "\n".join(f"    field_{number}: int" for number in range(ATTRIBUTES_MAX))
    method = "    def begin(self):\n        self.field_0, self.one_more = 1, 2"
    assert crowded(f"class Few:\n{fields}") == {}
    assert crowded(f"class Many:\n{fields}\n{method}") == {"Many": ATTRIBUTES_MAX + 1}

"""`backedge` has every name that a user needs, and promises none that does not exist."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import backedge
import backedge.engine.io.databases.database_errors
import backedge.engine.io.files.file_errors
import backedge.graphs.graph_errors
import backedge.graphs.io
import backedge.graphs.sources_and_sinks
import backedge.graphs.task_errors
import backedge.recovery.stores.store_errors
from tests.every import every


def public_classes(module: ModuleType, base: type) -> set[str]:
    classes = {
        name: value for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)
    }
    return {name for name in classes if not name.startswith("_")}


@every(
    ("module", "base"),
    [
        (backedge.graphs.graph_errors, backedge.GraphError),
        (backedge.graphs.task_errors, backedge.TaskError),
        (backedge.engine.io.databases.database_errors, Exception),
        (backedge.engine.io.files.file_errors, backedge.TaskError),
        (backedge.recovery.stores.store_errors, backedge.StoreError),
        (backedge.graphs.sources_and_sinks, backedge.Source),
        (backedge.graphs.sources_and_sinks, backedge.Sink),
    ],
)
def test_every_error_source_and_sink_is_public(module: ModuleType, base: type):
    names = public_classes(module, base)
    assert names
    assert names - set(backedge.__all__) == set()


def test_every_promised_name_is_there():
    assert [name for name in backedge.__all__ if not hasattr(backedge, name)] == []
    assert len(backedge.__all__) == len(set(backedge.__all__))


def test_editors_see_the_same_names():
    """They read the imports of the stub; at run time each name is imported from its module when it is first used."""
    stub = ast.parse(Path(backedge.__file__).with_suffix(".pyi").read_text()).body
    imports = [(name.asname, part.module) for part in stub if isinstance(part, ast.ImportFrom) for name in part.names]
    assert sorted(imports) == sorted(backedge._HOMES.items())
    (promised,) = [ast.literal_eval(part.value) for part in stub if isinstance(part, ast.Assign)]
    assert sorted(promised) == backedge.__all__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Flows"):
        _ = backedge.Flows  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_module_of_a_flow_imports_only_what_it_uses():
    """Each process of its run imports it."""
    code = (
        "import sys; from backedge import Collect, Flow, Items, run;"
        "unused = {'backedge.engine.simulation', 'backedge.engine.io.databases', 'backedge.command', 'argparse'};"
        "print(unused & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout == "set()\n"


THREADS = """
import sys, threading
import backedge
failures = []

def use(names):
    try:
        for name in names:
            getattr(backedge, name)
    except BaseException as error:
        failures.append(f"{type(error).__name__}: {error}")

threads = [threading.Thread(target=use, args=(backedge.__all__[start::8],)) for start in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(failures)
"""


@pytest.mark.slow
def test_threads_may_use_names_for_the_first_time_at_once():
    for _ in range(2):
        told = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, timeout=60)
        assert told.stdout == "[]\n"

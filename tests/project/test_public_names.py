"""`backedge` has every name that a user needs, and promises none that does not exist."""

from __future__ import annotations

from types import ModuleType

import pytest

import backedge
import engine.databases.database_errors
import engine.files.file_errors
import engine.task_errors
import graphs.graph_errors
import graphs.io
import graphs.sources_and_sinks
import recovery.stores.store_errors


def public_classes(module: ModuleType, base: type) -> set[str]:
    classes = {
        name: value for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, base)
    }
    return {name for name in classes if not name.startswith("_")}


@pytest.mark.parametrize(
    ("module", "base"),
    [
        (graphs.graph_errors, graphs.graph_errors.GraphError),
        (engine.task_errors, engine.task_errors.TaskError),
        (engine.databases.database_errors, Exception),
        (engine.files.file_errors, engine.task_errors.TaskError),
        (recovery.stores.store_errors, recovery.stores.store_errors.StoreError),
        (graphs.sources_and_sinks, graphs.io.Source),
        (graphs.sources_and_sinks, graphs.io.Sink),
    ],
)
def test_every_error_source_and_sink_is_public(module: ModuleType, base: type):
    names = public_classes(module, base)
    assert names
    assert names - set(backedge.__all__) == set()


def test_every_promised_name_is_there():
    assert [name for name in backedge.__all__ if not hasattr(backedge, name)] == []
    assert len(backedge.__all__) == len(set(backedge.__all__))

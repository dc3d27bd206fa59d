"""Dataflow graphs with loops, on Ray; after a crash every record still counts exactly once. These are the public names.

- Write a flow: `Flow`, its streams, and the sources and sinks below. `draw` shows it.
- Try it: `simulate` runs it in this process under crashes, and raises `ScheduleError` if they change the result.
- Run it on Ray: `run` waits for the end, `start` returns at once. `RunOptions` lists their options;
  `backedge.faults` kills processes on purpose.
- A mistake in a flow is a `GraphError`, raised before anything runs. A function of yours that raises is reported as a
  `TaskError`, usually a `UserFunctionError`.

>>> from backedge import Collect, Flow, Items, simulate
>>> flow = Flow("retries")
>>> again = flow.loop("again", max_rounds=5)
>>> tried = flow.read(Items([1, 2]), name="numbers").merge(again).map(lambda n: n + 1, name="grow")
>>> done, rest = tried.split(lambda n: n > 3, name="enough")
>>> again.feed(rest)
>>> done.write(Collect(), name="done")
>>> [edge.name for edge in flow.plan().edges if edge.is_back]
['enough.false->grow.in']
>>> sorted(simulate(flow, seeds=range(3)).outputs["done"])
[4, 4]
"""

import sys
from importlib import import_module
from pathlib import Path
from threading import RLock
from typing import Any

import backedge_command
from backedge.shadow import check_own_packages
from backedge.version import VERSION

# Before the first import of one of them, or a foreign package would run first.
check_own_packages(Path(__file__).resolve().parent.parent)
# `python -m backedge` imports this package before it comes to `__main__`, which ends the wait for Ctrl-C.
if sys.argv[0] == "-m" and "backedge" in sys.orig_argv:
    backedge_command.end_at_ctrl_c()
# Now, so that later imports come from here wherever Python looks by then.
for _package in ("engine", "graphs", "recovery"):
    import_module(_package)

__version__ = VERSION

_NAMES = {
    "backedge.cases": "Case case_of",
    "backedge.checked": "Checked run_checked",
    "backedge.compare_command": "compare",
    "backedge.flows": "WrongCallError",
    "backedge.shadow": "ImportShadowError",
    "engine.batch": "Hops",
    "engine.cut_view": "CutView",
    "engine.databases.database_errors": "DatabaseError DatabaseLostError UncommittedOutputError",
    "engine.databases.postgres_table": "PostgresTable",
    "engine.databases.sqlite_table": "SqliteTable",
    "engine.files.file_errors": (
        "DamagedOutputError InputChangedError MalformedInputError NoInputError OutputError "
        "UnknownTransactionError UnwritableRecordError"
    ),
    "engine.files.file_formats": "CSV JsonLines Parquet TextLines",
    "engine.on_ray.api.detached_runs": "NoAnswerError NoSuchRunError RunAliveError attach",
    "engine.on_ray.api.job_handle": "Job RunResult",
    "engine.on_ray.api.launch_checks": "RunExistsError",
    "engine.on_ray.api.starting": "run start",
    "engine.on_ray.planned_faults": "KillSpecError",
    "engine.on_ray.ray_data": "from_ray_data",
    "engine.on_ray.run_options": "RunOptions",
    "engine.on_ray.run_spec": "RequestFailedError RunFailedError",
    "engine.on_ray.supervisor.audit_process": "AuditFailedError",
    "engine.operators.base": "CallingRuntime OperatorRuntime Place TimedRuntime",
    "engine.simulation.narrate": "Narration narrate",
    "engine.simulation.simulate": "ScheduleError SimulationResult simulate",
    "engine.simulation.simulation": "SimulationError",
    "engine.task_errors": (
        "LoopLimitError LoopOverflowError MisuseError RecordSerializationError RoutingError "
        "StateSerializationError TaskError UserFunctionError"
    ),
    "graphs.constant": "Constant",
    "graphs.drawing": "draw",
    "graphs.flow": "Flow",
    "graphs.graph_errors": (
        "BadNameError BadOptionError DuplicateNameError FedTwiceError ForeignStreamError GraphError "
        "InputsError IterationError LoopError MissingNameError NoCycleError NoSinkError NoSourceError "
        "NothingEntersError NoWayOutError OpenLoopError UnkeyableError UnkeyedStreamError UnknownOutputError "
        "UnnamedCycleError UnreadLoopError UnreadOutputWarning"
    ),
    "graphs.io": "ArrowRows Delivery DeliverySink Rollback Sink SinkPlace SinkWriter Source SplitReader",
    "graphs.loop": "Loop",
    "graphs.operator_kind": "OperatorKind",
    "graphs.plan": "Edge Plan",
    "graphs.process_class": "Context Process ProcessInputs",
    "graphs.routing": "tasks_of_keys",
    "graphs.sources_and_sinks": "Call Collect Generate Items Poll Print Range",
    "graphs.stream": "KeyedStream Stream",
    "graphs.table": "Table",
    "graphs.vertex_program": "Received VertexProgram Vertices",
    "recovery.graph_change": "GraphMismatchError",
    "recovery.protocol_errors": "FencedError RescaleError",
    "recovery.spark.prepare.prepare_input": "Prepared prepare read_output",
    "recovery.spark.prepare.recipe": "PreparationError",
    "recovery.spark.sessions.spark_session": "close_session open_session",
    "recovery.spark.spark_errors": "ComparisonError InvariantError JavaError SparkJobError UnreadableError",
    "recovery.stores.store_errors": (
        "NoSuchCutError OutcomeUnknownError SnapshotAuthError SnapshotCorruptError StoreContractError "
        "StoreError UnknownStoreError"
    ),
    "recovery.stores.store_protocol": "FileFacts Store",
}
"""Each module with its public names; `__init__.pyi` has them for editors and type checkers."""

_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]  # `__init__.pyi` has the names


_importing = RLock()


def __getattr__(name: str) -> Any:
    """Import a public name when it is used: a flow does not wait for the simulator, nor a drawing for Spark."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Our modules import each other in circles, which only one thread at a time can begin.
    with _importing:
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]

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
from threading import RLock
from typing import Any

from backedge.version import VERSION

# `python -m backedge` imports this package before it comes to `__main__`, which ends the wait for Ctrl-C.
if sys.argv[0] == "-m" and "backedge" in sys.orig_argv:
    import_module("backedge_command").end_at_ctrl_c()

__version__ = VERSION

_NAMES = {
    "backedge.cases": "Case case_of",
    "backedge.checked": "Checked run_checked",
    "backedge.compare_command": "compare",
    "backedge.flows": "WrongCallError",
    "backedge.engine.batches.batch": "Hops",
    "backedge.engine.callees.chat": "Chat ChatError Reply",
    "backedge.engine.callees.pool": "Pool",
    "backedge.engine.callees.pool_calls": "PoolError",
    "backedge.engine.callees.retry": "retry",
    "backedge.engine.cut_view": "CutView",
    "backedge.engine.io.contracts.contract_error": "ConnectorContractError",
    "backedge.engine.io.databases.database_errors": "DatabaseError DatabaseLostError",
    "backedge.engine.io.databases.postgres_table": "PostgresTable",
    "backedge.engine.io.databases.sqlite_table": "SqliteTable",
    "backedge.engine.io.files.file_errors": (
        "DamagedOutputError InputChangedError MalformedInputError NoInputError OutputError "
        "UncommittedOutputError UnknownTransactionError UnwritableRecordError"
    ),
    "backedge.engine.io.files.file_formats": "CSV JsonLines Parquet TextLines",
    "backedge.engine.io.lakes.delta": "DeltaTable",
    "backedge.engine.io.lakes.iceberg": "IcebergTable",
    "backedge.engine.io.streams.kafka_errors": "KafkaLostError KafkaTopicError OffsetGoneError",
    "backedge.engine.io.streams.kafka_topic": "KafkaTopic",
    "backedge.engine.io.streams.redis": "RedisHash RedisList RedisStream",
    "backedge.engine.io.streams.redis_errors": "EntriesGoneError RedisKeyError RedisLostError",
    "backedge.engine.on_ray.api.detached_runs": "NoAnswerError NoSuchRunError RunAliveError attach",
    "backedge.engine.on_ray.api.job_handle": "Job RunResult",
    "backedge.engine.on_ray.api.launch_checks": "RunExistsError",
    "backedge.engine.on_ray.api.starting": "run start",
    "backedge.engine.on_ray.planned_faults": "KillSpecError",
    "backedge.engine.on_ray.ray_data": "from_ray_data",
    "backedge.engine.on_ray.run_options": "RunOptions",
    "backedge.engine.on_ray.run_spec": "RequestFailedError RunFailedError",
    "backedge.engine.on_ray.supervisor.audit_process": "AuditFailedError",
    "backedge.engine.operators.async_calls": "idempotency_key",
    "backedge.engine.operators.base": "CallingRuntime OperatorRuntime Place TimedRuntime",
    "backedge.engine.parts.distinct": "distinct",
    "backedge.engine.parts.retry_later": "retry_later",
    "backedge.engine.parts.throttle": "throttle",
    "backedge.engine.received.received": "Received ReceivedError",
    "backedge.engine.simulation.narrate": "Narration narrate",
    "backedge.engine.simulation.simulate": "ScheduleError SimulationResult simulate",
    "backedge.engine.simulation.simulation": "SimulationError",
    "backedge.graphs.task_errors": (
        "LoopLimitError LoopOverflowError MisuseError RecordSerializationError RoutingError "
        "StateSerializationError TaskError UserFunctionError"
    ),
    "backedge.graphs.constant": "Constant",
    "backedge.graphs.drawing": "draw",
    "backedge.graphs.flow": "Flow",
    "backedge.graphs.graph_errors": (
        "BadNameError BadOptionError DuplicateNameError FedTwiceError ForeignStreamError GraphError "
        "InputsError IterationError LoopError MissingNameError NoCycleError NoSinkError NoSourceError "
        "NothingEntersError NoWayOutError OpenLoopError UnkeyableError UnkeyedStreamError UnknownOutputError "
        "UnnamedCycleError UnreadLoopError UnreadOutputWarning"
    ),
    "backedge.graphs.io": (
        "ArrowRows Delivery DeliverySink FoundSplits Rollback Sink SinkPlace SinkWriter Source SplitReader"
    ),
    "backedge.graphs.loop": "Loop",
    "backedge.graphs.operator_kind": "OperatorKind",
    "backedge.graphs.plan": "Edge Plan",
    "backedge.graphs.process_class": "Context Process ProcessInputs",
    "backedge.graphs.resource": "Resource",
    "backedge.graphs.routing": "tasks_of_keys",
    "backedge.graphs.sources_and_sinks": "Call Collect Generate Items Poll Print Range",
    "backedge.graphs.stream": "KeyedStream Stream",
    "backedge.graphs.table": "Table",
    "backedge.graphs.versions": "VersionNotKeptError Versions",
    "backedge.graphs.vertex_program": "Messages VertexProgram Vertices",
    "backedge.recovery.restore.graph_change": "GraphMismatchError",
    "backedge.recovery.protocol.protocol_errors": "FencedError RescaleError",
    "backedge.recovery.spark.prepare.prepare_input": "Prepared prepare read_output",
    "backedge.recovery.spark.sessions.spark_session": "close_session open_session",
    "backedge.recovery.spark.spark_errors": (
        "ComparisonError InvariantError JavaError PreparationError SparkJobError UnreadableError"
    ),
    "backedge.recovery.stores.store_errors": (
        "NoSuchCutError OutcomeUnknownError SnapshotAuthError SnapshotCorruptError StoreContractError "
        "StoreError UnknownStoreError"
    ),
    "backedge.recovery.stores.store_protocol": "FileFacts Store",
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
    return [*__all__, "__version__"]

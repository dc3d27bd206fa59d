"""Dataflow graphs with loops, on Ray; after a crash every record still counts exactly once. These are the public names.

- Write a flow: `Flow`, its streams, and the sources and sinks below. `draw` shows it.
- Try it: `simulate` runs it in this process under crashes, and raises `ScheduleError` if they change the result.
- Run it on Ray: `run` waits for the end, `start` returns at once. `RunOptions` lists their options;
  `backedge.faults` kills processes on purpose.
- A mistake in a flow is a `GraphError`, raised before anything runs. A function of yours that raises is reported as a
  `TaskError`, usually a `UserFunctionError`.

>>> from backedge import Collect, Flow, Items
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
from pathlib import Path

import backedge_command
from backedge.shadow import ImportShadowError, check_own_packages
from backedge.version import VERSION

# Before the first import of one of them, or a foreign package would run first.
check_own_packages(Path(__file__).resolve().parent.parent)
# `python -m backedge` imports this package before it comes to `__main__`, which ends the wait for Ctrl-C.
if sys.argv[0] == "-m" and "backedge" in sys.orig_argv:
    backedge_command.end_at_ctrl_c()

from backedge.cases import Case, case_of
from backedge.checked import Checked, run_checked
from backedge.compare_command import compare
from backedge.flows import WrongCallError
from engine.batch import Hops
from engine.cut_view import CutView
from engine.databases.database_errors import DatabaseError, DatabaseLostError, UncommittedOutputError
from engine.databases.postgres_table import PostgresTable
from engine.databases.sqlite_table import SqliteTable
from engine.files.file_errors import (
    DamagedOutputError,
    InputChangedError,
    MalformedInputError,
    NoInputError,
    OutputError,
    UnknownTransactionError,
    UnwritableRecordError,
)
from engine.files.file_formats import CSV, JsonLines, Parquet, TextLines
from engine.on_ray.api.detached_runs import NoAnswerError, NoSuchRunError, RunAliveError, attach
from engine.on_ray.api.job_handle import Job, RunResult
from engine.on_ray.api.launch_checks import RunExistsError
from engine.on_ray.api.starting import run, start
from engine.on_ray.planned_faults import KillSpecError
from engine.on_ray.ray_data import from_ray_data
from engine.on_ray.run_options import RunOptions
from engine.on_ray.run_spec import RequestFailedError, RunFailedError
from engine.on_ray.supervisor.audit_process import AuditFailedError
from engine.operators.base import CallingRuntime, OperatorRuntime, Place, TimedRuntime
from engine.simulation.narrate import Narration, narrate
from engine.simulation.simulate import ScheduleError, SimulationResult, simulate
from engine.simulation.simulation import SimulationError
from engine.task_errors import (
    LoopLimitError,
    LoopOverflowError,
    MisuseError,
    RecordSerializationError,
    RoutingError,
    StateSerializationError,
    TaskError,
    UserFunctionError,
)
from graphs.constant import Constant
from graphs.drawing import draw
from graphs.flow import Flow
from graphs.graph_errors import (
    BadNameError,
    BadOptionError,
    DuplicateNameError,
    FedTwiceError,
    ForeignStreamError,
    GraphError,
    InputsError,
    IterationError,
    LoopError,
    MissingNameError,
    NoCycleError,
    NoSinkError,
    NoSourceError,
    NothingEntersError,
    NoWayOutError,
    OpenLoopError,
    UnkeyableError,
    UnkeyedStreamError,
    UnknownOutputError,
    UnnamedCycleError,
    UnreadLoopError,
    UnreadOutputWarning,
)
from graphs.io import ArrowRows, Delivery, DeliverySink, Rollback, Sink, SinkPlace, SinkWriter, Source, SplitReader
from graphs.loop import Loop
from graphs.operator_kind import OperatorKind
from graphs.plan import Edge, Plan
from graphs.process_class import Context, Process, ProcessInputs
from graphs.routing import tasks_of_keys
from graphs.sources_and_sinks import Call, Collect, Generate, Items, Poll, Print, Range
from graphs.stream import KeyedStream, Stream
from graphs.table import Table
from graphs.vertex_program import Received, VertexProgram, Vertices
from recovery.graph_change import GraphMismatchError
from recovery.protocol_errors import FencedError, RescaleError
from recovery.spark.prepare.prepare_input import Prepared, prepare, read_output
from recovery.spark.prepare.recipe import PreparationError
from recovery.spark.sessions.spark_session import close_session, open_session
from recovery.spark.spark_errors import ComparisonError, InvariantError, JavaError, SparkJobError, UnreadableError
from recovery.stores.store_errors import (
    NoSuchCutError,
    OutcomeUnknownError,
    SnapshotAuthError,
    SnapshotCorruptError,
    StoreContractError,
    StoreError,
    UnknownStoreError,
)
from recovery.stores.store_protocol import FileFacts, Store

__version__ = VERSION

__all__ = [
    "CSV",
    "ArrowRows",
    "AuditFailedError",
    "BadNameError",
    "BadOptionError",
    "Call",
    "CallingRuntime",
    "Case",
    "Checked",
    "Collect",
    "ComparisonError",
    "Constant",
    "Context",
    "CutView",
    "DamagedOutputError",
    "DatabaseError",
    "DatabaseLostError",
    "Delivery",
    "DeliverySink",
    "DuplicateNameError",
    "Edge",
    "FedTwiceError",
    "FencedError",
    "FileFacts",
    "Flow",
    "ForeignStreamError",
    "Generate",
    "GraphError",
    "GraphMismatchError",
    "Hops",
    "ImportShadowError",
    "InputChangedError",
    "InputsError",
    "InvariantError",
    "Items",
    "IterationError",
    "JavaError",
    "Job",
    "JsonLines",
    "KeyedStream",
    "KillSpecError",
    "Loop",
    "LoopError",
    "LoopLimitError",
    "LoopOverflowError",
    "MalformedInputError",
    "MissingNameError",
    "MisuseError",
    "Narration",
    "NoAnswerError",
    "NoCycleError",
    "NoInputError",
    "NoSinkError",
    "NoSourceError",
    "NoSuchCutError",
    "NoSuchRunError",
    "NoWayOutError",
    "NothingEntersError",
    "OpenLoopError",
    "OperatorKind",
    "OperatorRuntime",
    "OutcomeUnknownError",
    "OutputError",
    "Parquet",
    "Place",
    "Plan",
    "Poll",
    "PostgresTable",
    "PreparationError",
    "Prepared",
    "Print",
    "Process",
    "ProcessInputs",
    "Range",
    "Received",
    "RecordSerializationError",
    "RequestFailedError",
    "RescaleError",
    "Rollback",
    "RoutingError",
    "RunAliveError",
    "RunExistsError",
    "RunFailedError",
    "RunOptions",
    "RunResult",
    "ScheduleError",
    "SimulationError",
    "SimulationResult",
    "Sink",
    "SinkPlace",
    "SinkWriter",
    "SnapshotAuthError",
    "SnapshotCorruptError",
    "Source",
    "SparkJobError",
    "SplitReader",
    "SqliteTable",
    "StateSerializationError",
    "Store",
    "StoreContractError",
    "StoreError",
    "Stream",
    "Table",
    "TaskError",
    "TextLines",
    "TimedRuntime",
    "UncommittedOutputError",
    "UnkeyableError",
    "UnkeyedStreamError",
    "UnknownOutputError",
    "UnknownStoreError",
    "UnknownTransactionError",
    "UnnamedCycleError",
    "UnreadLoopError",
    "UnreadOutputWarning",
    "UnreadableError",
    "UnwritableRecordError",
    "UserFunctionError",
    "VertexProgram",
    "Vertices",
    "WrongCallError",
    "attach",
    "case_of",
    "close_session",
    "compare",
    "draw",
    "from_ray_data",
    "narrate",
    "open_session",
    "prepare",
    "read_output",
    "run",
    "run_checked",
    "simulate",
    "start",
    "tasks_of_keys",
]

"""The public names, for editors and type checkers. `__init__.py` imports each when it is first used."""

from backedge.cases import Case as Case, case_of as case_of
from backedge.checked import Checked as Checked, run_checked as run_checked
from backedge.compare_command import compare as compare
from backedge.flows import WrongCallError as WrongCallError
from backedge.shadow import ImportShadowError as ImportShadowError
from engine.batch import Hops as Hops
from engine.cut_view import CutView as CutView
from engine.databases.database_errors import (
    DatabaseError as DatabaseError,
    DatabaseLostError as DatabaseLostError,
    UncommittedOutputError as UncommittedOutputError,
)
from engine.databases.postgres_table import PostgresTable as PostgresTable
from engine.databases.sqlite_table import SqliteTable as SqliteTable
from engine.files.file_errors import (
    DamagedOutputError as DamagedOutputError,
    InputChangedError as InputChangedError,
    MalformedInputError as MalformedInputError,
    NoInputError as NoInputError,
    OutputError as OutputError,
    UnknownTransactionError as UnknownTransactionError,
    UnwritableRecordError as UnwritableRecordError,
)
from engine.files.file_formats import CSV as CSV, JsonLines as JsonLines, Parquet as Parquet, TextLines as TextLines
from engine.on_ray.api.detached_runs import (
    NoAnswerError as NoAnswerError,
    NoSuchRunError as NoSuchRunError,
    RunAliveError as RunAliveError,
    attach as attach,
)
from engine.on_ray.api.job_handle import Job as Job, RunResult as RunResult
from engine.on_ray.api.launch_checks import RunExistsError as RunExistsError
from engine.on_ray.api.starting import run as run, start as start
from engine.on_ray.planned_faults import KillSpecError as KillSpecError
from engine.on_ray.ray_data import from_ray_data as from_ray_data
from engine.on_ray.run_options import RunOptions as RunOptions
from engine.on_ray.run_spec import RequestFailedError as RequestFailedError, RunFailedError as RunFailedError
from engine.on_ray.supervisor.audit_process import AuditFailedError as AuditFailedError
from engine.operators.base import (
    CallingRuntime as CallingRuntime,
    OperatorRuntime as OperatorRuntime,
    Place as Place,
    TimedRuntime as TimedRuntime,
)
from engine.simulation.narrate import Narration as Narration, narrate as narrate
from engine.simulation.simulate import (
    ScheduleError as ScheduleError,
    SimulationResult as SimulationResult,
    simulate as simulate,
)
from engine.simulation.simulation import SimulationError as SimulationError
from engine.task_errors import (
    LoopLimitError as LoopLimitError,
    LoopOverflowError as LoopOverflowError,
    MisuseError as MisuseError,
    RecordSerializationError as RecordSerializationError,
    RoutingError as RoutingError,
    StateSerializationError as StateSerializationError,
    TaskError as TaskError,
    UserFunctionError as UserFunctionError,
)
from graphs.constant import Constant as Constant
from graphs.drawing import draw as draw
from graphs.flow import Flow as Flow
from graphs.graph_errors import (
    BadNameError as BadNameError,
    BadOptionError as BadOptionError,
    DuplicateNameError as DuplicateNameError,
    FedTwiceError as FedTwiceError,
    ForeignStreamError as ForeignStreamError,
    GraphError as GraphError,
    InputsError as InputsError,
    IterationError as IterationError,
    LoopError as LoopError,
    MissingNameError as MissingNameError,
    NoCycleError as NoCycleError,
    NoSinkError as NoSinkError,
    NoSourceError as NoSourceError,
    NothingEntersError as NothingEntersError,
    NoWayOutError as NoWayOutError,
    OpenLoopError as OpenLoopError,
    UnkeyableError as UnkeyableError,
    UnkeyedStreamError as UnkeyedStreamError,
    UnknownOutputError as UnknownOutputError,
    UnnamedCycleError as UnnamedCycleError,
    UnreadLoopError as UnreadLoopError,
    UnreadOutputWarning as UnreadOutputWarning,
)
from graphs.io import (
    ArrowRows as ArrowRows,
    Delivery as Delivery,
    DeliverySink as DeliverySink,
    Rollback as Rollback,
    Sink as Sink,
    SinkPlace as SinkPlace,
    SinkWriter as SinkWriter,
    Source as Source,
    SplitReader as SplitReader,
)
from graphs.loop import Loop as Loop
from graphs.operator_kind import OperatorKind as OperatorKind
from graphs.plan import Edge as Edge, Plan as Plan
from graphs.process_class import Context as Context, Process as Process, ProcessInputs as ProcessInputs
from graphs.routing import tasks_of_keys as tasks_of_keys
from graphs.sources_and_sinks import (
    Call as Call,
    Collect as Collect,
    Generate as Generate,
    Items as Items,
    Poll as Poll,
    Print as Print,
    Range as Range,
)
from graphs.stream import KeyedStream as KeyedStream, Stream as Stream
from graphs.table import Table as Table
from graphs.vertex_program import Received as Received, VertexProgram as VertexProgram, Vertices as Vertices
from recovery.graph_change import GraphMismatchError as GraphMismatchError
from recovery.protocol_errors import FencedError as FencedError, RescaleError as RescaleError
from recovery.spark.prepare.prepare_input import Prepared as Prepared, prepare as prepare, read_output as read_output
from recovery.spark.prepare.recipe import PreparationError as PreparationError
from recovery.spark.sessions.spark_session import close_session as close_session, open_session as open_session
from recovery.spark.spark_errors import (
    ComparisonError as ComparisonError,
    InvariantError as InvariantError,
    JavaError as JavaError,
    SparkJobError as SparkJobError,
    UnreadableError as UnreadableError,
)
from recovery.stores.store_errors import (
    NoSuchCutError as NoSuchCutError,
    OutcomeUnknownError as OutcomeUnknownError,
    SnapshotAuthError as SnapshotAuthError,
    SnapshotCorruptError as SnapshotCorruptError,
    StoreContractError as StoreContractError,
    StoreError as StoreError,
    UnknownStoreError as UnknownStoreError,
)
from recovery.stores.store_protocol import FileFacts as FileFacts, Store as Store

__version__: str
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

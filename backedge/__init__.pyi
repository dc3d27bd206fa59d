"""The public names, for editors and type checkers. `__init__.py` imports each when it is first used."""

from backedge.cases import Case as Case, case_of as case_of
from backedge.checked import Checked as Checked, run_checked as run_checked
from backedge.compare_command import compare as compare
from backedge.flows import WrongCallError as WrongCallError
from backedge.engine.batches.batch import Hops as Hops
from backedge.engine.callees.chat import Chat as Chat, ChatError as ChatError, Reply as Reply
from backedge.engine.callees.pool import Pool as Pool
from backedge.engine.callees.pool_calls import PoolError as PoolError
from backedge.engine.callees.retry import retry as retry
from backedge.engine.io.contracts.contract_error import ConnectorContractError as ConnectorContractError
from backedge.engine.cut_view import CutView as CutView
from backedge.engine.io.databases.database_errors import (
    DatabaseError as DatabaseError,
    DatabaseLostError as DatabaseLostError,
)
from backedge.engine.io.databases.postgres_table import PostgresTable as PostgresTable
from backedge.engine.io.databases.sqlite_table import SqliteTable as SqliteTable
from backedge.engine.io.files.file_errors import (
    DamagedOutputError as DamagedOutputError,
    InputChangedError as InputChangedError,
    MalformedInputError as MalformedInputError,
    NoInputError as NoInputError,
    OutputError as OutputError,
    UncommittedOutputError as UncommittedOutputError,
    UnknownTransactionError as UnknownTransactionError,
    UnwritableRecordError as UnwritableRecordError,
)
from backedge.engine.io.files.file_formats import (
    CSV as CSV,
    JsonLines as JsonLines,
    Parquet as Parquet,
    TextLines as TextLines,
)
from backedge.engine.io.lakes.delta import DeltaTable as DeltaTable
from backedge.engine.io.lakes.iceberg import IcebergTable as IcebergTable
from backedge.engine.io.streams.kafka_errors import (
    KafkaLostError as KafkaLostError,
    KafkaTopicError as KafkaTopicError,
    OffsetGoneError as OffsetGoneError,
)
from backedge.engine.io.streams.kafka_topic import KafkaTopic as KafkaTopic
from backedge.engine.io.streams.redis import (
    RedisHash as RedisHash,
    RedisList as RedisList,
    RedisStream as RedisStream,
)
from backedge.engine.io.streams.redis_errors import (
    EntriesGoneError as EntriesGoneError,
    RedisKeyError as RedisKeyError,
    RedisLostError as RedisLostError,
)
from backedge.engine.on_ray.api.detached_runs import (
    NoAnswerError as NoAnswerError,
    NoSuchRunError as NoSuchRunError,
    RunAliveError as RunAliveError,
    attach as attach,
)
from backedge.engine.on_ray.api.job_handle import Job as Job, RunResult as RunResult
from backedge.engine.on_ray.api.launch_checks import RunExistsError as RunExistsError
from backedge.engine.on_ray.api.starting import run as run, start as start
from backedge.engine.on_ray.planned_faults import KillSpecError as KillSpecError
from backedge.engine.on_ray.ray_data import from_ray_data as from_ray_data
from backedge.engine.on_ray.run_options import RunOptions as RunOptions
from backedge.engine.on_ray.run_spec import RequestFailedError as RequestFailedError, RunFailedError as RunFailedError
from backedge.engine.on_ray.supervisor.audit_process import AuditFailedError as AuditFailedError
from backedge.engine.operators.async_calls import idempotency_key as idempotency_key
from backedge.engine.operators.base import (
    CallingRuntime as CallingRuntime,
    OperatorRuntime as OperatorRuntime,
    Place as Place,
    TimedRuntime as TimedRuntime,
)
from backedge.engine.parts.distinct import distinct as distinct
from backedge.engine.parts.retry_later import retry_later as retry_later
from backedge.engine.parts.throttle import throttle as throttle
from backedge.engine.received.received import Received as Received, ReceivedError as ReceivedError
from backedge.engine.simulation.narrate import Narration as Narration, narrate as narrate
from backedge.engine.simulation.simulate import (
    ScheduleError as ScheduleError,
    SimulationResult as SimulationResult,
    simulate as simulate,
)
from backedge.engine.simulation.simulation import SimulationError as SimulationError
from backedge.graphs.task_errors import (
    LoopLimitError as LoopLimitError,
    LoopOverflowError as LoopOverflowError,
    MisuseError as MisuseError,
    RecordSerializationError as RecordSerializationError,
    RoutingError as RoutingError,
    StateSerializationError as StateSerializationError,
    TaskError as TaskError,
    UserFunctionError as UserFunctionError,
)
from backedge.graphs.constant import Constant as Constant
from backedge.graphs.drawing import draw as draw
from backedge.graphs.flow import Flow as Flow
from backedge.graphs.graph_errors import (
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
from backedge.graphs.io import (
    ArrowRows as ArrowRows,
    Delivery as Delivery,
    DeliverySink as DeliverySink,
    FoundSplits as FoundSplits,
    Rollback as Rollback,
    Sink as Sink,
    SinkPlace as SinkPlace,
    SinkWriter as SinkWriter,
    Source as Source,
    SplitReader as SplitReader,
)
from backedge.graphs.loop import Loop as Loop
from backedge.graphs.operator_kind import OperatorKind as OperatorKind
from backedge.graphs.plan import Edge as Edge, Plan as Plan
from backedge.graphs.process_class import Context as Context, Process as Process, ProcessInputs as ProcessInputs
from backedge.graphs.resource import Resource as Resource
from backedge.graphs.routing import tasks_of_keys as tasks_of_keys
from backedge.graphs.sources_and_sinks import (
    Call as Call,
    Collect as Collect,
    Generate as Generate,
    Items as Items,
    Poll as Poll,
    Print as Print,
    Range as Range,
)
from backedge.graphs.stream import KeyedStream as KeyedStream, Stream as Stream
from backedge.graphs.table import Table as Table
from backedge.graphs.vertex_program import Messages as Messages, VertexProgram as VertexProgram, Vertices as Vertices
from backedge.graphs.versions import VersionNotKeptError as VersionNotKeptError, Versions as Versions
from backedge.recovery.restore.graph_change import GraphMismatchError as GraphMismatchError
from backedge.recovery.protocol.protocol_errors import FencedError as FencedError, RescaleError as RescaleError
from backedge.recovery.spark.prepare.prepare_input import (
    Prepared as Prepared,
    prepare as prepare,
    read_output as read_output,
)
from backedge.recovery.spark.sessions.spark_session import close_session as close_session, open_session as open_session
from backedge.recovery.spark.spark_errors import (
    ComparisonError as ComparisonError,
    InvariantError as InvariantError,
    JavaError as JavaError,
    PreparationError as PreparationError,
    SparkJobError as SparkJobError,
    UnreadableError as UnreadableError,
)
from backedge.recovery.stores.store_errors import (
    NoSuchCutError as NoSuchCutError,
    OutcomeUnknownError as OutcomeUnknownError,
    SnapshotAuthError as SnapshotAuthError,
    SnapshotCorruptError as SnapshotCorruptError,
    StoreContractError as StoreContractError,
    StoreError as StoreError,
    UnknownStoreError as UnknownStoreError,
)
from backedge.recovery.stores.store_protocol import FileFacts as FileFacts, Store as Store

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
    "Chat",
    "ChatError",
    "Checked",
    "Collect",
    "ComparisonError",
    "ConnectorContractError",
    "Constant",
    "Context",
    "CutView",
    "DamagedOutputError",
    "DatabaseError",
    "DatabaseLostError",
    "Delivery",
    "DeliverySink",
    "DeltaTable",
    "DuplicateNameError",
    "Edge",
    "EntriesGoneError",
    "FedTwiceError",
    "FencedError",
    "FileFacts",
    "Flow",
    "ForeignStreamError",
    "FoundSplits",
    "Generate",
    "GraphError",
    "GraphMismatchError",
    "Hops",
    "IcebergTable",
    "InputChangedError",
    "InputsError",
    "InvariantError",
    "Items",
    "IterationError",
    "JavaError",
    "Job",
    "JsonLines",
    "KafkaLostError",
    "KafkaTopic",
    "KafkaTopicError",
    "KeyedStream",
    "KillSpecError",
    "Loop",
    "LoopError",
    "LoopLimitError",
    "LoopOverflowError",
    "MalformedInputError",
    "Messages",
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
    "OffsetGoneError",
    "OpenLoopError",
    "OperatorKind",
    "OperatorRuntime",
    "OutcomeUnknownError",
    "OutputError",
    "Parquet",
    "Place",
    "Plan",
    "Poll",
    "Pool",
    "PoolError",
    "PostgresTable",
    "PreparationError",
    "Prepared",
    "Print",
    "Process",
    "ProcessInputs",
    "Range",
    "Received",
    "ReceivedError",
    "RecordSerializationError",
    "RedisHash",
    "RedisKeyError",
    "RedisList",
    "RedisLostError",
    "RedisStream",
    "Reply",
    "RequestFailedError",
    "RescaleError",
    "Resource",
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
    "VersionNotKeptError",
    "Versions",
    "VertexProgram",
    "Vertices",
    "WrongCallError",
    "attach",
    "case_of",
    "close_session",
    "compare",
    "distinct",
    "draw",
    "from_ray_data",
    "idempotency_key",
    "narrate",
    "open_session",
    "prepare",
    "read_output",
    "retry",
    "retry_later",
    "run",
    "run_checked",
    "simulate",
    "start",
    "tasks_of_keys",
    "throttle",
]

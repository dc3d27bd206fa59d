"""graphs: what a dataflow is. Nothing here runs anything.

A user builds a graph with `Flow`. Streams are tails: outputs of operators, each with a routing (`draft.py`). Operators
that are applied to a stream (`stream.py`) join the flow's draft. A loop (`loop.py`) is a stream that is consumed before
it is fed; an iteration (`iterate.py`) is a loop in rounds. `io.py` describes sources and sinks.

`Flow.plan()` freezes the draft (`building.py`): open ends become back edges, graphs that cannot run are refused
(`checks.py`, `graph_errors.py`), and the structure gets a hash that every process computes alike. A plan says what is
computed; `expand` says where (`expansion.py`): tasks, the chains of operators in them, channels, actors, components.
`routing.py` maps a key to its task.

Cycles are the point. A back edge is an edge that the user named; every cycle has one. `cycles.py` finds the components,
the heads and the nesting, `certificate.py` proves that only back edges close cycles, `drawing.py` draws them.

An `OperatorKind` (`operator_kind.py`) says what an operator does, with its options; `kinds.py` has the built-in ones.
An operator with on_error "dead_letter" has the output "dead"; one that feeds a loop with a limit has "dead:LOOP".

>>> flow = Flow("hello")
>>> flow.read(Items(["hello", "world"])).map(str.upper).write(Print())
>>> [str(task) for task in expand(flow.plan()).tasks]
['read-1/0']
"""

from graphs.building import graph_hash
from graphs.certificate import Certificate, ComponentProof, Cycle, certify, verify
from graphs.checks import check
from graphs.cycles import Cycles, Loops, find_cycles
from graphs.deployment import Channel, Component, Deployment, Task
from graphs.drawing import draw
from graphs.expansion import expand
from graphs.flow import Flow, build
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
from graphs.ids import RESTORED_SENDER, Attempt, ChannelId, Epoch, TaskId
from graphs.io import Delivery, DeliverySink, Rollback, Sink, SinkPlace, SinkWriter, Source, SplitReader
from graphs.kinds import Map
from graphs.loop import Loop
from graphs.operator_kind import OperatorKind
from graphs.plan import Edge, Operator, Plan, Resources, Routing
from graphs.process_class import Context, Process, ProcessInputs
from graphs.routing import KEY_GROUPS, groups_of_task, key_group, key_groups, task_of_group, tasks_of_keys
from graphs.sources_and_sinks import Call, Collect, Generate, Items, Poll, Print, Range
from graphs.stream import KeyedStream, Stream
from graphs.table import Table
from graphs.vertex_program import Received, VertexProgram, Vertices

__all__ = [
    "KEY_GROUPS",
    "RESTORED_SENDER",
    "Attempt",
    "BadNameError",
    "BadOptionError",
    "Call",
    "Certificate",
    "Channel",
    "ChannelId",
    "Collect",
    "Component",
    "ComponentProof",
    "Context",
    "Cycle",
    "Cycles",
    "Delivery",
    "DeliverySink",
    "Deployment",
    "DuplicateNameError",
    "Edge",
    "Epoch",
    "FedTwiceError",
    "Flow",
    "ForeignStreamError",
    "Generate",
    "GraphError",
    "InputsError",
    "Items",
    "IterationError",
    "KeyedStream",
    "Loop",
    "LoopError",
    "Loops",
    "Map",
    "MissingNameError",
    "NoCycleError",
    "NoSinkError",
    "NoSourceError",
    "NoWayOutError",
    "NothingEntersError",
    "OpenLoopError",
    "Operator",
    "OperatorKind",
    "Plan",
    "Poll",
    "Print",
    "Process",
    "ProcessInputs",
    "Range",
    "Received",
    "Resources",
    "Rollback",
    "Routing",
    "Sink",
    "SinkPlace",
    "SinkWriter",
    "Source",
    "SplitReader",
    "Stream",
    "Table",
    "Task",
    "TaskId",
    "UnkeyableError",
    "UnkeyedStreamError",
    "UnknownOutputError",
    "UnnamedCycleError",
    "UnreadLoopError",
    "UnreadOutputWarning",
    "VertexProgram",
    "Vertices",
    "build",
    "certify",
    "check",
    "draw",
    "expand",
    "find_cycles",
    "graph_hash",
    "groups_of_task",
    "key_group",
    "key_groups",
    "task_of_group",
    "tasks_of_keys",
    "verify",
]

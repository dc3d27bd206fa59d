"""Dataflow graphs with cycles, which lose nothing when a process dies. These are the public names.

Write a flow: `Flow`, the streams it gives, the sources and sinks below. See it: `draw`, or `backedge graph`.
What a flow does wrong is a `GraphError` of some kind, raised before anything runs; what a function of yours does wrong
is a `TaskError`, mostly a `UserFunctionError`. Try it: `simulate` runs it in this process under crashes, and raises a
`ScheduleError` if they change what the sinks hold.

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

from pathlib import Path

from backedge.shadow import ImportShadowError, check_own_packages
from backedge.version import VERSION

# Before the first import of one of them, or a foreign package would run first.
check_own_packages(Path(__file__).resolve().parent.parent)

from engine.cut_view import CutView
from engine.errors import (
    LoopLimitError,
    MisuseError,
    RecordSerializationError,
    RoutingError,
    StateSerializationError,
    TaskError,
    UserFunctionError,
)
from engine.simulation.narrate import Narration, narrate
from engine.simulation.simulate import ScheduleError, SimulationResult, simulate
from engine.simulation.simulation import SimulationError
from graphs.drawing import draw
from graphs.errors import (
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
)
from graphs.flow import Flow
from graphs.io import CSV, Call, Collect, Generate, Items, JsonLines, Parquet, Print, Range, Sink, Source, TextLines
from graphs.loop import Loop
from graphs.plan import Plan
from graphs.stream import KeyedStream, Stream

__version__ = VERSION

__all__ = [
    "CSV",
    "BadNameError",
    "BadOptionError",
    "Call",
    "Collect",
    "CutView",
    "DuplicateNameError",
    "FedTwiceError",
    "Flow",
    "ForeignStreamError",
    "Generate",
    "GraphError",
    "ImportShadowError",
    "InputsError",
    "Items",
    "IterationError",
    "JsonLines",
    "KeyedStream",
    "Loop",
    "LoopError",
    "LoopLimitError",
    "MissingNameError",
    "MisuseError",
    "Narration",
    "NoCycleError",
    "NoSinkError",
    "NoSourceError",
    "NoWayOutError",
    "NothingEntersError",
    "OpenLoopError",
    "Parquet",
    "Plan",
    "Print",
    "Range",
    "RecordSerializationError",
    "RoutingError",
    "ScheduleError",
    "SimulationError",
    "SimulationResult",
    "Sink",
    "Source",
    "StateSerializationError",
    "Stream",
    "TaskError",
    "TextLines",
    "UnkeyableError",
    "UnkeyedStreamError",
    "UnknownOutputError",
    "UnnamedCycleError",
    "UnreadLoopError",
    "UserFunctionError",
    "draw",
    "narrate",
    "simulate",
]

"""graphs: what a dataflow is."""

from graphs.building import graph_hash
from graphs.checks import check
from graphs.expansion import expand
from graphs.flow import Flow, build
from graphs.io import CSV, Call, Collect, Generate, Items, JsonLines, Parquet, Print, Range, Sink, Source, TextLines
from graphs.loop import Loop
from graphs.plan import Edge, Kind, Operator, Plan, Routing
from graphs.stream import KeyedStream, Stream

__all__ = [
    "CSV",
    "Call",
    "Collect",
    "Edge",
    "Flow",
    "Generate",
    "Items",
    "JsonLines",
    "KeyedStream",
    "Kind",
    "Loop",
    "Operator",
    "Parquet",
    "Plan",
    "Print",
    "Range",
    "Routing",
    "Sink",
    "Source",
    "Stream",
    "TextLines",
    "build",
    "check",
    "expand",
    "graph_hash",
]

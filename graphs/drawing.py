"""Draws a plan as plain text for a terminal, as SVG, as Mermaid, or as DOT for Graphviz.

Each loop and iteration is drawn as a box, heads are marked, and back edges have thick arrows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from backedge.graphs.cycles import find_cycles, successors
from backedge.graphs.digraph import upstream_first
from backedge.graphs.flow import Flow, checked_flow
from backedge.graphs.kinds import MapBatches, OfBatchClass
from backedge.graphs.naming import function_name
from backedge.graphs.operator_kind import Shape
from backedge.graphs.options import check_choice
from backedge.graphs.plan import Edge, KeyColumns, Operator, Plan, Routing
from backedge.graphs.public import public
from backedge.graphs.questions import AskedAbout
from backedge.graphs.svg_drawing import svg_lines
from backedge.graphs.wording import printable

Format = Literal["text", "svg", "mermaid", "dot"]
FORMATS: tuple[str, ...] = get_args(Format)


@public
def draw(plan: Plan | Flow, format: Format = "text") -> str:
    """Draw a plan, or the plan of a flow.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("halve")
    >>> again = flow.loop("again", max_rounds=9, on_limit="fail")
    >>> odd, even = flow.read(Items([6]), name="numbers").merge(again).split(lambda n: n % 2, name="parity")
    >>> again.feed(even.map(lambda n: n // 2, name="half"))
    >>> odd.write(Collect(), name="odd")
    >>> print(draw(flow))
    flow halve
      numbers (source)
        -> parity
      loop again
      | parity (split), a head
      |   false -> half
      |   true -> odd
      | half (map)
      |   ==> parity, the back edge of again, at most 9 rounds
      odd (sink)
    """
    plan = plan if isinstance(plan, Plan) else checked_flow(plan, "draw").plan()
    check_choice(format, FORMATS, "format", f"the drawing of flow {plan.name!r}")
    drawers: dict[Format, Callable[[Drawing], Iterator[str]]] = {
        "text": _text,
        "svg": _svg,
        "mermaid": _mermaid,
        "dot": _dot,
    }
    return "\n".join(map(printable, drawers[format](_arrange(plan))))


class Box(Struct):
    """A loop or an iteration with its operators and inner boxes; the outermost box is the flow."""

    label: str
    entries: list[Operator | Box] = []


class Drawing(Struct, frozen=True):
    """A plan, its boxes, its operators upstream first, how many loops are around them, and those that are heads."""

    plan: Plan
    box: Box
    order: tuple[str, ...]
    depth: Mapping[str, int]
    heads: frozenset[str]


def _arrange(plan: Plan) -> Drawing:
    cycles = find_cycles(plan)
    labels = {
        name: tuple(f"iteration {head}" for head in cycles.paths[name]) or (f"loop {loops.name}",)
        for loops in cycles.loops
        for name in loops.operators
    }
    forward = [edge for edge in plan.edges if not edge.is_back]
    order = tuple(upstream_first(successors(plan.operators, forward)))
    boxes: dict[tuple[str, ...], Box] = {(): Box(f"flow {plan.name}")}
    for name in order:
        path = labels.get(name, ())
        for depth in range(1, len(path) + 1):
            if path[:depth] not in boxes:
                boxes[path[:depth]] = Box(path[depth - 1])
                boxes[path[: depth - 1]].entries.append(boxes[path[:depth]])
        boxes[path].entries.append(plan.operators[name])
    heads = frozenset(edge.receiver for edge in plan.edges if edge.is_back)
    return Drawing(plan, boxes[()], order, {name: len(path) for name, path in labels.items()}, heads)


def _text(drawing: Drawing) -> Iterator[str]:
    yield drawing.box.label
    yield from _text_box(drawing, drawing.box, "  ")


def _text_box(drawing: Drawing, box: Box, margin: str) -> Iterator[str]:
    for entry in box.entries:
        if isinstance(entry, Box):
            yield margin + entry.label
            yield from _text_box(drawing, entry, margin + "| ")
            continue
        yield f"{margin}{entry.name} ({_kind(entry)})" + (", a head" if entry.name in drawing.heads else "")
        for edge in drawing.plan.edges:
            if edge.sender == entry.name:
                words = ", ".join([edge.receiver + _input(drawing.plan, edge), *_remarks(edge)])
                yield f"{margin}  {_output(edge)}{'==>' if edge.is_back else '->'} {words}"


def _kind(operator: Operator) -> str:
    """The kind, the columns that a function works on, and what a sink promises where that is less than once."""
    kind = operator.kind
    if isinstance(kind, MapBatches | OfBatchClass) and kind.batch_format != "records":
        return f"{kind.word}, {kind.batch_format}"
    guarantee = operator.function.guarantee if kind.is_sink else "transactional"
    return kind.word if guarantee == "transactional" else f"{kind.word}, {guarantee}"


def _svg(drawing: Drawing) -> Iterator[str]:
    plan = drawing.plan
    return svg_lines(plan, drawing.order, drawing.depth, drawing.heads, lambda edge: _label(plan, edge))


def _mermaid(drawing: Drawing) -> Iterator[str]:
    ids = {name: f"o{number}" for number, name in enumerate(drawing.order)}
    yield "flowchart LR"
    yield from _mermaid_box(drawing, drawing.box, ids, "    ", [])
    for edge in drawing.plan.edges:
        label = _quote(_label(drawing.plan, edge), "#quot;")
        arrow = "==>" if edge.is_back else "-->"
        yield f"    {ids[edge.sender]} {arrow}" + (f'|"{label}"| ' if label else " ") + ids[edge.receiver]


def _mermaid_box(drawing: Drawing, box: Box, ids: dict[str, str], margin: str, opened: list[str]) -> Iterator[str]:
    for entry in box.entries:
        if isinstance(entry, Box):
            opened.append(entry.label)
            yield f'{margin}subgraph box{len(opened)}["{_quote(entry.label, "#quot;")}"]'
            yield from _mermaid_box(drawing, entry, ids, margin + "    ", opened)
            yield f"{margin}end"
            continue
        start, end = ("{{", "}}") if entry.name in drawing.heads else _MERMAID_SHAPES[entry.kind.drawn_as]
        yield f'{margin}{ids[entry.name]}{start}"{_quote(entry.name, "#quot;")}"{end}'


def _dot(drawing: Drawing) -> Iterator[str]:
    yield f'digraph "{_quote(drawing.plan.name, _DOT_QUOTE)}" {{'
    yield "    rankdir=LR; node [shape=box];"
    yield from _dot_box(drawing, drawing.box, "    ", [])
    for edge in drawing.plan.edges:
        label = _quote(_label(drawing.plan, edge), _DOT_QUOTE)
        looks = [f'label="{label}"'] if label else []
        looks += ["penwidth=3", "constraint=false"] if edge.is_back else []
        ends = " -> ".join(f'"{_quote(name, _DOT_QUOTE)}"' for name in (edge.sender, edge.receiver))
        yield f"    {ends}" + (f" [{', '.join(looks)}];" if looks else ";")
    yield "}"


def _dot_box(drawing: Drawing, box: Box, margin: str, opened: list[str]) -> Iterator[str]:
    for entry in box.entries:
        if isinstance(entry, Box):
            opened.append(entry.label)
            yield f"{margin}subgraph cluster_{len(opened)} {{"
            yield f'{margin}    label="{_quote(entry.label, _DOT_QUOTE)}"; style=dashed;'
            yield from _dot_box(drawing, entry, margin + "    ", opened)
            yield f"{margin}}}"
            continue
        shape = "hexagon" if entry.name in drawing.heads else _DOT_SHAPES[entry.kind.drawn_as]
        yield f'{margin}"{_quote(entry.name, _DOT_QUOTE)}"' + (f" [shape={shape}];" if shape else ";")


_MERMAID_SHAPES: Mapping[Shape, tuple[str, str]] = {
    "box": ("[", "]"),
    "source": ("([", "])"),
    "sink": ("[(", ")]"),
    "choice": ("{", "}"),
}
_DOT_SHAPES: Mapping[Shape, str | None] = {"box": None, "source": "ellipse", "sink": "cylinder", "choice": "diamond"}
_DOT_QUOTE = '\\"'


def _quote(text: str, quote: str) -> str:
    return text.replace('"', quote)


def _label(plan: Plan, edge: Edge) -> str:
    return ", ".join(word for word in ((_output(edge) + _input(plan, edge)).strip(), *_remarks(edge)) if word)


def _output(edge: Edge) -> str:
    return "" if edge.output == "out" else f"{edge.output} "


def _input(plan: Plan, edge: Edge) -> str:
    return "" if plan.operators[edge.receiver].inputs == ("in",) else f" as {edge.input}"


def _remarks(edge: Edge) -> list[str]:
    remarks: list[str] = []
    if edge.routing is Routing.HASH:
        remarks.append("by question" if isinstance(edge.by, AskedAbout) else f"by key {_function(edge.by)}")
    elif edge.routing is Routing.ROUTE:
        remarks.append(f"routed by {_function(edge.by)}")
    elif edge.routing is not Routing.FORWARD:
        remarks.append(edge.routing.value)
    if edge.is_back:
        remarks.append(f"the back edge of {edge.loop}")
    if edge.max_rounds is not None:
        remarks.append(f"at most {edge.max_rounds} rounds")
    if edge.endless:
        remarks.append("endless")
    return remarks


def _function(by: Any) -> str:
    if isinstance(by, KeyColumns):
        return ", ".join(by.names)
    return by if isinstance(by, str) else function_name(by) or "a function"

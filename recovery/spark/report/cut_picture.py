"""Draws a cut as SVG: operators as boxes from left to right, back edges as arcs below, and the records in flight.

Labels are drawn last, so that they stay readable where a line passes under them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backedge.recovery.spark.report.edge_figures import EdgeFigures, describe_in_flight, figures_of_edges, label_of
from backedge.recovery.spark.report.graph_places import Corner, Line, Size, place
from backedge.recovery.spark.report.markup import Markup, element

BOX_WIDTH, BOX_HEIGHT = 190, 46
ROW_GAP, MARGIN = 34, 22
STACKED_MAX = 3
STACK_STEP = 5
NAME_CHARACTERS_MAX = 22
LABEL_WIDTH = 6.9
SCALE_MIN = 0.8
"""Smallest scale before the picture scrolls instead of shrinking."""


def picture_of_cut(cut: Mapping[str, Any]) -> Markup:
    """The picture as one SVG element; it needs only the stylesheet of its page.

    >>> graph = {"operators": [{"name": "read", "kind": "source"}], "edges": []}
    >>> picture_of_cut({"epoch": 3, "graph": graph}).startswith('<svg')
    True
    """
    operators: Mapping[str, Any] = {operator["name"]: operator for operator in cut["graph"]["operators"]}
    edges: Sequence[Mapping[str, Any]] = [
        edge for edge in cut["graph"]["edges"] if edge["sender"] in operators and edge["receiver"] in operators
    ]
    figures = figures_of_edges(cut)
    # Wider than the labels, which are placed nearer to the left box.
    widest = max((len(label_of(figures.get(edge["name"]))) for edge in edges), default=0)
    size = Size(BOX_WIDTH, BOX_HEIGHT, 60 + round(1.2 * LABEL_WIDTH * widest), ROW_GAP)
    ends = [(edge["sender"], edge["receiver"]) for edge in edges]
    places = place(list(operators), ends, [bool(edge.get("loop")) for edge in edges], size)
    drawn = [_edge(edge, figures.get(edge["name"]), line) for edge, line in zip(edges, places.lines, strict=True)]
    violated = _violated_operators(cut)
    parallelism: Mapping[str, int] = cut.get("parallelism", {})
    boxes = [
        _box(operator, parallelism.get(name, 1), places.at[name], is_violated=name in violated)
        for name, operator in operators.items()
    ]
    width, height = places.width + 2 * MARGIN, places.height + 2 * MARGIN
    return element(
        "svg",
        element("title", f"The graph at cut {cut['epoch']}: {len(operators)} operators, {len(edges)} edges"),
        *(line for line, _ in drawn),
        *boxes,
        *(figure for _, figure in drawn),
        class_="picture",
        style=f"min-width: {width * SCALE_MIN:.0f}px",
        role="img",
        viewBox=f"-{MARGIN} -{MARGIN} {width} {height}",
        width=width,
        height=height,
        xmlns="http://www.w3.org/2000/svg",
    )


def _box(operator: Mapping[str, Any], tasks: int, corner: Corner, *, is_violated: bool) -> Markup:
    """An operator, with other boxes behind it for its tasks."""
    (x, y), name = corner, operator["name"]
    kind = f"{operator['kind']}{f', {tasks} tasks' if tasks > 1 else ''}"
    behind = range(min(tasks - 1, STACKED_MAX), 0, -1)
    centre = x + BOX_WIDTH / 2
    return element(
        "g",
        element("title", f"{name}: {operator['kind']}, {tasks} {'task' if tasks == 1 else 'tasks'}"),
        *(_rectangle(x + STACK_STEP * at, y - 3 * at, "behind") for at in behind),
        _rectangle(x, y, "front"),
        element("text", _short(name), x=centre, y=y + 20, class_="name"),
        element("text", kind, x=centre, y=y + 37, class_="kind"),
        class_=f"box {operator['kind']}" + (" violated" if is_violated else ""),
    )


def _violated_operators(cut: Mapping[str, Any]) -> set[str]:
    named = {finding["task"] for finding in cut.get("findings", ()) if finding.get("task")}
    violated = {task.rpartition("/")[0] or task for task in named} | named
    for task in cut.get("tasks", ()):
        if task.get("task") in violated:
            violated |= set(task.get("operators", ()))
    return violated


def _edge(edge: Mapping[str, Any], figures: EdgeFigures | None, line: Line) -> tuple[Markup, Markup]:
    """The line of an edge, and its label, which is drawn later."""
    text = label_of(figures)
    if line.lane is not None:
        text = f"{_short(edge.get('loop') or edge['name'])}: {describe_in_flight(figures)}"
    classes = "back" if edge.get("loop") else "onward"
    # An edge drawn backwards that is not a back edge closes a cycle that no back edge covers.
    is_violated = line.lane is not None and not edge.get("loop")
    classes += " violated" if is_violated or (figures is not None and figures.is_violated) else ""
    description = f"{edge['name']}: {edge['sender']} to {edge['receiver']}"
    if figures is None:
        classes += " within"
        description += ", within one task: no channel"
    else:
        classes += " full" if figures.batches_in_flight else ""
        description += (
            f"; {figures.sent:,} batches sent (n), {figures.consumed:,} received (m), {figures.logged:,} logged (L), "
            f"{figures.restored_batches:,} restored and not yet processed; {describe_in_flight(figures)}; "
            f"{figures.channels} channels, {figures.within_actor} of them within an actor"
        )
    title = element("title", description)
    (x, y), (end_x, end_y) = line.label, line.end
    figure = element("text", text, x=x, y=y, class_="label")
    tip = "l-9 -4.5 v9 z" if line.lane is None else "l-4.5 9 h9 z"
    head = element("path", d=f"M{end_x:.1f} {end_y:.1f} {tip}", class_="head")
    return (
        element("g", title, element("path", d=line.path), head, class_=f"edge {classes}"),
        element("g", title, figure, class_=f"figure {classes}"),
    )


def _rectangle(x: float, y: float, class_: str) -> Markup:
    return element("rect", x=x, y=y, width=BOX_WIDTH, height=BOX_HEIGHT, rx=8, class_=class_)


def _short(name: str) -> str:
    """Shorten a long name in the middle: names of one flow often share a prefix or a suffix.

    >>> _short("account_balances_by_customer_and_region")
    'account_bal…and_region'
    """
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[: NAME_CHARACTERS_MAX - 11]}…{name[-10:]}"

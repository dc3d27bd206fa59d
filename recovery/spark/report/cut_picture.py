"""The picture of a cut: operators in boxes from left to right, back edges as arcs below, what was in flight on each.

Lines to the right leave a box on its right and enter one on its left. A back edge goes down beside its sender, left in
a lane of its own below all boxes, and up beside its receiver: so it crosses no box. The shorter it is, the higher its
lane, so that loops within loops do not cross. Figures are drawn last: a line that passes under one leaves it readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from recovery.spark.report.edge_figures import EdgeFigures, figures_of_edges, label_of, told_in_flight
from recovery.spark.report.markup import Markup, element
from recovery.spark.report.picture_layout import Arrangement, Spot, arrange

BOX_HEIGHT = 46.0
BEND_HEIGHT = 14.0
ROW_GAP = 34.0
LANE_HEIGHT = 32.0
MARGIN = 22.0
STACKED_MAX = 3
STACK_STEP = 5.0
PARALLEL_GAP = 15.0
NAME_CHARACTERS_MAX = 24
NAME_WIDTH = 7.8
LABEL_WIDTH = 6.9
SCALE_MIN = 0.8
"""A picture that would have to be smaller than this to fit is scrolled instead."""


def picture_of_cut(cut: Mapping[str, Any]) -> Markup:
    """The picture as one SVG element, which needs nothing but the style of its page.

    >>> graph = {"operators": [{"name": "read", "kind": "source"}], "edges": []}
    >>> picture_of_cut({"epoch": 3, "graph": graph}).startswith('<svg')
    True
    """
    return _Picture(cut).drawn()


class _Picture:
    def __init__(self, cut: Mapping[str, Any]) -> None:
        self.cut = cut
        self.operators: Mapping[str, Any] = {operator["name"]: operator for operator in cut["graph"]["operators"]}
        self.edges: Sequence[Mapping[str, Any]] = [
            edge
            for edge in cut["graph"]["edges"]
            if edge["sender"] in self.operators and edge["receiver"] in self.operators
        ]
        self.figures = figures_of_edges(cut)
        onward = [edge for edge in self.edges if not edge.get("loop")]
        arrangement = arrange(list(self.operators), [(edge["sender"], edge["receiver"]) for edge in onward])
        self.onward = [(edge, arrangement.ways[at]) for at, edge in enumerate(onward) if at in arrangement.ways]
        drawn = {edge["name"] for edge, _ in self.onward}
        self.returning = [edge for edge in self.edges if edge["name"] not in drawn]
        self.stack = STACK_STEP * max(map(self._behind, self.operators), default=0)
        self._place(arrangement)
        self.returning.sort(key=lambda edge: self.spots[edge["sender"]][0] - self.spots[edge["receiver"]][0])

    def drawn(self) -> Markup:
        """All of it."""
        lanes = [self._arc(edge, lane) for lane, edge in enumerate(self.returning)]
        lines = [self._line(edge, way) for edge, way in self.onward]
        boxes = [self._box(operator) for operator in self.operators.values()]
        figures = [figure for _, figure in (*lanes, *lines)]
        height = self.bottom + LANE_HEIGHT * len(self.returning) + 4
        title = f"The graph at cut {self.cut['epoch']}: {len(self.operators)} operators, {len(self.edges)} edges"
        return element(
            "svg",
            element("title", title),
            *(line for line, _ in (*lines, *lanes)),
            *boxes,
            *figures,
            class_="picture",
            style=f"min-width: {self.width * SCALE_MIN:.0f}px",
            role="img",
            viewBox=f"0 0 {self.width:.0f} {height:.0f}",
            width=round(self.width),
            height=round(height),
            xmlns="http://www.w3.org/2000/svg",
        )

    def _place(self, arrangement: Arrangement) -> None:
        """Give every spot its left end, its width and the height of its middle."""
        self.spots: dict[Spot, tuple[float, float, float]] = {}
        heights = [sum(map(_height, column)) + ROW_GAP * (len(column) - 1) for column in arrangement.columns]
        tallest = max(heights, default=0.0)
        x = MARGIN + self._corners((), arrangement.columns[0] if arrangement.columns else ())
        for at, (column, height) in enumerate(zip(arrangement.columns, heights, strict=True)):
            width = max(self._box_width(spot) for spot in column)
            y = MARGIN + (tallest - height) / 2
            for spot in column:
                self.spots[spot] = (x, width, y + _height(spot) / 2)
                y += _height(spot) + ROW_GAP
            after = arrangement.columns[at + 1] if at + 1 < len(arrangement.columns) else ()
            x += width + self.stack + self._gap(column, after)
        self.width = x
        self.bottom = MARGIN + tallest + 8

    def _box_width(self, spot: Spot) -> float:
        if not isinstance(spot, str):
            return 40.0
        return max(92.0, 26 + NAME_WIDTH * max(len(_short(spot)), len(self._kind_line(spot)) * 0.85))

    def _gap(self, column: Sequence[Spot], after: Sequence[Spot]) -> float:
        labels = [label_of(self.figures.get(edge["name"])) for edge, way in self.onward if way[0] in column]
        # More than a figure is wide, as it stands nearer to the box before it.
        label = 1.2 * LABEL_WIDTH * max(map(len, labels), default=0)
        return (44 if after else MARGIN) + max(label, self._corners(column, after))

    def _corners(self, column: Sequence[Spot], after: Sequence[Spot]) -> float:
        """What back edges need between two columns, to go down and up there."""
        ends = [edge["sender"] in column or edge["receiver"] in after for edge in self.returning]
        return 14.0 * len(ends) if any(ends) else 0.0

    def _right(self, spot: Spot) -> float:
        """Where the stack of a box ends."""
        x, width, _ = self.spots[spot]
        return x + width + (STACK_STEP * self._behind(spot) if isinstance(spot, str) else 0.0)

    def _behind(self, name: str) -> int:
        return min(self.cut.get("parallelism", {}).get(name, 1) - 1, STACKED_MAX)

    def _kind_line(self, name: str) -> str:
        tasks = self.cut.get("parallelism", {}).get(name, 1)
        return f"{self.operators[name]['kind']}{f', {tasks} tasks' if tasks > 1 else ''}"

    def _box(self, operator: Mapping[str, Any]) -> Markup:
        name = operator["name"]
        x, width, middle = self.spots[name]
        y = middle - BOX_HEIGHT / 2
        tasks = self.cut.get("parallelism", {}).get(name, 1)
        behind = range(self._behind(name), 0, -1)
        parts = [_rectangle(x + STACK_STEP * at, y - 3 * at, width, "behind") for at in behind]
        parts.append(_rectangle(x, y, width, "front"))
        centre = x + width / 2
        parts.append(element("text", _short(name), x=centre, y=middle - 3, class_="name"))
        parts.append(element("text", self._kind_line(name), x=centre, y=middle + 14, class_="kind"))
        task_word = "task" if tasks == 1 else "tasks"
        title = element("title", f"{name}: {operator['kind']}, {tasks} {task_word}")
        classes = f"box {operator['kind']}" + (" violated" if name in self._violated_operators() else "")
        return element("g", title, *parts, class_=classes)

    def _violated_operators(self) -> set[str]:
        named = {finding["task"] for finding in self.cut.get("findings", ()) if finding.get("task")}
        violated = {task.rpartition("/")[0] or task for task in named} | named
        for task in self.cut.get("tasks", ()):
            if task.get("task") in violated:
                violated |= set(task.get("operators", ()))
        return violated

    def _line(self, edge: Mapping[str, Any], way: Sequence[Spot]) -> tuple[Markup, Markup]:
        figures = self.figures.get(edge["name"])
        aside = self._aside(edge)
        x, _, y = self.spots[way[0]]
        path = f"M{x + self.spots[way[0]][1]:.1f} {y + aside:.1f}"
        for left, right in pairwise(way):
            (x1, y1), (x2, width2, y2) = (self._right(left), self.spots[left][2]), self.spots[right]
            y1, y2, reach = y1 + aside, y2 + aside, (x2 - x1) / 2
            path += f" H{x1:.1f} C{x1 + reach:.1f} {y1:.1f} {x2 - reach:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
            path += "" if isinstance(right, str) else f" h{width2:.1f}"
        x, (after_x, _, after_y) = self._right(way[0]), self.spots[way[1]]
        # Before the middle of the first bow: there, lines that cross would have their figures at one place.
        place = (x + 0.44 * (after_x - x), y + 0.38 * (after_y - y) + aside - 6)
        end_x, _, end_y = self.spots[way[-1]]
        return _edge(edge, figures, path, _head(end_x, end_y + aside), (label_of(figures), *place))

    def _aside(self, edge: Mapping[str, Any]) -> float:
        """How far a line is moved off the middle of its boxes, because others run between the same two."""
        ends = (edge["sender"], edge["receiver"])
        beside = [other["name"] for other, _ in self.onward if (other["sender"], other["receiver"]) == ends]
        step = min(PARALLEL_GAP, (BOX_HEIGHT - 8) / len(beside))
        return step * (beside.index(edge["name"]) - (len(beside) - 1) / 2)

    def _arc(self, edge: Mapping[str, Any], lane: int) -> tuple[Markup, Markup]:
        figures = self.figures.get(edge["name"])
        x1, width1, y1 = self.spots[edge["sender"]]
        x2, _, y2 = self.spots[edge["receiver"]]
        down, up = x1 + width1 + self.stack + 8 + 7 * lane, x2 - 16 - 7 * lane
        # Off the middle of a box, where the lines to the right are.
        y1, y2 = y1 + BOX_HEIGHT / 4, y2 + BOX_HEIGHT / 4
        low = self.bottom + LANE_HEIGHT * (lane + 0.6)
        path = (
            f"M{x1 + width1:.1f} {y1:.1f} H{down - 10:.1f} Q{down:.1f} {y1:.1f} {down:.1f} {y1 + 14:.1f} "
            f"V{low - 14:.1f} Q{down:.1f} {low:.1f} {down - 14:.1f} {low:.1f} H{up + 14:.1f} "
            f"Q{up:.1f} {low:.1f} {up:.1f} {low - 14:.1f} V{y2 + 14:.1f} "
            f"Q{up:.1f} {y2:.1f} {up + 8:.1f} {y2:.1f} H{x2:.1f}"
        )
        told = f"{_short(edge.get('loop') or edge['name'])}: {told_in_flight(figures)}"
        # An arc that is no back edge closes a cycle which no back edge covers.
        is_violated = not edge.get("loop")
        return _edge(edge, figures, path, _head(x2, y2), (told, (down + up) / 2, low - 6), is_violated)


def _edge(
    edge: Mapping[str, Any],
    figures: EdgeFigures | None,
    path: str,
    head: Markup,
    label: tuple[str, float, float],
    is_violated: bool = False,
) -> tuple[Markup, Markup]:
    """The line of an edge, and its figure, which is drawn later."""
    classes = "back" if edge.get("loop") else "onward"
    classes += " violated" if is_violated or (figures is not None and figures.is_violated) else ""
    told = f"{edge['name']}: {edge['sender']} to {edge['receiver']}"
    if figures is None:
        classes += " within"
        told += ", within one task: no channel"
    else:
        classes += " full" if figures.batches_in_flight else ""
        told += (
            f"; {figures.sent:,} batches sent (n), {figures.consumed:,} received (m), {figures.logged:,} logged (L), "
            f"{figures.restored_batches:,} restored and not yet processed; {told_in_flight(figures)}; "
            f"{figures.channels} channels, {figures.within_actor} of them within an actor"
        )
    title = element("title", told)
    text, x, y = label
    figure = element("text", text, x=x, y=y, class_="label")
    return (
        element("g", title, element("path", d=path), head, class_=f"edge {classes}"),
        element("g", title, figure, class_=f"figure {classes}"),
    )


def _head(x: float, y: float) -> Markup:
    return element("path", d=f"M{x:.1f} {y:.1f} l-9 -4.5 v9 z", class_="head")


def _rectangle(x: float, y: float, width: float, class_: str) -> Markup:
    return element("rect", x=x, y=y, width=width, height=BOX_HEIGHT, rx=8, class_=class_)


def _height(spot: Spot) -> float:
    return BOX_HEIGHT if isinstance(spot, str) else BEND_HEIGHT


def _short(name: str) -> str:
    """Long names are cut in the middle: those of one flow often begin alike, or end alike.

    >>> _short("account_balances_by_customer_and_region")
    'account_balan…and_region'
    """
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[: NAME_CHARACTERS_MAX - 11]}…{name[-10:]}"

"""Draws a cut as SVG: operators as boxes from left to right, back edges as arcs below, and the records in flight.

Forward edges leave a box on its right and enter one on its left. A back edge goes down beside its sender, left in its
own lane below all boxes, and up beside its receiver, so it crosses no box. Shorter back edges use higher lanes, so
nested loops do not cross. Labels are drawn last, so that they stay readable where a line passes under them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from backedge.graphs.picture_layout import Arrangement, Spot, arrange
from backedge.recovery.spark.report.edge_figures import EdgeFigures, describe_in_flight, figures_of_edges, label_of
from backedge.recovery.spark.report.markup import Markup, element

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
"""Smallest scale before the picture scrolls instead of shrinking."""


def picture_of_cut(cut: Mapping[str, Any]) -> Markup:
    """The picture as one SVG element; it needs only the stylesheet of its page.

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
        """The whole picture."""
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
        """Compute the left end, width and vertical centre of every spot."""
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
        # Wider than the label, which is placed nearer to the left box.
        label = 1.2 * LABEL_WIDTH * max(map(len, labels), default=0)
        return (44 if after else MARGIN) + max(label, self._corners(column, after))

    def _corners(self, column: Sequence[Spot], after: Sequence[Spot]) -> float:
        """Width that back edges need between two columns for their vertical parts."""
        ends = [edge["sender"] in column or edge["receiver"] in after for edge in self.returning]
        return 14.0 * len(ends) if any(ends) else 0.0

    def _right(self, spot: Spot) -> float:
        """The right end of a box, including the stack behind it."""
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
        # Left of the middle of the first curve, where the labels of crossing lines would collide.
        place = (x + 0.44 * (after_x - x), y + 0.38 * (after_y - y) + aside - 6)
        end_x, _, end_y = self.spots[way[-1]]
        return _edge(edge, figures, path, _head(end_x, end_y + aside), (label_of(figures), *place))

    def _aside(self, edge: Mapping[str, Any]) -> float:
        """Vertical offset of a line if several edges connect the same two boxes."""
        ends = (edge["sender"], edge["receiver"])
        beside = [other["name"] for other, _ in self.onward if (other["sender"], other["receiver"]) == ends]
        step = min(PARALLEL_GAP, (BOX_HEIGHT - 8) / len(beside))
        return step * (beside.index(edge["name"]) - (len(beside) - 1) / 2)

    def _arc(self, edge: Mapping[str, Any], lane: int) -> tuple[Markup, Markup]:
        figures = self.figures.get(edge["name"])
        x1, width1, y1 = self.spots[edge["sender"]]
        x2, _, y2 = self.spots[edge["receiver"]]
        down, up = x1 + width1 + self.stack + 8 + 7 * lane, x2 - 16 - 7 * lane
        # Below the centre of the box, where forward edges attach.
        y1, y2 = y1 + BOX_HEIGHT / 4, y2 + BOX_HEIGHT / 4
        low = self.bottom + LANE_HEIGHT * (lane + 0.6)
        path = (
            f"M{x1 + width1:.1f} {y1:.1f} H{down - 10:.1f} Q{down:.1f} {y1:.1f} {down:.1f} {y1 + 14:.1f} "
            f"V{low - 14:.1f} Q{down:.1f} {low:.1f} {down - 14:.1f} {low:.1f} H{up + 14:.1f} "
            f"Q{up:.1f} {low:.1f} {up:.1f} {low - 14:.1f} V{y2 + 14:.1f} "
            f"Q{up:.1f} {y2:.1f} {up + 8:.1f} {y2:.1f} H{x2:.1f}"
        )
        label = f"{_short(edge.get('loop') or edge['name'])}: {describe_in_flight(figures)}"
        # An edge drawn backwards that is not a back edge closes a cycle that no back edge covers.
        is_violated = not edge.get("loop")
        return _edge(edge, figures, path, _head(x2, y2), (label, (down + up) / 2, low - 6), is_violated)


def _edge(
    edge: Mapping[str, Any],
    figures: EdgeFigures | None,
    path: str,
    head: Markup,
    label: tuple[str, float, float],
    is_violated: bool = False,
) -> tuple[Markup, Markup]:
    """The line of an edge, and its label, which is drawn later."""
    classes = "back" if edge.get("loop") else "onward"
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
    """Shorten a long name in the middle: names of one flow often share a prefix or a suffix.

    >>> _short("account_balances_by_customer_and_region")
    'account_balan…and_region'
    """
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[: NAME_CHARACTERS_MAX - 11]}…{name[-10:]}"

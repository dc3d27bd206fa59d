"""The picture of a cut: operators in boxes from left to right, back edges as arcs below, what was in flight on each.

Lines to the right leave a box on its right and enter one on its left. A back edge goes down beside its sender, left in
a lane of its own below all boxes, and up beside its receiver: so it crosses no box.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from recovery.spark.arranging import Arrangement, Spot, arrange
from recovery.spark.edge_figures import EdgeFigures, figures_of_edges, in_flight
from recovery.spark.markup import Markup, element

BOX_HEIGHT = 46.0
BEND_HEIGHT = 14.0
ROW_GAP = 34.0
LANE_HEIGHT = 32.0
MARGIN = 22.0
STACKED_MAX = 3
NAME_CHARACTERS_MAX = 24
NAME_WIDTH = 7.8
LABEL_WIDTH = 6.2


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
        self._place(arrangement)

    def drawn(self) -> Markup:
        """All of it."""
        lanes = [self._arc(edge, lane) for lane, edge in enumerate(self.returning)]
        lines = [self._line(edge, way) for edge, way in self.onward]
        boxes = [self._box(operator) for operator in self.operators.values()]
        height = self.bottom + LANE_HEIGHT * len(self.returning) + MARGIN
        title = f"The graph at cut {self.cut['epoch']}: {len(self.operators)} operators, {len(self.edges)} edges"
        return element(
            "svg",
            element("title", title),
            *lines,
            *lanes,
            *boxes,
            class_="picture",
            # On a phone it is scrolled, not made too small to read.
            style=f"min-width: min({self.width:.0f}px, 40rem)",
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
        stack = 5.0 * STACKED_MAX
        x = MARGIN + LABEL_WIDTH * 2
        for column, height in zip(arrangement.columns, heights, strict=True):
            width = max(self._box_width(spot) for spot in column)
            y = MARGIN + stack + (tallest - height) / 2
            for spot in column:
                self.spots[spot] = (x, width, y + _height(spot) / 2)
                y += _height(spot) + ROW_GAP
            x += width + self._gap_behind(column)
        self.width = x + MARGIN
        self.bottom = MARGIN + stack + tallest + 8

    def _box_width(self, spot: Spot) -> float:
        if not isinstance(spot, str):
            return 40.0
        return max(104.0, 26 + NAME_WIDTH * max(len(_short(spot)), len(self._kind_line(spot)) * 0.85))

    def _gap_behind(self, column: Sequence[Spot]) -> float:
        labels = [_label(self.figures.get(edge["name"])) for edge, way in self.onward if way[0] in column]
        corners = 12.0 * len(self.returning)
        return 44 + max(LABEL_WIDTH * max(map(len, labels), default=0), corners)

    def _kind_line(self, name: str) -> str:
        tasks = self.cut.get("parallelism", {}).get(name, 1)
        return f"{self.operators[name]['kind']}{f', {tasks} tasks' if tasks > 1 else ''}"

    def _box(self, operator: Mapping[str, Any]) -> Markup:
        name = operator["name"]
        x, width, middle = self.spots[name]
        y = middle - BOX_HEIGHT / 2
        tasks = self.cut.get("parallelism", {}).get(name, 1)
        behind = range(min(tasks, STACKED_MAX + 1) - 1, 0, -1)
        parts = [_rectangle(x + 5 * at, y - 5 * at, width, "behind") for at in behind]
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

    def _line(self, edge: Mapping[str, Any], way: Sequence[Spot]) -> Markup:
        figures = self.figures.get(edge["name"])
        x, width, y = self.spots[way[0]]
        path = f"M{x + width:.1f} {y:.1f}"
        for left, right in pairwise(way):
            (x1, width1, y1), (x2, width2, y2) = self.spots[left], self.spots[right]
            reach = (x2 - x1 - width1) / 2
            path += f" C{x1 + width1 + reach:.1f} {y1:.1f} {x2 - reach:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
            path += "" if isinstance(right, str) else f" h{width2:.1f}"
        after_x, _, after_y = self.spots[way[1]]
        label = element("text", _label(figures), x=(x + width + after_x) / 2, y=(y + after_y) / 2 - 6, class_="label")
        end_x, _, end_y = self.spots[way[-1]]
        return _edge(edge, figures, path, _head(end_x, end_y), label)

    def _arc(self, edge: Mapping[str, Any], lane: int) -> Markup:
        figures = self.figures.get(edge["name"])
        x1, width1, y1 = self.spots[edge["sender"]]
        x2, _, y2 = self.spots[edge["receiver"]]
        down, up = x1 + width1 + 16 + 7 * lane, x2 - 16 - 7 * lane
        # Off the middle of a box, where the lines to the right are.
        y1, y2 = y1 + BOX_HEIGHT / 4, y2 + BOX_HEIGHT / 4
        low = self.bottom + LANE_HEIGHT * (lane + 0.6)
        path = (
            f"M{x1 + width1:.1f} {y1:.1f} C{down:.1f} {y1:.1f} {down:.1f} {y1:.1f} {down:.1f} {y1 + 14:.1f} "
            f"V{low - 14:.1f} Q{down:.1f} {low:.1f} {down - 14:.1f} {low:.1f} H{up + 14:.1f} "
            f"Q{up:.1f} {low:.1f} {up:.1f} {low - 14:.1f} V{y2 + 14:.1f} "
            f"C{up:.1f} {y2:.1f} {up:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
        )
        told = f"{edge.get('loop') or edge['name']}: {_told_in_flight(figures)}"
        label = element("text", told, x=(down + up) / 2, y=low - 6, class_="label")
        # An arc that is no back edge closes a cycle which no back edge covers.
        return _edge(edge, figures, path, _head(x2, y2), label, is_violated=not edge.get("loop"))


def _told_in_flight(figures: EdgeFigures | None) -> str:
    return "within one task" if figures is None else in_flight(figures.batches_in_flight, figures.records)


def _label(figures: EdgeFigures | None) -> str:
    """The batches of an edge: how many, when all have arrived; else n, m and L."""
    if figures is None:
        return ""
    if figures.sent == figures.consumed and not figures.batches_in_flight:
        return f"{figures.sent:,}"
    return f"n {figures.sent:,} · m {figures.consumed:,} · L {figures.batches_in_flight:,}"


def _edge(
    edge: Mapping[str, Any],
    figures: EdgeFigures | None,
    path: str,
    head: Markup,
    label: Markup,
    is_violated: bool = False,
) -> Markup:
    classes = f"edge {'back' if edge.get('loop') else 'onward'}"
    classes += " violated" if is_violated or (figures is not None and figures.is_violated) else ""
    told = f"{edge['name']}: {edge['sender']} to {edge['receiver']}"
    if figures is None:
        classes += " within"
        told += ", within one task: no channel"
    else:
        classes += " full" if figures.batches_in_flight else ""
        told += (
            f"; {figures.sent:,} batches sent (n), {figures.consumed:,} received (m), {figures.logged:,} logged (L), "
            f"{figures.restored_batches:,} restored and not yet processed; {_told_in_flight(figures)}; "
            f"{figures.channels} channels, {figures.within_actor} of them within an actor"
        )
    return element("g", element("title", told), element("path", d=path), head, label, class_=classes)


def _head(x: float, y: float) -> Markup:
    return element("path", d=f"M{x:.1f} {y:.1f} l-9 -4.5 v9 z", class_="head")


def _rectangle(x: float, y: float, width: float, class_: str) -> Markup:
    return element("rect", x=x, y=y, width=width, height=BOX_HEIGHT, rx=8, class_=class_)


def _height(spot: Spot) -> float:
    return BOX_HEIGHT if isinstance(spot, str) else BEND_HEIGHT


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[: NAME_CHARACTERS_MAX - 1]}…"

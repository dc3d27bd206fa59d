"""The strip that shows a run: an attempt a row, its cuts from left to right, and from which cut a restart went on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recovery.spark.markup import Markup, element

STEP = 44.0
ROW = 44.0
LEFT = 92.0
RADIUS = 9.0


def strip_of_history(verdict: Mapping[str, Any]) -> Markup:
    """The strip as one SVG element.

    >>> verdict = {"attempts": [{"attempt": 1, "restored": None}], "cuts": [{"epoch": 2, "attempt": 1}]}
    >>> strip_of_history(verdict).count("<circle")
    1
    """
    return _Strip(verdict).drawn()


class _Strip:
    def __init__(self, verdict: Mapping[str, Any]) -> None:
        self.cuts: dict[int, Mapping[str, Any]] = {cut["epoch"]: cut for cut in verdict["cuts"]}
        self.restored: dict[int, int | None] = {
            start["attempt"]: start.get("restored") for start in verdict.get("attempts", ())
        }
        numbers = sorted({*self.restored, *(cut["attempt"] for cut in self.cuts.values())})
        self.row_of = {attempt: row for row, attempt in enumerate(numbers)}
        self._place()

    def drawn(self) -> Markup:
        """All of it."""
        rows = [part for attempt in self.row_of for part in self._row(attempt)]
        restores = [self._restore(attempt, epoch) for attempt, epoch in self.restored.items() if epoch is not None]
        dots = [self._dot(epoch) for epoch in self.place_of]
        height = ROW * len(self.row_of) + 8
        title = f"{len(self.row_of)} attempts, {len(self.cuts)} cuts"
        return element(
            "svg",
            element("title", title),
            *rows,
            *restores,
            *dots,
            class_="history",
            role="img",
            viewBox=f"0 0 {self.width:.0f} {height:.0f}",
            width=round(self.width),
            height=round(height),
            xmlns="http://www.w3.org/2000/svg",
        )

    def _place(self) -> None:
        """Give every cut its place. One that was restored and not audited stands before its attempt's audited ones."""
        by_attempt = {
            attempt: [e for e, cut in self.cuts.items() if cut["attempt"] == attempt] for attempt in self.row_of
        }
        self.place_of: dict[int, tuple[float, float]] = {}
        self.start_of: dict[int, float] = {}
        x, row_before = LEFT, 0
        for attempt, row in self.row_of.items():
            epoch = self.restored.get(attempt)
            if epoch is not None and epoch not in self.cuts and epoch not in self.place_of:
                self.place_of[epoch] = (x, _middle(row_before))
                x += STEP
            self.start_of[attempt] = x
            x += STEP
            for cut in sorted(by_attempt[attempt]):
                self.place_of[cut] = (x, _middle(row))
                x += STEP
            row_before = row
        self.width = x

    def _row(self, attempt: int) -> list[Markup]:
        y = _middle(self.row_of[attempt])
        start = self.start_of[attempt]
        last = max((x for x, height in self.place_of.values() if height == y), default=start)
        return [
            element("text", f"attempt {attempt}", x=8.0, y=y + 4, class_="attempt"),
            element("path", d=f"M{start:.1f} {y:.1f} H{max(last, start + STEP / 2):.1f}", class_="life"),
            element("path", d=f"M{start:.1f} {y - 7:.1f} v14", class_="life"),
        ]

    def _restore(self, attempt: int, epoch: int) -> Markup:
        x, y = self.place_of[epoch]
        start, end = self.start_of[attempt], _middle(self.row_of[attempt])
        path = f"M{x:.1f} {y + RADIUS:.1f} C{x:.1f} {end:.1f} {x:.1f} {end:.1f} {start - 8:.1f} {end:.1f}"
        title = element("title", f"attempt {attempt} went on from cut {epoch}")
        head = element("path", d=f"M{start - 2:.1f} {end:.1f} l-8 -4 v8 z", class_="head")
        return element("g", title, element("path", d=path), head, class_="restore")

    def _dot(self, epoch: int) -> Markup:
        x, y = self.place_of[epoch]
        cut = self.cuts.get(epoch)
        state = "unaudited" if cut is None else "consistent" if cut.get("consistent", True) else "violated"
        title = element("title", f"cut {epoch}: {'not audited' if cut is None else state}")
        circle = element("circle", cx=x, cy=y, r=RADIUS)
        number = element("text", str(epoch), x=x, y=y - RADIUS - 4, class_="label")
        return element("g", title, circle, number, class_=f"dot {state}")


def _middle(row: int) -> float:
    return ROW * row + 28

"""The history of a run as an HTML list: one row per attempt, with the cut it restored and links to its own cuts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backedge.recovery.spark.report.markup import Markup, element

_MARKS = {"consistent": "✓", "violated": "✗", "unaudited": "○"}


def strip_of_history(verdict: Mapping[str, Any]) -> Markup:
    """The list as one element.

    >>> verdict = {"attempts": [{"attempt": 1, "restored": None}], "cuts": [{"epoch": 2, "attempt": 1}]}
    >>> "✓ 2" in strip_of_history(verdict)
    True
    """
    cuts: Mapping[int, Mapping[str, Any]] = {cut["epoch"]: cut for cut in verdict["cuts"]}
    restored: dict[int, int | None] = {start["attempt"]: start.get("restored") for start in verdict.get("attempts", ())}
    rows = [
        element("li", element("span", _label(attempt, restored.get(attempt)), class_="attempt"), element("div", *dots))
        for attempt, dots in _dots(cuts, restored).items()
    ]
    return element("ol", *rows, class_="history")


def _label(attempt: int, restored: int | None) -> str:
    return f"attempt {attempt}" if restored is None else f"attempt {attempt} resumed from cut {restored}"


def _dots(cuts: Mapping[int, Mapping[str, Any]], restored: Mapping[int, int | None]) -> dict[int, list[Markup]]:
    """Attempt -> its cuts. A cut that was restored but not audited is listed with the previous attempt."""
    epochs: dict[int, set[int]] = {}
    for attempt in sorted({*restored, *(cut["attempt"] for cut in cuts.values())}):
        epoch = restored.get(attempt)
        if epoch is not None and not any(epoch in placed for placed in epochs.values()):
            epochs.setdefault(max(epochs, default=attempt), set()).add(epoch)
        own = {number for number, cut in cuts.items() if cut["attempt"] == attempt}
        epochs.setdefault(attempt, set()).update(own)
    return {attempt: [_dot(epoch, cuts.get(epoch)) for epoch in sorted(placed)] for attempt, placed in epochs.items()}


def _dot(epoch: int, cut: Mapping[str, Any] | None) -> Markup:
    state = "unaudited" if cut is None else "consistent" if cut.get("consistent", True) else "violated"
    title = f"cut {epoch}: {'not audited' if cut is None else state}"
    # A cut that was not audited has no picture to link to.
    name, leads_to = ("span", None) if cut is None else ("a", f"#cut-{epoch}")
    return element(name, f"{_MARKS[state]} {epoch}", class_=f"dot {state}", href=leads_to, title=title)

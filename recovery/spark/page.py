"""The verdict of an audit as one HTML page that needs nothing else: to be looked at, sent on, kept beside a cut.

What is on it comes from the JSON of the verdict, so that a page can be made again of what was stored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recovery.spark.edge_figures import in_flight_of, name_of_channel, violated_channels
from recovery.spark.history import strip_of_history
from recovery.spark.markup import Markup, element
from recovery.spark.page_style import STYLE
from recovery.spark.picture import picture_of_cut

OPEN_MAX = 3
"""So many cuts are unfolded; the others unfold when they are clicked."""

CHANNEL_COLUMNS = ("channel", "sent (n)", "received (m)", "logged (L)", "records", "checked by")


def write_page(verdict: Mapping[str, Any], path: str) -> None:
    """Write the page of a verdict, whole, over what was there. `verdict` is what `Verdict.to_json` gives.

    >>> import tempfile
    >>> verdict = {"job": "shop", "consistent": True, "attempts": [], "cuts": [], "findings": []}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page(verdict, f"{folder}/audit.html")
    ...     "shop" in Path(folder, "audit.html").read_text()
    True
    """
    temporary = Path(f"{path}.{os.getpid()}")
    try:
        temporary.write_text(page_of(verdict), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def page_of(verdict: Mapping[str, Any]) -> str:
    """The page as text."""
    cuts: Sequence[Mapping[str, Any]] = verdict["cuts"]
    findings = [_findings(verdict["findings"])] if verdict["findings"] else []
    unfolded = _unfolded(cuts)
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{verdict['job']}: {_outcome(verdict)}"),
        element("style", STYLE),
    )
    body = element(
        "body",
        _headline(verdict),
        *findings,
        *_section("What must hold", _statements(verdict)),
        *_section("The run", element("div", strip_of_history(verdict), class_="scroll"), _key_of_history()),
        *_section("The cuts", _key_of_picture(), *(_cut(cut, cut["epoch"] in unfolded) for cut in reversed(cuts))),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _section(heading: str, *parts: str) -> list[Markup]:
    return [element("h2", heading), *(element("div", part) for part in parts)]


def _outcome(verdict: Mapping[str, Any]) -> str:
    return "consistent" if verdict["consistent"] else "not consistent"


def _headline(verdict: Mapping[str, Any]) -> Markup:
    cuts = verdict["cuts"]
    sizes = [cut.get("sizes", {}) for cut in cuts]
    if verdict["consistent"]:
        told = "Consistent"
        why = (
            "Nothing was lost, doubled or changed: each record is in exactly one place, in every cut that was audited."
        )
    else:
        told = "Not consistent"
        names = dict.fromkeys(f"{found['statement']}: {found['name']}" for found in verdict["findings"])
        why = f"Violated: {'; '.join(names)}."
    figures = [
        (len(cuts), "cut audited" if len(cuts) == 1 else "cuts audited"),
        (max((size.get("channels", 0) for size in sizes), default=0), "channels"),
        (sum(size.get("log_records") or 0 for size in sizes), "records in flight, in all cuts"),
        (max(len(verdict["attempts"]) - 1, 0), "restarts"),
    ]
    listed = [element("li", element("b", f"{count:,}"), what) for count, what in figures]
    kind = "good" if verdict["consistent"] else "bad"
    headline = element("div", element("strong", told), element("p", why), class_=f"headline {kind}")
    where = element("p", verdict.get("path", ""), class_="faint")
    return element("header", element("h1", verdict["job"]), headline, element("ul", *listed, class_="figures"), where)


def _findings(findings: Sequence[Mapping[str, Any]]) -> Markup:
    rows = [
        element(
            "tr",
            element("td", "the job" if found["epoch"] is None else str(found["epoch"])),
            element("td", f"{found['statement']}: {found['name']}"),
            element("td", found.get("channel") or found.get("task") or ""),
            element("td", found["story"]),
            class_="violated",
        )
        for found in findings
    ]
    table = _table(("cut", "statement", "where", "what is wrong"), rows)
    return element("section", element("h2", "What is wrong"), element("div", table, class_="scroll"), class_="findings")


def _statements(verdict: Mapping[str, Any]) -> Markup:
    """A card a statement: how it came out in all cuts, and what was compared in the last."""
    by_number: dict[int, list[Mapping[str, Any]]] = {}
    for cut in verdict["cuts"]:
        for result in cut.get("statements", ()):
            by_number.setdefault(result["statement"], []).append(result)
    of_chain: dict[int, int] = {}
    for found in verdict["findings"]:
        if found["epoch"] is None:
            of_chain[found["statement"]] = of_chain.get(found["statement"], 0) + 1
            by_number.setdefault(found["statement"], [])
    names = {found["statement"]: found["name"] for found in verdict["findings"]}
    cards: list[Markup] = []
    for number, results in sorted(by_number.items()):
        count = sum(result["found"] for result in results) + of_chain.get(number, 0)
        name = results[-1]["name"] if results else names[number]
        compared = results[-1]["compared"] if results else ""
        cards.append(_card(f"{number}. {name}", count, compared))
    for name, rows in _invariants(verdict).items():
        cards.append(_card(f"7. {name}", rows, "an invariant of this flow"))
    return element("div", *cards, class_="statements")


def _invariants(verdict: Mapping[str, Any]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for cut in verdict["cuts"]:
        for invariant in cut.get("invariants", ()):
            rows[invariant["name"]] = rows.get(invariant["name"], 0) + invariant["rows"]
    return rows


def _card(name: str, found: int, compared: str) -> Markup:
    outcome = f"{found:,} found wrong; {compared}" if found else compared
    text = element("div", element("b", name), element("span", outcome, class_="faint"))
    mark = element("span", "✗" if found else "✓", class_="mark")
    return element("div", mark, text, class_=f"statement {'fails' if found else 'holds'}")


def _unfolded(cuts: Sequence[Mapping[str, Any]]) -> set[int]:
    """The first cuts in which something is wrong, and the last one."""
    violated = [cut["epoch"] for cut in cuts if not cut["consistent"]]
    return {*violated[: OPEN_MAX - 1], *(cut["epoch"] for cut in cuts[-1:])}


def _cut(cut: Mapping[str, Any], is_open: bool) -> Markup:
    state = "consistent" if cut["consistent"] else "not consistent"
    named = f", savepoint {cut['savepoint']}" if cut.get("savepoint") else ""
    title = f"{'✓' if cut['consistent'] else '✗'} Cut {cut['epoch']}, attempt {cut['attempt']}, {cut['policy']}{named}"
    flying = element("span", f" · {state} · {in_flight_of(cut)}", class_="faint")
    parts = [
        element("summary", title, flying),
        element("div", picture_of_cut(cut), class_="scroll"),
        *_left_out(cut),
        *(_invariant_line(invariant) for invariant in cut.get("invariants", ())),
        element("details", element("summary", "All channels"), element("div", _channels(cut), class_="scroll")),
    ]
    return element(
        "details", *parts, class_=f"cut {'holds' if cut['consistent'] else 'fails'}", open="" if is_open else None
    )


def _left_out(cut: Mapping[str, Any]) -> list[Markup]:
    """A line where the verdict does not list all channels: then the picture sums up those that it does."""
    listed = sum(not channel.get("restored") for channel in cut.get("channels", ()))
    there = cut.get("sizes", {}).get("channels", 0)
    told = f"Figures are of {listed:,} of {there:,} channels: those with something wrong, then the fullest."
    return [element("p", told, class_="faint")] if listed < there else []


def _invariant_line(invariant: Mapping[str, Any]) -> Markup:
    if invariant["holds"]:
        return element("p", f"✓ invariant {invariant['name']} holds", class_="faint")
    examples = "; ".join(invariant.get("examples", ()))
    told = f"✗ invariant {invariant['name']}: {invariant['rows']:,} rows are wrong"
    return element("p", element("b", told), f": {examples}" if examples else "")


def _channels(cut: Mapping[str, Any]) -> Markup:
    violated = violated_channels(cut)
    rows: list[Markup] = []
    for channel in cut.get("channels", ()):
        name = name_of_channel(channel)
        figures = [channel.get(figure) for figure in ("sent", "consumed", "logged", "records")]
        numbers = [element("td", "" if figure is None else f"{figure:,}", class_="number") for figure in figures]
        checked = element("td", "count alone" if channel.get("within_actor") else "digest and count")
        rows.append(
            element("tr", element("td", name), *numbers, checked, class_="violated" if name in violated else None)
        )
    return _table(CHANNEL_COLUMNS, rows)


def _table(columns: Sequence[str], rows: Sequence[Markup]) -> Markup:
    head = element("thead", element("tr", *(element("th", column) for column in columns)))
    return element("table", head, element("tbody", *rows))


def _key_of_picture() -> Markup:
    lines = (
        ("--onward", "", "n batches, all of them processed"),
        ("--back", "", "back edge, with what was in flight"),
        ("--onward", "dashed", "within one task: nothing can be in flight"),
        ("--bad", "", "something is wrong here"),
    )
    items = [
        element("span", element("i", class_=class_ or None, style=f"color: var({color})"), told)
        for color, class_, told in lines
    ]
    return element("p", *items, class_="key faint")


def _key_of_history() -> Markup:
    told = "A dot is a cut, with its epoch. A dashed line leads from the cut that was restored to the attempt after it."
    return element("p", told, class_="faint")

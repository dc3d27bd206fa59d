"""The verdict of an audit as one HTML page that needs nothing else: to be looked at, sent on, kept beside a cut.

What is on it comes from the JSON of the verdict, so that a page can be made again of what was stored.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recovery.spark.report.attempt_history import strip_of_history
from recovery.spark.report.cut_picture import picture_of_cut
from recovery.spark.report.edge_figures import in_flight_of, name_of_channel, violated_channels
from recovery.spark.report.markup import Markup, element
from recovery.spark.report.page_style import STYLE

OPEN_MAX = 3
"""So many cuts are unfolded; the others unfold when they are clicked."""

TOLD_MAX = 5
"""So many findings are told at the top, the others below a click; beside the picture of its cut stands each."""

Facts = Mapping[str, Any]

FIGURES = {"sent (n)": "sent", "received (m)": "consumed", "logged (L)": "logged", "records": "records"}
CHANNEL_COLUMNS = ("channel", *FIGURES, "checked by")


def write_page(verdict: Facts, path: str) -> None:
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


def page_of(verdict: Facts) -> str:
    """The page as text."""
    cuts: Sequence[Facts] = verdict["cuts"]
    unfolded = _unfolded(cuts)
    mark = _mark(not _passed(verdict))
    head = element(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        element("title", f"{mark} {verdict['job']}: {_outcome(verdict).lower()}"),
        element("style", STYLE),
    )
    body = element(
        "main",
        _headline(verdict),
        *_findings(verdict["findings"]),
        *_section("What must hold", _statements(verdict)),
        *_section("The run", _key_of_history(), strip_of_history(verdict)),
        *_section("The cuts", _key_of_picture(), *(_cut(cut, cut["epoch"] in unfolded) for cut in reversed(cuts))),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _section(heading: str, *parts: str) -> list[Markup]:
    return [element("h2", heading), *(element("div", part) for part in parts)]


def _scrolled(part: Markup, told: str) -> Markup:
    """What may be wider than the page; by keyboard, too, it can be reached and moved."""
    return element("div", part, class_="scroll", role="region", aria_label=told, tabindex=0)


def _outcome(facts: Facts) -> str:
    if facts["consistent"] and facts.get("invariants_hold") is False:
        return "Consistent, and an invariant does not hold"
    return "Consistent" if facts["consistent"] else "Not consistent"


def _passed(facts: Facts) -> bool:
    return facts["consistent"] and facts.get("invariants_hold") is not False


def _mark(is_wrong: bool) -> str:
    return "✗" if is_wrong else "✓"


def _headline(verdict: Facts) -> Markup:
    cuts, kind = verdict["cuts"], "good" if _passed(verdict) else "bad"
    sizes = [cut.get("sizes", {}) for cut in cuts]
    figures = [
        (len(cuts), "cut audited", "cuts audited"),
        (sum(not cut["consistent"] for cut in cuts), "of them is wrong", "of them are wrong"),
        (max(len(verdict["attempts"]) - 1, 0), "restart", "restarts"),
        (max((size.get("channels", 0) for size in sizes), default=0), "channel", "channels"),
        (
            max((size.get("log_records") or 0 for size in sizes), default=0),
            "record in flight at most",
            "records in flight at most",
        ),
    ]
    listed = [element("li", element("b", f"{count:,}"), one if count == 1 else many) for count, one, many in figures]
    told = element("strong", element("span", _mark(kind == "bad"), aria_hidden="true"), " ", _outcome(verdict))
    why = [element("p", line) for line in _why(verdict)]
    where = element("p", verdict.get("path", ""), class_="faint")
    headline = element("div", told, *why, class_=f"headline {kind}")
    return element("header", element("h1", verdict["job"]), headline, element("ul", *listed, class_="figures"), where)


def _why(verdict: Facts) -> list[str]:
    if verdict["consistent"]:
        return [_scope(verdict["cuts"]), *_invariants(verdict)]
    names = dict.fromkeys(f"{found['statement']}. {found['name']}" for found in verdict["findings"])
    whole = [cut["epoch"] for cut in verdict["cuts"] if cut["consistent"]]
    last = f"Cut {whole[-1]} is the last in which nothing is wrong." if whole else "Something is wrong in every cut."
    return [f"Violated: {'; '.join(names)}.", last, *_invariants(verdict)]


def _scope(cuts: Sequence[Facts]) -> str:
    """What the engine's verdict stands on: a digest shows that nothing was changed, a count that nothing is missing."""
    sizes = [cut.get("sizes", {}) for cut in cuts]
    digested, counted = (sum(size.get(what, 0) for size in sizes) for what in ("digested", "counted"))
    told = "In every cut that was audited"
    if digested:
        told += f", {digested:,} channels were compared by digest: nothing in them was lost, doubled or changed"
    if counted:
        told += (
            f"{';' if digested else ','} {counted:,} channels within actors were only counted: as many batches were "
        )
        told += "received or logged as were sent"
    return f"{told}." if digested or counted else f"{told}, there was no channel to compare."


def _invariants(verdict: Facts) -> list[str]:
    """The user's verdict."""
    asked = [(cut["epoch"], one) for cut in verdict["cuts"] for one in cut.get("invariants", ())]
    broken = dict.fromkeys(one["name"] for _, one in asked if not one["holds"])
    if not asked:
        return ["No invariants of the flow were given."]
    cuts = len({epoch for epoch, _ in asked})
    if broken:
        return [f"Invariants of the flow that do not hold: {', '.join(broken)}."]
    return [f"Invariants of the flow hold: {len(asked):,} asked in {cuts:,} cuts."]


def _findings(findings: Sequence[Facts]) -> list[Markup]:
    if not findings:
        return []
    told = [_finding(found, _place_of(found)) for found in findings]
    parts = [element("ul", *told[:TOLD_MAX])]
    if more := told[TOLD_MAX:]:
        parts.append(element("details", element("summary", f"{len(more):,} more"), element("ul", *more)))
    return [element("section", element("h2", "What is wrong"), *parts, class_="findings")]


def _place_of(found: Facts) -> Markup:
    if found["epoch"] is None:
        return element("span", "the job")
    return element("a", f"cut {found['epoch']}", href=f"#cut-{found['epoch']}")


def _finding(found: Facts, *place: Markup) -> Markup:
    where = found.get("channel") or found.get("task")
    return element(
        "li",
        *place,
        element("b", f"{found['statement']}. {found['name']}"),
        *([element("code", where)] if where else []),
        element("p", found["story"]),
        class_="violated",
    )


def _statements(verdict: Facts) -> Markup:
    """A card a statement: how it came out in all cuts, and what was compared in the last."""
    compared: dict[tuple[int, str], str] = {}
    wrong: dict[tuple[int, str], dict[str, int]] = {}
    for cut in verdict["cuts"]:
        results = [
            ((one["statement"], one["name"]), one["found"], one["compared"]) for one in cut.get("statements", ())
        ]
        invariants = [
            ((7, one["name"]), one["rows"] + one.get("unread", 0), "an invariant of this flow")
            for one in cut.get("invariants", ())
        ]
        for card, found, told in (*results, *invariants):
            compared[card] = told
            if found:
                wrong.setdefault(card, {})[f"cut {cut['epoch']}"] = found
    for found in verdict["findings"]:
        if found["epoch"] is None:
            places = wrong.setdefault((found["statement"], found["name"]), {})
            places["the job"] = places.get("the job", 0) + 1
    cards = sorted({**compared, **wrong}, key=lambda card: card[0])
    return element(
        "div", *(_card(card, wrong.get(card, {}), compared.get(card)) for card in cards), class_="statements"
    )


def _card(card: tuple[int, str], wrong: Mapping[str, int], compared: str | None) -> Markup:
    number, name = card
    told = [compared] if compared else []
    if wrong:
        places = ", ".join(wrong) if len(wrong) <= OPEN_MAX else f"{len(wrong):,} cuts"
        told.insert(0, f"{sum(wrong.values()):,} found wrong, in {places}")
    text = element("div", element("b", f"{number}. {name}"), element("span", "; ".join(told), class_="faint"))
    mark = element("span", _mark(bool(wrong)), class_="mark")
    return element("div", mark, text, class_=f"statement {'fails' if wrong else 'holds'}")


def _unfolded(cuts: Sequence[Facts]) -> set[int]:
    """The first cuts in which something is wrong, or else the last with something in flight; and the last one."""
    shown = [cut["epoch"] for cut in cuts if not cut["consistent"]][: OPEN_MAX - 1]
    full = [cut["epoch"] for cut in cuts if cut.get("sizes", {}).get("log_batches")]
    return {*(shown or full[-1:]), *(cut["epoch"] for cut in cuts[-1:])}


def _cut(cut: Facts, is_open: bool) -> Markup:
    named = f", savepoint {cut['savepoint']}" if cut.get("savepoint") else ""
    title = f"Cut {cut['epoch']}, attempt {cut['attempt']}, {cut['policy']}{named}"
    told = element("span", f" · {_outcome(cut).lower()} · {in_flight_of(cut)}", class_="faint")
    mark = element("span", _mark(not cut["consistent"]), class_="mark")
    # The parts have the name that links lead to: a browser unfolds what hides the place it goes to.
    parts = element(
        "div",
        *([element("ul", *map(_finding, cut["findings"]), class_="findings")] if cut.get("findings") else []),
        _scrolled(picture_of_cut(cut), "the picture of this cut"),
        *_left_out(cut),
        *(_invariant_line(invariant) for invariant in cut.get("invariants", ())),
        element(
            "details",
            element("summary", "All channels"),
            _scrolled(_channels(cut), "the channels of this cut"),
        ),
        id=f"cut-{cut['epoch']}",
    )
    kind = "holds" if cut["consistent"] else "fails"
    summary = element("summary", mark, " ", title, told)
    return element("details", summary, parts, class_=f"cut {kind}", open="" if is_open else None)


def _left_out(cut: Facts) -> list[Markup]:
    """A line where the verdict does not list all channels: then the picture sums up those that it does."""
    listed = sum(not channel.get("restored") for channel in cut.get("channels", ()))
    there = cut.get("sizes", {}).get("channels", 0)
    told = f"Figures are of {listed:,} of {there:,} channels: those with something wrong, then the fullest."
    return [element("p", told, class_="faint")] if listed < there else []


def _invariant_line(invariant: Facts) -> Markup:
    if invariant["holds"]:
        return element("p", f"✓ invariant {invariant['name']} holds", class_="faint")
    examples = "; ".join(invariant.get("examples", ()))
    told = f"✗ invariant {invariant['name']}: {invariant['rows']:,} rows are wrong"
    if invariant.get("unread"):
        told += f", {invariant['unread']:,} values could not be read"
    return element("p", element("b", told), f": {examples}" if examples else "")


def _channels(cut: Facts) -> Markup:
    violated = violated_channels(cut)
    rows: list[Markup] = []
    for channel in cut.get("channels", ()):
        name = name_of_channel(channel)
        figures = [channel.get(figure) for figure in FIGURES.values()]
        numbers = [element("td", "" if figure is None else f"{figure:,}", class_="number") for figure in figures]
        checked = element("td", "count alone" if channel.get("within_actor") else "digest and count")
        rows.append(
            element("tr", element("td", name), *numbers, checked, class_="violated" if name in violated else None)
        )
    titles = [element("th", column, class_="number" if column in FIGURES else None) for column in CHANNEL_COLUMNS]
    return element("table", element("thead", element("tr", *titles)), element("tbody", *rows))


def _key_of_picture() -> Markup:
    lines = (
        ("--onward", "", "batches, all received; where they are not: n sent, m received, L logged"),
        ("--back", "", "back edge: what was in flight"),
        ("--onward", "dashed", "within one task: nothing can be in flight"),
        ("--bad", "", "something is wrong here"),
    )
    items = [
        element("span", element("i", class_=class_ or None, style=f"color: var({color})"), told)
        for color, class_, told in lines
    ]
    return element("p", *items, class_="key faint")


def _key_of_history() -> Markup:
    told = "The cuts of each attempt, by epoch; each leads to its picture. ○ was restored, and is not audited here."
    return element("p", told, class_="faint")

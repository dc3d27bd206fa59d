"""The verdict of an audit as one self-contained HTML page.

It is built from the JSON of the verdict, so a page can also be created later from a stored verdict.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backedge.graphs.wording import counted
from backedge.recovery.spark.report.cut_picture import picture_of_cut
from backedge.recovery.spark.report.edge_figures import in_flight_of, name_of_channel, violated_channels
from backedge.recovery.spark.report.markup import Markup, element
from backedge.recovery.spark.report.page_style import STYLE

OPEN_MAX = 3
"""Cuts that are expanded initially."""

LISTED_MAX = 5
"""Findings listed at the top; the others are folded. Each is also listed with its cut."""

Facts = Mapping[str, Any]

FIGURES = {"sent (n)": "sent", "received (m)": "consumed", "logged (L)": "logged", "records": "records"}
CHANNEL_COLUMNS = ("channel", *FIGURES, "checked by")


def write_page(verdict: Facts, path: str) -> None:
    """Write the page of a verdict atomically, replacing an existing file. `verdict` comes from `Verdict.to_json`.

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


def _scrolled(part: Markup, label: str) -> Markup:
    """A container for content that may be wider than the page. It can be focused and scrolled by keyboard."""
    return element("div", part, class_="scroll", role="region", aria_label=label, tabindex=0)


def _outcome(facts: Facts) -> str:
    if facts["consistent"] and facts.get("invariants_hold") is False:
        return "Consistent, but an invariant does not hold"
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
        (sum(not cut["consistent"] for cut in cuts), "cut inconsistent", "cuts inconsistent"),
        (max((start["attempt"] for start in verdict["attempts"]), default=1) - 1, "restart", "restarts"),
        (max((size.get("channels", 0) for size in sizes), default=0), "channel", "channels"),
        (
            max((size.get("log_records") or 0 for size in sizes), default=0),
            "record in flight (maximum)",
            "records in flight (maximum)",
        ),
    ]
    listed = [element("li", element("b", f"{count:,}"), one if count == 1 else many) for count, one, many in figures]
    outcome = element("strong", element("span", _mark(kind == "bad"), aria_hidden="true"), " ", _outcome(verdict))
    why = [element("p", line) for line in _why(verdict)]
    where = element("p", verdict.get("path", ""), class_="faint")
    headline = element("div", outcome, *why, class_=f"headline {kind}")
    return element("header", element("h1", verdict["job"]), headline, element("ul", *listed, class_="figures"), where)


def _why(verdict: Facts) -> list[str]:
    if verdict["consistent"]:
        # A digest shows that nothing was changed, a count only that nothing is missing.
        return [f"Over all audited cuts: {verdict.get('scope', 'no channel')}.", *_invariants(verdict)]
    names = dict.fromkeys(f"{found['statement']}. {found['name']}" for found in verdict["findings"])
    whole = [cut["epoch"] for cut in verdict["cuts"] if cut["consistent"]]
    last = f"Cut {whole[-1]} is the last consistent cut." if whole else "No cut is consistent."
    return [f"Violated: {'; '.join(names)}.", last, *_invariants(verdict)]


def _invariants(verdict: Facts) -> list[str]:
    results = [(cut["epoch"], one) for cut in verdict["cuts"] for one in cut.get("invariants", ())]
    broken = dict.fromkeys(one["name"] for _, one in results if not one["holds"])
    if not results:
        return ["No invariants of the flow were given."]
    cuts = len({epoch for epoch, _ in results})
    if broken:
        return [f"Invariants of the flow that do not hold: {', '.join(broken)}."]
    return [f"Invariants of the flow hold: {len(results):,} evaluated in {cuts:,} cuts."]


def _findings(findings: Sequence[Facts]) -> list[Markup]:
    if not findings:
        return []
    items = [_finding(found, _place_of(found)) for found in findings]
    parts = [element("ul", *items[:LISTED_MAX])]
    if more := items[LISTED_MAX:]:
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
    """One card per statement: its result over all cuts, and what was compared in the last one."""
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
        for card, found, description in (*results, *invariants):
            compared[card] = description
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
    details = [compared] if compared else []
    if wrong:
        places = ", ".join(wrong) if len(wrong) <= OPEN_MAX else f"{len(wrong):,} cuts"
        details.insert(0, f"{counted(sum(wrong.values()), 'violation')} in {places}")
    text = element("div", element("b", f"{number}. {name}"), element("span", "; ".join(details), class_="faint"))
    mark = element("span", _mark(bool(wrong)), class_="mark")
    return element("div", mark, text, class_=f"statement {'fails' if wrong else 'holds'}")


def _unfolded(cuts: Sequence[Facts]) -> set[int]:
    """The first inconsistent cuts, or else the last one with records in flight; and always the last cut."""
    shown = [cut["epoch"] for cut in cuts if not cut["consistent"]][: OPEN_MAX - 1]
    full = [cut["epoch"] for cut in cuts if cut.get("sizes", {}).get("log_batches")]
    return {*(shown or full[-1:]), *(cut["epoch"] for cut in cuts[-1:])}


def _cut(cut: Facts, is_open: bool) -> Markup:
    named = f", savepoint {cut['savepoint']}" if cut.get("savepoint") else ""
    title = f"Cut {cut['epoch']}, attempt {cut['attempt']}, {cut['policy']}{named}"
    state = element("span", f" · {_outcome(cut).lower()} · {in_flight_of(cut)}", class_="faint")
    mark = element("span", _mark(not cut["consistent"]), class_="mark")
    # The link target is inside the details element: a browser then expands it when a link is followed.
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
    summary = element("summary", mark, " ", title, state)
    return element("details", summary, parts, class_=f"cut {kind}", open="" if is_open else None)


def _left_out(cut: Facts) -> list[Markup]:
    """A note if the verdict does not list all channels, so that the picture covers only some of them."""
    listed = sum(not channel.get("restored") for channel in cut.get("channels", ()))
    there = cut.get("sizes", {}).get("channels", 0)
    note = f"Figures cover {listed:,} of {there:,} channels: those with findings first, then the fullest."
    return [element("p", note, class_="faint")] if listed < there else []


def _invariant_line(invariant: Facts) -> Markup:
    if invariant["holds"]:
        return element("p", f"✓ invariant {invariant['name']} holds", class_="faint")
    examples = "; ".join(invariant.get("examples", ()))
    violations = f"✗ invariant {invariant['name']}: {invariant['rows']:,} violations"
    if invariant.get("unread"):
        violations += f", {invariant['unread']:,} values could not be read"
    return element("p", element("b", violations), f": {examples}" if examples else "")


def _channels(cut: Facts) -> Markup:
    violated = violated_channels(cut)
    rows: list[Markup] = []
    for channel in cut.get("channels", ()):
        name = name_of_channel(channel)
        figures = [channel.get(figure) for figure in FIGURES.values()]
        numbers = [element("td", "" if figure is None else f"{figure:,}", class_="number") for figure in figures]
        checked = element("td", "count only" if channel.get("within_actor") else "digest and count")
        rows.append(
            element("tr", element("td", name), *numbers, checked, class_="violated" if name in violated else None)
        )
    titles = [element("th", column, class_="number" if column in FIGURES else None) for column in CHANNEL_COLUMNS]
    return element("table", element("thead", element("tr", *titles)), element("tbody", *rows))


def _key_of_picture() -> Markup:
    lines = (
        ("--onward", "", "number of batches if all were received; otherwise n sent, m received, L logged"),
        ("--back", "", "back edge: records in flight"),
        ("--onward", "dashed", "within one task: nothing can be in flight"),
        ("--bad", "", "violation"),
    )
    items = [
        element("span", element("i", class_=class_ or None, style=f"color: var({color})"), text)
        for color, class_, text in lines
    ]
    return element("p", *items, class_="key faint")


def _key_of_history() -> Markup:
    key = "The cuts of each attempt by epoch, linked to their pictures. ○ was restored and is not audited here."
    return element("p", key, class_="faint")


# -- the history of the run ----------------------------------------------------------------------------------------


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

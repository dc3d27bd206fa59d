"""The page of a soak: the verdict, what happened, and a plot of each figure with its slope. One file, no script."""

from __future__ import annotations

from backedge.recovery.spark.report.markup import Markup, element
from backedge.recovery.spark.report.page_style import STYLE
from tests.soak.report import Figure, Report

WIDTH, HEIGHT, POINTS_MAX = 420.0, 120.0, 300
OWN = Markup("""
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(20rem, 1fr)); gap: .7rem; }
.plots > div { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .7rem .8rem; }
.plots > .fails { border-color: var(--bad); background: var(--bad-tint); }
.plots svg { width: 100%; height: auto; }
.plots .line { fill: none; stroke: var(--onward); stroke-width: 1.5; }
.plots .slope { stroke: var(--good); stroke-width: 2; }
.plots .fails .slope { stroke: var(--bad); }
""")
META = Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">')


def page_of(report: Report) -> str:
    """The page of a report."""
    title = f"Soak of {report.minutes:g} minutes, seed {report.seed}"
    bad = len(report.failures)
    verdict = element("strong", f"{bad} things are wrong" if bad else "Nothing lost, nothing doubled, nothing grows")
    failures = element("ul", *(element("li", failure) for failure in report.failures), class_="findings")
    counts = (element("li", element("b", f"{number:,}"), what) for what, number in sorted(report.counted.items()))
    faults = (
        _row(what, report.happened.get(what, 0), report.missed.get(what, 0))
        for what in sorted({*report.happened, *report.missed})
    )
    body = element(
        "body",
        element("h1", title),
        element("div", verdict, failures, class_=f"headline {'bad' if bad else 'good'}"),
        element("ul", *counts, class_="figures"),
        element("h2", "Figures"),
        element("div", *(_plot(figure) for figure in report.figures), class_="plots"),
        element("h2", "Faults"),
        element("table", _row("fault", "happened", "found nobody"), *faults),
        element(
            "details",
            element("summary", "In order"),
            element("table", *(_row(f"{at_s / 60:.1f} min", what) for at_s, what in report.events)),
        ),
    )
    head = element("head", META, element("title", title), element("style", Markup(STYLE + OWN)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _row(*cells: object) -> Markup:
    return element("tr", *(element("td", str(cell)) for cell in cells))


def _plot(figure: Figure) -> Markup:
    points, trend = figure.points[:: max(1, len(figure.points) // POINTS_MAX)], figure.trend
    end_s = points[-1][0] or 1.0
    top = max(*(value for _, value in points), 1e-9)

    def line(ends: list[tuple[float, float]], kind: str) -> Markup:
        spots = ((WIDTH * at_s / end_s, HEIGHT * (1 - max(0.0, min(value / top, 1)))) for at_s, value in ends)
        return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in spots), class_=kind)

    middle, rise = (trend.first + trend.last) / 2, trend.growth / 2
    slope = [(end_s / 4, middle - rise), (end_s, middle + rise)] if trend.is_judged else []
    label = element("text", f"{top:.4g}", x=0, y=12)
    lines = line(points, "line"), line(slope, "slope"), label
    drawn = element("svg", *lines, viewBox=f"0 -2 {WIDTH:g} {HEIGHT + 4:g}", role="img", aria_label=figure.words())
    words = element("p", figure.words(), class_="faint")
    return element("div", element("b", figure.name), drawn, words, class_="fails" if figure.is_bad else None)

"""Stylesheet of the verdict page, for light and dark mode and small screens. It loads nothing."""

from __future__ import annotations

from backedge.recovery.spark.report.markup import Markup

STYLE = Markup("""
:root {
  color-scheme: light dark;
  --paper: #fbfaf7; --card: #ffffff; --ink: #1d2327; --faint: #59626a; --line: #d9d6cd;
  --good: #1c7c54; --good-tint: #e4f3ea; --bad: #c0262d; --bad-tint: #fbe5e3;
  --back: #a85504; --onward: #7a868f; --box: #eef2f5; --source: #e3eefb; --sink: #efe8fa;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181b; --card: #1d2327; --ink: #e8eaec; --faint: #97a1a9; --line: #343c42;
    --good: #57c690; --good-tint: #17322a; --bad: #ff7b72; --bad-tint: #3d1d1d;
    --back: #f2a65a; --onward: #7f8b94; --box: #29323a; --source: #203449; --sink: #33294a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 78rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere;
}
h1 { font-size: 1.25rem; font-weight: 600; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
p { margin: .3rem 0; }
.headline { border-radius: 14px; padding: 1.2rem 1.4rem; border: 1px solid; }
.headline.good { background: var(--good-tint); border-color: var(--good); }
.headline.bad { background: var(--bad-tint); border-color: var(--bad); }
.headline strong { display: block; font-size: clamp(1.5rem, 5vw, 2.3rem); line-height: 1.2; }
.good > strong, .holds .mark { color: var(--good); }
.bad > strong, .fails .mark { color: var(--bad); }
.bad p { font-weight: 600; }
a { color: inherit; }
code { font-size: .9em; color: var(--ink); }
.findings { list-style: none; margin: .6rem 0; padding: 0; }
.findings ul { list-style: none; margin: 0; padding: 0; }
.findings li { border-left: 4px solid var(--bad); padding: .25rem .8rem; margin: 0 0 .6rem; }
.findings li > * { margin: 0 .7rem 0 0; }
.findings b { color: var(--bad); }
.faint { color: var(--faint); font-size: .92rem; }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 2rem; margin: 1.1rem 0 0; padding: 0; list-style: none; }
.figures b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.statements { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: .7rem; }
.statement {
  display: grid; grid-template-columns: 1.7rem 1fr; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; padding: .7rem .8rem;
}
.statement.fails { border-color: var(--bad); background: var(--bad-tint); }
.mark { font-weight: 700; }
.statement b { display: block; }
.scroll { overflow-x: auto; }
details.cut {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; margin: .5rem 0; padding: .6rem 1rem;
}
.cut > div { scroll-margin-top: 4rem; }
summary { cursor: pointer; }
details.cut > summary { font-weight: 600; }
details.cut.fails { border-color: var(--bad); }
summary .faint { font-weight: 400; }
details details { margin-top: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; font-weight: 600; color: var(--faint); }
th, td { padding: .35rem 1.2rem .35rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.violated td { color: var(--bad); font-weight: 600; }
svg { display: block; margin: .4rem 0; }
svg.picture { max-width: 100%; height: auto; }
svg text { fill: var(--ink); font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .name, svg .kind, svg .label { text-anchor: middle; }
svg .name { font-weight: 600; }
svg .kind { fill: var(--faint); font-size: 11.5px; }
svg .label { fill: var(--faint); font-size: 11.5px; paint-order: stroke; stroke: var(--card); stroke-width: 4px; }
.box rect { fill: var(--box); stroke: var(--onward); }
.box.source rect { fill: var(--source); }
.box.sink rect { fill: var(--sink); }
.box.violated rect { fill: var(--bad-tint); stroke: var(--bad); stroke-width: 2; }
.edge path { fill: none; stroke: var(--onward); stroke-width: 1.6; }
.edge .head { fill: var(--onward); stroke: none; }
.edge.within path { stroke-dasharray: 3 4; }
.edge.back path { stroke: var(--back); stroke-width: 2; }
.edge.back .head { fill: var(--back); stroke: none; }
.figure.back .label { fill: var(--back); }
.edge.full path { stroke-width: 3.5; }
.figure.full .label { font-weight: 700; }
.edge.violated path { stroke: var(--bad); stroke-width: 3.5; }
.edge.violated .head { fill: var(--bad); stroke: none; }
.figure.violated .label { fill: var(--bad); font-weight: 700; }
.history { display: grid; grid-template-columns: auto 1fr; gap: .5rem 1.2rem; margin: .4rem 0; padding: 0; }
.history li { display: contents; }
.history div { display: flex; flex-wrap: wrap; gap: .35rem; }
@media (max-width: 40rem) { .history { grid-template-columns: 1fr; } }
.dot { border: 1px solid; border-radius: 1rem; padding: 0 .6rem; text-decoration: none; white-space: nowrap; }
.dot.consistent { color: var(--good); background: var(--good-tint); }
.dot.violated { color: var(--bad); background: var(--bad-tint); font-weight: 700; }
.dot.unaudited { color: var(--faint); border-style: dashed; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; }
.key i {
  display: inline-block; width: 1.6rem; height: 0; border-top: 3px solid; margin-right: .4rem; vertical-align: middle;
}
.key .dashed { border-top-style: dotted; }
""")
"""The style sheet. Names of classes are those of verdict_page.py and cut_picture.py."""

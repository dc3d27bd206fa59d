"""How the page of a verdict looks: by day and by night, on a desk and on a phone. It loads nothing."""

from __future__ import annotations

from recovery.spark.markup import Markup

STYLE = Markup("""
:root {
  color-scheme: light dark;
  --paper: #fbfaf7; --card: #ffffff; --ink: #1d2327; --faint: #6b747b; --line: #d9d6cd;
  --good: #1c7c54; --good-tint: #e4f3ea; --bad: #c0262d; --bad-tint: #fbe5e3;
  --back: #b45f06; --onward: #7a868f; --box: #eef2f5; --source: #e3eefb; --sink: #efe8fa;
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
  margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 72rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; overflow-wrap: anywhere;
}
h1 { font-size: 1.1rem; font-weight: 500; color: var(--faint); margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .7rem; }
p { margin: .3rem 0; }
.headline { border-radius: 14px; padding: 1.2rem 1.4rem; border: 1px solid; }
.headline.good { background: var(--good-tint); border-color: var(--good); }
.headline.bad { background: var(--bad-tint); border-color: var(--bad); }
.headline strong { display: block; font-size: clamp(1.5rem, 5vw, 2.3rem); line-height: 1.2; }
.good > strong, .holds .mark { color: var(--good); }
.bad > strong, .fails .mark { color: var(--bad); }
.faint { color: var(--faint); font-size: .92rem; }
.figures { display: flex; flex-wrap: wrap; gap: .6rem 2rem; margin: 1.1rem 0 0; padding: 0; list-style: none; }
.figures b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.statements { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: .7rem; }
.statement {
  display: grid; grid-template-columns: 1.7rem 1fr; background: var(--card); border: 1px solid var(--line);
  border-radius: 10px; padding: .7rem .8rem;
}
.statement.fails { border-color: var(--bad); background: var(--bad-tint); }
.mark { font-weight: 700; font-size: 1.1rem; }
.statement b { display: block; }
.cut, .scroll { overflow-x: auto; }
details.cut {
  background: var(--card); border: 1px solid var(--line); border-radius: 12px; margin: .8rem 0; padding: .7rem 1rem;
}
summary { cursor: pointer; }
details.cut > summary { font-weight: 600; }
details details { margin-top: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th { text-align: left; font-weight: 600; color: var(--faint); white-space: nowrap; }
th, td { padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
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
.edge.back .label { fill: var(--back); }
.edge.full path { stroke-width: 3.5; }
.edge.full .label { font-weight: 700; }
.edge.violated path { stroke: var(--bad); stroke-width: 3.5; }
.edge.violated .head { fill: var(--bad); stroke: none; }
.edge.violated .label { fill: var(--bad); font-weight: 700; }
.history .life { stroke: var(--line); stroke-width: 3; fill: none; }
.history .attempt { fill: var(--faint); font-size: 12px; }
.history .restore path { fill: none; stroke: var(--back); stroke-width: 1.6; stroke-dasharray: 4 3; }
.history .restore .head { fill: var(--back); stroke: none; }
.dot circle { fill: var(--good); }
.dot.violated circle { fill: var(--bad); }
.dot.unaudited circle { fill: var(--card); stroke: var(--faint); stroke-width: 2; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; }
.key i {
  display: inline-block; width: 1.6rem; height: 0; border-top: 3px solid; margin-right: .4rem; vertical-align: middle;
}
.key .dashed { border-top-style: dotted; }
""")
"""The style sheet. Names of classes are those of page.py, picture.py and history.py."""

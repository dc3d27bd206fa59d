"""What the pictures of docs/pictures share: colours for light and dark pages, the frame, and text."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

STYLE = """
  .paper { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif }
  .small { font-size: 11px; fill: #59636e } .task { fill: #eaf1f9; stroke: #3f78b5 }
  .label { font-size: 11.5px; paint-order: stroke; stroke: #ffffff; stroke-width: 4px }
  .edge { stroke: #8c959f; fill: none }
  .saved { fill: #d7efdc; stroke: #1a7f37; stroke-width: 2 } .dead { fill: #fbe3e4; stroke: #cf222e; stroke-width: 2 }
  .record { fill: #3f78b5 } .barrier { stroke: #1a7f37; stroke-width: 4 } .log { fill: none; stroke: #1a7f37 }
  .good { fill: #1a7f37; font-weight: 600 } .bad { fill: #cf222e; font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9198a1 } .task { fill: #16263a }
    .saved { fill: #12301b; stroke: #3fb950 } .dead { fill: #3d1518; stroke: #f85149 } .record { fill: #79b0e8 }
    .label { stroke: #0d1117 } .barrier, .log { stroke: #3fb950 } .good { fill: #3fb950 } .bad { fill: #f85149 }
  }
"""


def picture(title: str, width: int, height: int, drawn: Iterable[str]) -> str:
    """A whole file; `title` is what it shows, in words."""
    lines = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(title)}">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>\n{lines}\n</svg>\n'
    )


def text(x: float, y: float, words: str, look: str = "", anchor: str = "middle") -> str:
    """One line of text."""
    return f'<text class="{look}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(words)}</text>'

"""Tables that a notebook shows of a run and of its result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

RECORDS_SHOWN = 5
CHARACTERS_SHOWN = 100


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of text, whatever the cells hold.

    >>> html_table("a & b", ["n"], [[1000]])
    '<table><caption>a &amp; b</caption><tr><th>n</th></tr><tr><td>1,000</td></tr></table>'
    """
    lines = [
        "".join(f"<th>{escape(head)}</th>" for head in heads),
        *("".join(f"<td>{escape(_shown(cell))}</td>" for cell in row) for row in rows),
    ]
    return f"<table><caption>{escape(caption)}</caption>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def outputs_table(caption: str, outputs: Mapping[str, Sequence[Any]]) -> str:
    """The output of each sink that keeps it: how many records, and the first of them."""
    rows = (
        (sink, len(records), " ".join(_shortened(repr(record)) for record in records[:RECORDS_SHOWN]))
        for sink, records in outputs.items()
    )
    return html_table(caption, ["sink", "records", "the first"], rows)


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _shortened(text: str) -> str:
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[: CHARACTERS_SHOWN - 1]}…"

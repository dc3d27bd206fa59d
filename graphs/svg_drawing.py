"""Draws a plan as SVG: operators from left to right, and back edges returning below, so that a loop looks like a loop.

Colours are those of the text around the picture, so that it suits a light and a dark page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from backedge.graphs.picture_layout import arrange
from backedge.graphs.plan import Edge, Plan

WIDTH, HEIGHT, ACROSS, DOWN, LANE, MARGIN = 150, 44, 64, 22, 30, 8
"""The size of an operator, the gaps between operators, and the distance of returning edges, in pixels."""

NAME_CHARACTERS_MAX = 20
BACK_EDGE = "#d9480f"
ARROW = (
    '<defs><marker id="backedge-arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8Z" fill="context-stroke"/></marker></defs>'
)


class Corner(NamedTuple):
    x: int
    y: int


def svg_lines(
    plan: Plan, order: Sequence[str], depth: Mapping[str, int], heads: Collection[str], label: Callable[[Edge], str]
) -> Iterator[str]:
    """The picture, line by line. `order` has the operators upstream first, `depth` the number of loops around each."""
    forward = [edge for edge in plan.edges if not edge.is_back]
    returning = [edge for edge in plan.edges if edge.is_back]
    arranged = arrange(order, [(edge.sender, edge.receiver) for edge in forward], depth)
    at = {
        spot: Corner(MARGIN + column * (WIDTH + ACROSS), MARGIN + row * (HEIGHT + DOWN))
        for column, spots in enumerate(arranged.columns)
        for row, spot in enumerate(spots)
    }
    bottom = max((corner.y for corner in at.values()), default=0) + HEIGHT
    width = max((corner.x for corner in at.values()), default=0) + WIDTH + MARGIN
    height = bottom + LANE * len(returning) + MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="currentColor" stroke="none" role="img">'
    )
    yield f"<title>flow {escape(plan.name)}</title>{ARROW}"
    for number, edge in enumerate(forward):
        yield from _forward(edge, [at[spot] for spot in arranged.ways[number]], label(edge))
    for number, edge in enumerate(returning, start=1):
        yield from _back(edge, at[edge.sender], at[edge.receiver], bottom + LANE * number - MARGIN, label(edge))
    for name in order:
        yield from _operator(plan, name, at[name], is_head=name in heads)
    yield "</svg>"


def _operator(plan: Plan, name: str, corner: Corner, *, is_head: bool) -> Iterator[str]:
    operator = plan.operators[name]
    round_px = HEIGHT // 2 if operator.kind.is_source or operator.kind.is_sink else 6
    shown = name if len(name) <= NAME_CHARACTERS_MAX else f"{name[: NAME_CHARACTERS_MAX - 1]}…"
    stroke = f'stroke="{BACK_EDGE}" stroke-width="2"' if is_head else 'stroke="currentColor"'
    middle = corner.x + WIDTH // 2
    yield f"<g><title>{escape(name)} ({operator.kind.word}){', a head' if is_head else ''}</title>"
    yield (
        f'<rect x="{corner.x}" y="{corner.y}" width="{WIDTH}" height="{HEIGHT}" rx="{round_px}" '
        f'fill="none" pointer-events="all" {stroke}/>'
    )
    yield f'<text x="{middle}" y="{corner.y + 19}" text-anchor="middle" font-weight="bold">{escape(shown)}</text>'
    kind = escape(operator.kind.word)
    yield f'<text x="{middle}" y="{corner.y + 35}" text-anchor="middle" font-size="10">{kind}</text></g>'


def _forward(edge: Edge, way: Sequence[Corner], label: str) -> Iterator[str]:
    (x, y), *_ = way
    path = f"M{x + WIDTH} {y + HEIGHT // 2}"
    for place, (begin, end) in enumerate(pairwise(way), start=2):
        middle = (begin.x + WIDTH + end.x) // 2
        path += f"C{middle} {begin.y + HEIGHT // 2} {middle} {end.y + HEIGHT // 2} {end.x} {end.y + HEIGHT // 2}"
        path += "" if place == len(way) else f"h{WIDTH}"
    yield f"<g><title>{escape(f'{edge.sender} -> {edge.receiver}: {label}'.removesuffix(': '))}</title>"
    yield f'<path d="{path}" fill="none" stroke="currentColor" marker-end="url(#backedge-arrow)"/>'
    if edge.output != "out":
        x, y = way[1]
        output = escape(edge.output)
        yield f'<text x="{x - 10}" y="{y + HEIGHT // 2 - 4}" text-anchor="end" font-size="10">{output}</text>'
    yield "</g>"


def _back(edge: Edge, sender: Corner, receiver: Corner, lane: int, label: str) -> Iterator[str]:
    # The two ends stand apart where an operator feeds itself.
    x, to_x = sender.x + WIDTH * 2 // 3, receiver.x + WIDTH // 3
    path = f"M{x} {sender.y + HEIGHT}V{lane}H{to_x}V{receiver.y + HEIGHT}"
    yield f"<g><title>{escape(label)}</title>"
    yield (f'<path d="{path}" fill="none" stroke="{BACK_EDGE}" stroke-width="2" marker-end="url(#backedge-arrow)"/>')
    loop = escape(str(edge.loop))
    yield f'<text x="{(x + to_x) // 2}" y="{lane - 4}" text-anchor="middle" font-size="10">{loop}</text></g>'

"""The picture of a cut: what a person sees of its graph, and of what was in flight."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import combinations

import pytest

from backedge.recovery.spark.report.cut_picture import picture_of_cut
from backedge.recovery.spark.report.verdict import CutVerdict, finding
from tests.spark.described import AGAIN, OPERATORS, channel, cut

SVG = "{http://www.w3.org/2000/svg}"


def drawn(of: CutVerdict) -> ElementTree.Element:
    return ElementTree.fromstring(picture_of_cut(of.to_json()))


def groups(picture: ElementTree.Element, *classes: str) -> dict[str, ElementTree.Element]:
    """What is drawn under these classes, by the first word of its tooltip."""
    found = [group for group in picture.iter(f"{SVG}g") if {*classes} <= set((group.get("class") or "").split())]
    return {(group.findtext(f"{SVG}title") or "").split(":")[0]: group for group in found}


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


def test_every_operator_is_a_box_with_its_kind_and_its_tasks():
    boxes = groups(drawn(cut()), "box")
    assert set(boxes) == {name for name, _ in OPERATORS}
    assert texts(boxes["attempts"]) == ["attempts", "stateful_map, 3 tasks"]
    assert len(list(boxes["attempts"].iter(f"{SVG}rect"))) == 3
    assert len(list(boxes["orders"].iter(f"{SVG}rect"))) == 1


def test_a_back_edge_is_an_arc_below_all_boxes_with_what_was_in_flight():
    picture = drawn(cut())
    (arc,) = groups(picture, "edge", "back").values()
    (figure,) = groups(picture, "figure", "back").values()
    assert texts(figure) == ["again: 45 records in 5 batches"]
    assert "full" in (arc.get("class") or "")
    rectangles = list(picture.iter(f"{SVG}rect"))
    lowest_box = max(float(box.get("y") or 0) + float(box.get("height") or 0) for box in rectangles)
    assert max(float(text.get("y") or 0) for text in figure.iter(f"{SVG}text")) > lowest_box


def test_a_regular_edge_tells_its_batches_and_its_tooltip_the_rest():
    edges = groups(drawn(cut()), "figure", "onward")
    line = edges["parse.out->attempts.in"]
    assert texts(line) == ["1,200"]
    title = line.findtext(f"{SVG}title") or ""
    assert "1,200 batches sent (n), 1,200 received (m), 0 logged (L)" in title
    assert "nothing in flight" in title


def test_an_edge_whose_channel_lacks_batches_shows_all_three_figures():
    lost = channel("split.true->done.in", sent=6, consumed=4, logged=1, records=3)
    edges = groups(drawn(cut(channels=[lost])), "figure", "onward")
    assert texts(edges["split.true->done.in"]) == ["n 6 · m 4 · L 1"]


@pytest.mark.parametrize(("consumed", "told"), [(6, "again: 1 batch missing"), (9, "again: 2 batches too many")])
def test_an_edge_on_which_batches_are_missing_says_how_many_and_not_that_nothing_is_in_flight(consumed: int, told: str):
    lost = channel(AGAIN, sent=7, consumed=consumed, logged=0, records=0)
    wrong = [finding(2, "a batch is lost", 7, channel=f"{AGAIN} split/0->attempts/0")]
    (figure,) = groups(drawn(cut(channels=[lost], findings=wrong)), "figure", "back").values()
    assert texts(figure) == [told]


def test_a_loop_within_a_loop_is_drawn_within_it():
    edges = [*cut().graph["edges"], {"name": "o.o->o.o", "sender": "done", "receiver": "orders", "loop": "outer"}]
    # Whichever is named first.
    for order in (edges, edges[::-1]):
        figures = groups(drawn(cut(graph={**cut().graph, "edges": order})), "figure", "back")
        heights = {name: float(figures[name].findall(f"{SVG}text")[0].get("y") or 0) for name in (AGAIN, "o.o->o.o")}
        assert heights[AGAIN] < heights["o.o->o.o"]


def test_boxes_do_not_overlap_and_nothing_is_outside_the_picture():
    picture = drawn(cut())
    _, _, width, height = map(float, (picture.get("viewBox") or "").split())
    fronts = [box for box in picture.iter(f"{SVG}rect") if box.get("class") == "front"]
    areas = [tuple(float(box.get(side) or 0) for side in ("x", "y", "width", "height")) for box in fronts]
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in combinations(areas, 2):
        assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1
    for x, y, w, h in areas:
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


def test_a_cycle_that_no_back_edge_closes_is_drawn_all_the_same_and_red():
    unnamed = cut()
    edges = [{**edge, "loop": None} for edge in unnamed.graph["edges"]]
    picture = drawn(cut(graph={**unnamed.graph, "edges": edges}))
    assert set(groups(picture, "box")) == {name for name, _ in OPERATORS}
    assert len(groups(picture, "edge", "violated")) == 1


def test_a_violated_channel_and_a_violated_task_are_red():
    wrong = [
        finding(2, "batch 8 is lost", 7, channel=f"{AGAIN} split/0->attempts/0"),
        finding(6, "split 0 stands at 3", 7, task="orders/0"),
    ]
    picture = drawn(cut(findings=wrong))
    assert set(groups(picture, "edge", "violated")) == {AGAIN}
    assert set(groups(picture, "box", "violated")) == {"orders", "parse"}
    assert not groups(drawn(cut()), "violated")


def test_a_graph_of_nothing_is_a_picture_too():
    assert groups(drawn(cut(graph={"operators": [], "edges": []}, channels=[])), "box") == {}

"""The page of a verdict: what a person sees of a cut, and that names from elsewhere cannot break it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from recovery.spark.arranging import arrange
from recovery.spark.page import page_of, write_page
from recovery.spark.page_style import STYLE
from recovery.spark.picture import picture_of_cut
from recovery.spark.verdict import CutVerdict, InvariantResult, StatementResult, Verdict, finding

SVG = "{http://www.w3.org/2000/svg}"
AGAIN = "split.false->attempts.in"
OPERATORS = [("orders", "source"), ("parse", "map"), ("attempts", "stateful_map"), ("split", "split"), ("done", "sink")]
EDGES = [
    ("orders.out->parse.in", "orders", "parse", None),
    ("parse.out->attempts.in", "parse", "attempts", None),
    ("attempts.out->split.in", "attempts", "split", None),
    ("split.true->done.in", "split", "done", None),
    (AGAIN, "split", "attempts", "again"),
    ("orders.out->done.late", "orders", "done", None),
]


def channel(edge: str, *, restored: bool = False, within: bool = False, **figures: int) -> dict[str, Any]:
    name, sender, receiver, loop = next(one for one in EDGES if one[0] == edge)
    ends = {"edge": name, "sender": sender, "sender_index": 0, "receiver": receiver, "receiver_index": 0}
    return {**ends, "is_back": loop is not None, "restored": restored, "within_actor": within, **figures}


CHANNELS = (
    channel("parse.out->attempts.in", sent=1200, consumed=1200, logged=0, records=0),
    channel(AGAIN, sent=9, consumed=7, logged=2, records=40, within=True),
    channel(AGAIN, consumed=1, logged=3, records=5, restored=True),
    channel("split.true->done.in", sent=4, consumed=4, logged=0, records=0),
)


def cut(epoch: int = 7, **changes: Any) -> CutVerdict:
    graph = {
        "operators": [{"name": name, "kind": kind} for name, kind in OPERATORS],
        "edges": [
            {"name": name, "sender": sender, "receiver": receiver, "loop": loop}
            for name, sender, receiver, loop in EDGES
        ],
    }
    given: dict[str, Any] = {
        "epoch": epoch,
        "attempt": 1,
        "policy": "aligned",
        "savepoint": None,
        "previous": None,
        "graph_hash": "abc",
        "graph": graph,
        "parallelism": {"attempts": 3, "orders": 1},
        "tasks": [{"task": "orders/0", "operators": ["orders", "parse"]}],
        "channels": CHANNELS,
        "sizes": {"log_records": 45, "channels": 3},
        "statements": [StatementResult(1, "nothing is received that was not sent", 0, "4 channels")],
        "invariants": [InvariantResult("money", 0)],
    }
    return CutVerdict(**{**given, **changes})


def verdict(*cuts: CutVerdict, attempts: Any = ({"attempt": 1, "restored": None},), **changes: Any) -> dict[str, Any]:
    return Verdict("shop", "id", "/snapshots/shop", cuts or (cut(),), attempts, **changes).to_json()


def drawn(of: CutVerdict) -> ElementTree.Element:
    return ElementTree.fromstring(picture_of_cut(of.to_json()))


def groups(picture: ElementTree.Element, *classes: str) -> dict[str, ElementTree.Element]:
    """What is drawn under these classes, by the first word of its tooltip."""
    found = [group for group in picture.iter(f"{SVG}g") if {*classes} <= set((group.get("class") or "").split())]
    return {(group.findtext(f"{SVG}title") or "").split(":")[0]: group for group in found}


def texts(element: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in element.iter(f"{SVG}text")]


class Elements(HTMLParser):
    """The elements of a page and its text; closing tags have to fit."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def of_class(self, name: str) -> list[str]:
        return [tag for tag, attributes in self.found if name in (attributes.get("class") or "").split()]


# -- the picture -------------------------------------------------------------------------------------------------


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


def test_an_edge_within_a_task_says_that_it_has_no_channel():
    within = groups(drawn(cut()), "edge", "within")
    assert "no channel" in (within["orders.out->parse.in"].findtext(f"{SVG}title") or "")


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


def test_figures_are_drawn_over_all_lines_and_boxes():
    kinds = [(group.get("class") or "").split()[0] for group in drawn(cut()).iter(f"{SVG}g")]
    assert kinds == sorted(kinds, key=["edge", "box", "figure"].index)


def test_lines_between_the_same_boxes_run_beside_each_other():
    ends = {"sender": "orders", "receiver": "parse", "loop": None}
    edges = [{"name": name, **ends} for name in ("orders.left->parse.in", "orders.right->parse.in")]
    lines = groups(drawn(cut(graph={**cut().graph, "edges": edges}, channels=[])), "edge").values()
    starts = [float((line.findall(f"{SVG}path")[0].get("d") or "").split()[1]) for line in lines]
    assert abs(starts[0] - starts[1]) > 10


def test_a_loop_within_a_loop_is_drawn_within_it():
    edges = [*cut().graph["edges"], {"name": "o.o->o.o", "sender": "done", "receiver": "orders", "loop": "outer"}]
    # Whichever is named first.
    for order in (edges, edges[::-1]):
        figures = groups(drawn(cut(graph={**cut().graph, "edges": order})), "figure", "back")
        heights = {name: float(figures[name].findall(f"{SVG}text")[0].get("y") or 0) for name in (AGAIN, "o.o->o.o")}
        assert heights[AGAIN] < heights["o.o->o.o"]


def test_long_names_that_begin_alike_stay_apart():
    names = [f"account_balances_of_all_{whose}" for whose in ("customers", "suppliers")]
    boxes = groups(drawn(cut(graph={"operators": [{"name": n, "kind": "map"} for n in names], "edges": []})), "box")
    told = [texts(boxes[name])[0] for name in names]
    assert told[0] != told[1] and all(len(name) <= 24 for name in told)


def test_a_long_picture_is_scrolled_and_not_made_too_small_to_read():
    names = [f"step {number}" for number in range(20)]
    edges = [{"name": a, "sender": a, "receiver": b, "loop": None} for a, b in pairwise(names)]
    graph = {"operators": [{"name": name, "kind": "map"} for name in names], "edges": edges}
    style = re.fullmatch(r"min-width: (\d+)px", drawn(cut(graph=graph, channels=[])).get("style") or "")
    assert style and int(style[1]) > 2000


def test_boxes_do_not_overlap_and_nothing_is_outside_the_picture():
    picture = drawn(cut())
    _, _, width, height = map(float, (picture.get("viewBox") or "").split())
    fronts = [box for box in picture.iter(f"{SVG}rect") if box.get("class") == "front"]
    areas = [tuple(float(box.get(side) or 0) for side in ("x", "y", "width", "height")) for box in fronts]
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in combinations(areas, 2):
        assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1
    for x, y, w, h in areas:
        assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


def test_an_edge_over_several_columns_bends_in_each():
    found = arrange(["a", "b", "c", "d"], [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")])
    assert [len(column) for column in found.columns] == [1, 2, 2, 1]
    assert found.ways[3] == ("a", (3, 1), (3, 2), "d")


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


# -- the page ----------------------------------------------------------------------------------------------------


def test_a_consistent_verdict_says_so_in_the_headline():
    page = Elements(page_of(verdict()))
    assert page.of_class("good") and not page.of_class("bad") and not page.of_class("findings")
    assert " Consistent" in page.text and "✓ shop: consistent" in page.text
    assert any("45 records in 5 batches" in text for text in page.text)


def test_what_is_violated_stands_in_the_headline_in_a_list_and_beside_its_picture():
    wrong = finding(2, "batch 8 is lost", 7, channel=f"{AGAIN} split/0->attempts/0")
    page = Elements(page_of(verdict(cut(findings=[wrong]))))
    assert page.of_class("bad") and page.of_class("findings")
    assert "Violated: 2. a log is exactly what was in its channel." in page.text
    assert page.text.count("batch 8 is lost") == page.of_class("violated").count("li") == 2
    # The channel among all channels; its restored part is not meant.
    assert page.of_class("violated").count("tr") == 1


def test_the_last_cut_in_which_nothing_is_wrong_is_named():
    wrong = cut(9, findings=[finding(1, "too many", 9)])
    assert "Cut 8 is the last in which nothing is wrong." in Elements(page_of(verdict(cut(7), cut(8), wrong))).text
    assert "Something is wrong in every cut." in Elements(page_of(verdict(wrong))).text


def test_of_many_findings_the_first_are_told_at_the_top_and_the_others_below_a_click():
    page = Elements(page_of(verdict(cut(findings=[finding(1, f"story {number}", 7) for number in range(12)]))))
    assert "7 more" in page.text
    assert all(page.text.count(f"story {number}") == 2 for number in range(12))


def test_a_statement_has_a_mark_and_what_was_compared():
    results = [StatementResult(1, "one", 0, "4 channels, 3 digested"), StatementResult(2, "two", 3, "2 logs")]
    page = Elements(page_of(verdict(cut(statements=results, invariants=[InvariantResult("money", 2)]))))
    assert len(page.of_class("holds")) - len(page.of_class("cut")) == 1
    assert len(page.of_class("fails")) == 2
    assert {"4 channels, 3 digested", "3 found wrong, in cut 7; 2 logs", "7. money"} <= set(page.text)


def test_what_is_wrong_with_the_chain_alone_is_a_statement_that_fails():
    page = Elements(page_of(verdict(of_chain=[finding(8, "the chain goes back", None)])))
    assert {"8. from one cut to the next nothing goes back", "1 found wrong, in the job", "the job"} <= set(page.text)


def test_a_statement_that_is_violated_in_many_cuts_says_in_how_many():
    results = [StatementResult(1, "one", 2, "4 channels")]
    page = Elements(page_of(verdict(*(cut(number, statements=results) for number in range(1, 6)))))
    assert "10 found wrong, in 5 cuts; 4 channels" in page.text


def test_restarts_lead_from_the_cut_that_was_restored():
    attempts = [{"attempt": 1, "restored": None}, {"attempt": 2, "restored": 3}, {"attempt": 3, "restored": 5}]
    late = cut(6, attempt=3, findings=[finding(1, "too many", 6)])
    page = page_of(verdict(cut(2), cut(3), late, attempts=attempts))
    assert "attempt 2 went on from cut 3" in page and "attempt 3 went on from cut 5" in page
    elements = Elements(page)
    dots = [attributes["class"] for tag, attributes in elements.found if (attributes.get("class") or "")[:3] == "dot"]
    assert sorted(filter(None, dots)) == ["dot consistent", "dot consistent", "dot unaudited", "dot violated"]


def test_what_leads_to_a_cut_leads_into_what_is_folded_there():
    page = Elements(page_of(verdict(cut(6, findings=[finding(1, "too many", 6)]), cut(7))))
    leads = {attributes["href"] for tag, attributes in page.found if tag == "a"}
    places = [attributes["id"] for _, attributes in page.found if attributes.get("id")]
    assert leads == {f"#{place}" for place in places} == {"#cut-6", "#cut-7"}
    assert len(places) == 2 and all(tag != "details" for tag, attributes in page.found if attributes.get("id"))


def test_a_page_says_when_the_verdict_does_not_list_all_channels():
    told = "Figures are of 3 of 5,000 channels: those with something wrong, then the fullest."
    assert told in Elements(page_of(verdict(cut(sizes={"channels": 5000})))).text
    assert not any("Figures are of" in text for text in Elements(page_of(verdict())).text)


def test_the_last_cut_and_those_in_which_something_is_wrong_are_unfolded():
    cuts = [cut(number, findings=[finding(1, "too many", number)] * (number in (2, 3, 4))) for number in range(1, 7)]
    page = Elements(page_of(verdict(*cuts)))
    unfolded = [
        "open" in attributes for tag, attributes in page.found if "cut" in (attributes.get("class") or "").split()
    ]
    assert unfolded == [True, False, False, True, True, False]


def test_where_nothing_is_wrong_the_last_cut_with_something_in_flight_is_unfolded_too():
    sizes = {"channels": 3, "log_records": 0}
    cuts = [cut(number, sizes={**sizes, "log_batches": int(number in (1, 2))}) for number in range(1, 6)]
    page = Elements(page_of(verdict(*cuts)))
    unfolded = [
        "open" in attributes for tag, attributes in page.found if "cut" in (attributes.get("class") or "").split()
    ]
    assert unfolded == [True, False, False, True, False]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a&b;\x00\ud800", "'"])
def test_a_name_cannot_break_out_of_the_page(name: str):
    graph = {"operators": [{"name": name, "kind": name}], "edges": [{"name": name, "sender": name, "receiver": name}]}
    ends = {"edge": name, "sender": name, "sender_index": 0, "receiver": name, "receiver_index": 0}
    wrong = [finding(2, name, 7, channel=f"{name} {name}/0->{name}/0", task=name)]
    invariants = [InvariantResult(name, 1, (name,))]
    broken = cut(graph=graph, channels=[ends], findings=wrong, invariants=invariants, policy=name, savepoint=name)
    given = {**verdict(broken), "job": name, "path": name}
    tags = {tag for tag, _ in Elements(page_of(given)).found}
    assert "script" not in tags and "img" not in tags
    ElementTree.fromstring(picture_of_cut(given["cuts"][0]))


def outside(page: str) -> Iterator[str]:
    for tag, attributes in Elements(page).found:
        leads = {key: attributes[key] or "" for key in ("src", "href", "srcset") if key in attributes}
        yield from (f"{tag} {key}" for key, place in leads.items() if not place.startswith("#"))
    yield from re.findall(r"url\(|@import|<script", page)


def test_the_page_loads_nothing():
    assert list(outside(page_of(verdict()))) == []


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["by day", "by night"])
@pytest.mark.parametrize(
    ("text", "behind"),
    [(text, behind) for text in ("ink", "faint") for behind in ("paper", "card", "box", "source", "sink", "bad-tint")]
    + [("good", "card"), ("good", "good-tint"), ("bad", "card"), ("bad", "bad-tint"), ("back", "card")],
)
def test_text_stands_out_from_what_is_behind_it(scheme: int, text: str, behind: str):
    found = [re.findall(rf"--{name}: (#\w{{6}});", STYLE)[scheme] for name in (text, behind)]
    darker, lighter = sorted(map(luminance, found))
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_the_page_is_written_whole_over_what_was_there(tmp_path: Path):
    path = tmp_path / "audit.html"
    path.write_text("old " * 100_000)
    write_page(verdict(), str(path))
    assert path.read_text(encoding="utf-8") == page_of(verdict())
    assert [file.name for file in tmp_path.iterdir()] == ["audit.html"]


def test_a_page_that_cannot_be_written_leaves_what_was_there(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        write_page(verdict(), str(tmp_path / "no" / "audit.html"))
    assert list(tmp_path.iterdir()) == []

"""The page of a verdict: what a person sees of a cut, and that names from elsewhere cannot break it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from backedge.recovery.spark.report.cut_picture import picture_of_cut
from backedge.recovery.spark.report.page_style import STYLE
from backedge.recovery.spark.report.verdict import CutVerdict, InvariantResult, Verdict, finding
from backedge.recovery.spark.report.verdict_page import page_of, write_page
from tests.every import every
from tests.spark.described import AGAIN, cut


def verdict(*cuts: CutVerdict, attempts: Any = ({"attempt": 1, "restored": None},), **changes: Any) -> dict[str, Any]:
    return Verdict("shop", "id", "/snapshots/shop", cuts or (cut(),), attempts, **changes).to_json()


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


def test_of_many_findings_the_first_are_told_at_the_top_and_the_others_below_a_click():
    page = Elements(page_of(verdict(cut(findings=[finding(1, f"story {number}", 7) for number in range(12)]))))
    assert "7 more" in page.text
    assert all(page.text.count(f"story {number}") == 2 for number in range(12))


def test_restarts_lead_from_the_cut_that_was_restored():
    attempts = [{"attempt": 1, "restored": None}, {"attempt": 2, "restored": 3}, {"attempt": 3, "restored": 5}]
    late = cut(6, attempt=3, findings=[finding(1, "too many", 6)])
    page = page_of(verdict(cut(2), cut(3), late, attempts=attempts))
    assert "attempt 2 resumed from cut 3" in page and "attempt 3 resumed from cut 5" in page
    elements = Elements(page)
    dots = [attributes["class"] for tag, attributes in elements.found if (attributes.get("class") or "")[:3] == "dot"]
    assert sorted(filter(None, dots)) == ["dot consistent", "dot consistent", "dot unaudited", "dot violated"]


def test_what_leads_to_a_cut_leads_into_what_is_folded_there():
    page = Elements(page_of(verdict(cut(6, findings=[finding(1, "too many", 6)]), cut(7))))
    leads = {attributes["href"] for tag, attributes in page.found if tag == "a"}
    places = [attributes["id"] for _, attributes in page.found if attributes.get("id")]
    assert leads == {f"#{place}" for place in places} == {"#cut-6", "#cut-7"}
    assert len(places) == 2 and all(tag != "details" for tag, attributes in page.found if attributes.get("id"))


def test_the_last_cut_and_those_in_which_something_is_wrong_are_unfolded():
    cuts = [cut(number, findings=[finding(1, "too many", number)] * (number in (2, 3, 4))) for number in range(1, 7)]
    page = Elements(page_of(verdict(*cuts)))
    unfolded = [
        "open" in attributes for tag, attributes in page.found if "cut" in (attributes.get("class") or "").split()
    ]
    assert unfolded == [True, False, False, True, True, False]


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


@every("scheme", [0, 1])
@every(
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

"""The navigation of the site is made from docs/index.md, and Sphinx refuses a page in it that does not exist."""

from __future__ import annotations

from pathlib import Path
from runpy import run_path

DOCS = Path(__file__).resolve().parents[2] / "docs"
sections_of = run_path(str(DOCS / "conf.py"))["sections_of"]


def test_the_navigation_leads_to_pages_that_exist():
    sections = sections_of((DOCS / "index.md").read_text())
    assert len(sections) > 2
    missing = [page for _, pages in sections for page in pages if not (DOCS / f"{page}.md").is_file()]
    assert missing == []


def test_a_page_is_listed_once_and_without_the_place_that_a_link_leads_to():
    index = (
        "# Home\n\n## Running\n\n[on a cluster](cluster.md), [exit codes](cluster.md#exit-codes), [site](https://a.b)\n"
    )
    assert sections_of(index) == [("Running", ["cluster"])]

"""Pages are linked, links lead somewhere, errors are explained, and the examples of docs/testing.md run."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOUND = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "bench/RESULTS.md", ROOT / "examples/cyclic/README.md")
PAGES = sorted(str(page.relative_to(ROOT)) for page in FOUND)
LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")
sys.path.insert(0, str(ROOT / "scripts"))

import error_page  # noqa: E402


def prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^( *)```.*?^\1```$", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: str) -> set[str]:
    """What a link to a heading of a page may name, by GitHub's rule, which the site has as well.

    >>> "exit-codes" in anchors("docs/cluster.md")
    True
    """
    seen: Counter[str] = Counter()
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def fault(page: str, link: str) -> str | None:
    """What is wrong with a link of a page. Addresses elsewhere are judged by their form alone."""
    parts = urlsplit(link)
    if parts.scheme:
        return None if parts.scheme == "https" and "." in parts.netloc else "is not an https address"
    target = (ROOT / page).parent / parts.path if parts.path else ROOT / page
    if not target.exists():
        return "leads to no file"
    if parts.fragment and parts.fragment not in anchors(str(target.resolve().relative_to(ROOT))):
        return "leads to no heading"
    return None


def test_every_link_leads_somewhere():
    faults = {(page, link): fault(page, link) for page in PAGES for link in LINK.findall(prose(page))}
    assert {at: wrong for at, wrong in faults.items() if wrong} == {}


def test_the_index_links_every_page():
    linked = {(ROOT / "docs" / link).resolve() for link in LINK.findall(prose("docs/index.md"))}
    assert {ROOT / page for page in PAGES} - linked == {ROOT / "docs" / "index.md"}


def test_every_public_error_says_what_to_do():
    errors = error_page.public_errors()
    bases = {base for error in errors.values() for base in error.__mro__[1:]}
    told = {name: error_page.fact_and_fix(error) for name, error in errors.items()}
    assert [name for name, (fact, _) in told.items() if not fact] == []
    assert [name for name, (_, fix) in told.items() if not fix and errors[name] not in bases] == []
    assert len(told) > 50


@pytest.mark.slow
def test_the_test_that_the_page_shows_passes():
    shown, _ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), flags=re.DOTALL)
    made: dict[str, Any] = {}
    exec(compile(shown, "testing.md", "exec"), made)
    made["test_every_order_is_settled_once"]()


def test_the_story_that_the_page_shows_is_printed(capsys: pytest.CaptureFixture[str]):
    _, shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), flags=re.DOTALL)
    exec(compile(shown, "testing.md", "exec"), {})
    assert capsys.readouterr().out.endswith("the run is finished\n")


def test_every_example_of_a_page_is_run_by_a_test():
    tests = "\n".join(file.read_text() for file in (ROOT / "tests").glob("**/test_*.py"))
    examples = [page for page in PAGES if re.search(r"^```python", (ROOT / page).read_text(), flags=re.MULTILINE)]
    assert [page for page in examples if Path(page).name not in tests and f'"{Path(page).stem}"' not in tests] == []
    assert len(examples) > 8

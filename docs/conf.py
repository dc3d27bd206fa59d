"""The site of the documentation: `make docs` runs Sphinx on the folder of the project, with this configuration.

The pages are those that docs/index.md links, in its order, and the API reference, which is made from docstrings. They
keep their places, so that links between them lead to the same page here and in the repository.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import backedge
from backedge.graphs import plan

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"

project = "Backedge"
version = release = backedge.__version__
html_title = f"Backedge {backedge.__version__}"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "bench/RESULTS.md", "examples/cyclic/README.md"]
exclude_patterns = [".venv", "build", "**/__pycache__"]
html_theme = "furo"
html_extra_path = ["site"]
html_show_copyright = html_show_sphinx = html_copy_source = False
myst_heading_anchors = 4
# Indented blocks are commands, tables of files, or Python.
highlight_language = "none"
# Docstrings put code between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}

# The annotations of a public class are looked up in the module that it names, which is `backedge`.
vars(backedge).update({name: value for name, value in vars(plan).items() if name not in vars(backedge)})

GROUPS = {
    "flows": ("Flows", ("graphs",)),
    "sources_and_sinks": (
        "Sources and sinks",
        ("graphs.io", "graphs.sources_and_sinks", "engine.io", "engine.received"),
    ),
    "running": ("Running", ("engine.on_ray", "")),
    "simulation": ("Simulating", ("engine.simulation", "engine.cut_view")),
    "spark": ("Spark", ("recovery.spark",)),
    "extending": (
        "Extending",
        (
            "graphs.operator_kind",
            "graphs.plan",
            "engine.operators",
            "engine.batch",
            "recovery",
        ),
    ),
}


def group_of(name: str) -> str:
    """The page of the reference that has a public name: that of the longest part of its module's name that fits."""
    module = backedge._HOMES[name].removeprefix("backedge.")
    fits = {
        prefix: group for group, (_, prefixes) in GROUPS.items() for prefix in prefixes if module.startswith(prefix)
    }
    return fits[max(fits, key=len)]


def write_reference(app: Sphinx) -> None:
    """A page for each group of public classes and functions. docs/errors.md has the errors."""
    directives: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in sorted(backedge.__all__, key=str.lower):
        value = getattr(backedge, name)
        if isinstance(value, FunctionType):
            directives[group_of(name)].append(f".. autofunction:: backedge.{name}\n")
        elif isinstance(value, type) and not issubclass(value, BaseException):
            directives[group_of(name)].append(f".. autoclass:: backedge.{name}\n")
    REFERENCE.mkdir(exist_ok=True)
    for group, (title, _) in GROUPS.items():
        text = "\n".join([title, "=" * len(title), "", *directives[group]])
        (REFERENCE / f"{group}.rst").write_text(text)


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Make the sections and links of docs/index.md the navigation of the site."""
    if name != root_doc:
        return
    for caption, pages in sections_of(source[0]):
        source[0] += navigation(caption, pages)
    source[0] += navigation("API reference", [f"reference/{group}" for group in GROUPS])


def sections_of(index: str) -> list[tuple[str, list[str]]]:
    """The title of each section of docs/index.md, and the pages that it links, each once."""
    sections = re.split(r"^## ", index, flags=re.MULTILINE)[1:]
    links = [re.findall(r"\]\(([^)#]*)\.md(?:#[^)]*)?\)", section) for section in sections]
    return [
        (section.partition("\n")[0], list(dict.fromkeys(pages))) for section, pages in zip(sections, links, strict=True)
    ]


def navigation(caption: str, pages: list[str]) -> str:
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"


def check_independence(app: Sphinx, error: Exception | None) -> None:
    """Refuse pages that load something from another server."""
    if error is not None:
        return
    for page in Path(app.outdir).rglob("*.html"):
        loaded = re.search(
            r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"((?:https?:)?//[^\"]*)", page.read_text()
        )
        if loaded:
            raise RuntimeError(f"{page} loads {loaded[1]} from another server: keep a copy in docs/")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", write_reference)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", check_independence)

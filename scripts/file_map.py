"""The text of docs/files.md: every module of the project with the first sentence of its docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("graphs", "recovery", "engine", "backedge", "proof")
HEAD = """# Files

Each module and what it is for, in the order of the layers. Generated from the docstrings by `make map`; to change a
line, change the docstring.
"""


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(line for layer in LAYERS for line in _sections(ROOT / layer))])


def _sections(layer: Path) -> Iterator[str]:
    for folder in sorted({file.parent for file in layer.rglob("*.py")}):
        yield f"## {folder.relative_to(ROOT).as_posix()}/\n"
        summary = _summary(folder / "__init__.py")
        yield f"{summary.partition(': ')[2] or summary}\n"
        yield "| file | what it is for |\n| --- | --- |"
        yield from (
            f"| `{file.name}` | {_summary(file)} |" for file in sorted(folder.glob("*.py")) if file.stem != "__init__"
        )
        yield ""


def _summary(file: Path) -> str:
    """The first sentence of the docstring."""
    docstring = ast.get_docstring(ast.parse(file.read_text()))
    if docstring is None:
        raise SystemExit(f"{file.relative_to(ROOT)} has no docstring: say in its first sentence what the module is for")
    first = " ".join(docstring.partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[.?!]) (?=[A-Z`])", first)[0]
    return sentence.replace("|", "\\|")

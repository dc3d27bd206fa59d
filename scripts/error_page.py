"""The text of docs/errors.md: every public error by name, with the fact and the fix of its docstring."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator

import backedge

FIX = "Fix: "
HEAD = """# Errors by name

The errors that you may meet, in alphabetical order. The message of an error names the operator, file or option
concerned, and the fix for the case at hand; this page says what all messages of one error have in common. Generated
from the docstrings by `make map`.
"""


def public_errors() -> dict[str, type[BaseException]]:
    """The errors and warnings that `backedge` exports."""
    named = {name: getattr(backedge, name) for name in backedge.__all__}
    return {name: kind for name, kind in named.items() if inspect.isclass(kind) and issubclass(kind, BaseException)}


def fact_and_fix(error: type[BaseException]) -> tuple[str, str]:
    """What the docstring of an error says. A base class has no fix."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in (inspect.getdoc(error) or "").split("\n\n")]
    told = [paragraph for paragraph in paragraphs if not paragraph.startswith(">>>")]
    fact = " ".join(paragraph for paragraph in told if not paragraph.startswith(FIX))
    return fact, "".join(paragraph.removeprefix(FIX) for paragraph in told if paragraph.startswith(FIX))


def page() -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(line for name, error in sorted(public_errors().items()) for line in _entry(name, error))])


def wrapped(paragraph: str) -> str:
    """A paragraph, and the empty line after it."""
    return textwrap.fill(paragraph, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _entry(name: str, error: type[BaseException]) -> Iterator[str]:
    fact, fix = fact_and_fix(error)
    yield f"## {name}\n"
    yield wrapped(fact)
    if fix:
        yield wrapped(f"**Fix:** {fix}")
    bases = [f"[{base.__name__}](#{base.__name__.lower()})" for base in error.__mro__[1:] if base in _ALL]
    if bases:
        yield f"Also caught as {' or '.join(bases)}.\n"


_ALL = set(public_errors().values())

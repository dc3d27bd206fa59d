"""HTML and SVG with automatic escaping: any text that is not `Markup` is escaped."""

from __future__ import annotations

import html
import re

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is already markup. Only `element` and our own constants create it, never user input."""

    __slots__ = ()


def element(name: str, *parts: str, **attributes: str | float | None) -> Markup:
    """An element with its parts, each escaped unless it is `Markup`.

    Attributes that are None are left out; `class_` stands for class, and other underscores for hyphens.

    >>> element("p", "1 < 2 ", element("b", "always"), class_="fact", id=None)
    '<p class="fact">1 &lt; 2 <b>always</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(part if isinstance(part, Markup) else _text(part) for part in parts)
    return Markup(f"<{name}{written}>{inside}</{name}>")


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return html.escape(_NOT_IN_XML.sub("\ufffd", str(value)))

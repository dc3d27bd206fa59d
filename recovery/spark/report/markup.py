"""HTML and SVG as text that cannot be broken out of: what is not markup is escaped wherever it is put."""

from __future__ import annotations

import html
import re

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Markup(str):
    """Text that is markup already. Only `element` and constants of ours make it; never what a user has named."""

    __slots__ = ()


def element(name: str, *parts: str, **attributes: str | float | None) -> Markup:
    """An element with its parts in it, each escaped unless it is `Markup`.

    Attributes that are None are left out; `class_` stands for class, and other underscores for hyphens.

    >>> element("p", "1 < 2 ", element("b", "always"), class_="fact", id=None)
    '<p class="fact">1 &lt; 2 <b>always</b></p>'
    """
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_text(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(part if isinstance(part, Markup) else _text(part) for part in parts)
    return Markup(f"<{name}{told}>{inside}</{name}>")


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}".removesuffix(".0")
    return html.escape(_NOT_IN_XML.sub("\ufffd", str(value)))

"""Shapes of the values in a document: functions that check a value and raise `ShapeError` at the first fault.

A shape is a type that msgspec converts to, such as a struct (`schema.py`). The error names the place, for example
`tasks[3].files[0].size`. What is checked stays as it is: its readers index it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Lock
from typing import Annotated, Any, TypeVar

from msgspec import Meta, ValidationError, convert

Shape = Callable[[Any], None]
T = TypeVar("T")

_first = Lock()
_known: set[Any] = set()

TEXT_CHARACTERS_MAX = 1 << 16
_SHOWN_CHARACTERS_MAX = 40
_HALF_A_PAIR = "holds half of a surrogate pair, which is not valid text"

Text = Annotated[str, Meta(max_length=TEXT_CHARACTERS_MAX)]
Hex = Annotated[str, Meta(pattern=r"\A([0-9a-f]{2})*\Z")]
"""Bytes as lower-case hexadecimal digits."""
Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]

# Numbers are limited to the range of the table columns that hold them.
IS_COUNT = Meta(ge=0, le=(1 << 63) - 1)
Count = Annotated[int, IS_COUNT]
Number = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
Index = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class ShapeError(ValueError):
    """A value has the wrong shape. `place` is its path in the document, `fault` says what is wrong."""

    def __init__(self, fault: str, place: str = "") -> None:
        self.fault = fault
        self.place = place
        super().__init__(f"{place.lstrip('.') or 'the document'} {fault}")


def converted(value: Any, kind: type[T]) -> T:
    """Convert JSON types to this type.

    >>> converted({"a": "1"}, dict[str, int])
    Traceback (most recent call last):
    backedge.recovery.stores.shapes.ShapeError: [...] is wrong: expected `int`, got `str`
    """
    try:
        if kind not in _known:
            # What msgspec finds out about a struct is visible while it is half done: another thread would crash on it.
            with _first:
                try:
                    return convert(value, kind)
                finally:
                    _known.add(kind)
        return convert(value, kind)
    except ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        raise ShapeError(f"is wrong: {fault[:1].lower()}{fault[1:]}", place.rstrip("`")) from error
    except UnicodeEncodeError:
        raise ShapeError(_HALF_A_PAIR) from None


def shape_of(kind: Any) -> Shape:
    """The shape of what can be converted to this type, and whose texts can be encoded as UTF-8.

    >>> shape_of(Text)("half a pair: \\ud83d")
    Traceback (most recent call last):
    backedge.recovery.stores.shapes.ShapeError: the document holds half of a surrogate pair, which is not valid text
    """

    def check(value: Any) -> None:
        converted(value, kind)
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ShapeError(_HALF_A_PAIR) from None

    return check


text = shape_of(Text)
"""Text of bounded length."""


def shown(value: Any) -> str:
    """Format a value for a message: on one line, shortened, with control characters escaped.

    >>> shown(None), shown({"a": 1}), shown("a\\nb"), shown("x" * 100)
    ('null', 'an object', "'a\\\\nb'", "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'...")
    """
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() if abs(value) >> 64:
            return "a number of more than 64 bits"
        case int() | float():
            return str(value)
        case str():
            return ascii(value[:_SHOWN_CHARACTERS_MAX]) + ("..." if len(value) > _SHOWN_CHARACTERS_MAX else "")
        case list():
            return "a list"
        case _:
            return "an object"

"""Shapes of the values in a document. A shape is a function that checks a value and raises at the first fault.

The error names the place, for example `tasks[3].files[0].size`. Values are checked, never converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec import ValidationError, convert

T = TypeVar("T")
Shape = Callable[[Any], None]

TEXT_CHARACTERS_MAX = 1 << 16
_SHOWN_CHARACTERS_MAX = 40


class ShapeError(ValueError):
    """A value has the wrong shape. `place` is its path in the document, `fault` says what is wrong."""

    def __init__(self, fault: str, place: str = "") -> None:
        self.fault = fault
        self.place = place
        super().__init__(f"{place.lstrip('.') or 'the document'} {fault}")

    def below(self, part: str) -> ShapeError:
        """Return the same error with `part` in front of its place."""
        return ShapeError(self.fault, part + self.place)


def converted(document: Any, kind: type[T]) -> T:
    """Convert JSON types to a struct, or raise `ShapeError`.

    >>> converted([1, "a"], tuple[int, int])
    Traceback (most recent call last):
    recovery.stores.shapes.ShapeError: [1]: expected `int`, got `str`
    """
    try:
        return convert(document, kind)
    except ValidationError as error:
        fault, _, place = str(error).partition(" - at `$")
        raise ShapeError(f"{fault[:1].lower()}{fault[1:]}", f"{place.rstrip('`')}:") from error


def whole(low: int, high: int) -> Shape:
    """A whole number from `low` to `high`.

    >>> whole(0, 9)(True)
    Traceback (most recent call last):
    recovery.stores.shapes.ShapeError: the document is true, not a whole number from 0 to 9
    """

    def check(value: Any) -> None:
        if type(value) is not int or not low <= value <= high:
            raise ShapeError(f"is {shown(value)}, not a whole number from {low} to {high}")

    return check


def text(value: Any) -> None:
    """Text of bounded length that can be encoded as UTF-8."""
    if type(value) is not str:
        raise ShapeError(f"is {shown(value)}, not text")
    if len(value) > TEXT_CHARACTERS_MAX:
        raise ShapeError(f"has {len(value)} characters, more than {TEXT_CHARACTERS_MAX}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ShapeError("holds half of a surrogate pair, which is not valid text") from None


def boolean(value: Any) -> None:
    """True or false."""
    if type(value) is not bool:
        raise ShapeError(f"is {shown(value)}, not true or false")


def hexadecimal(digits: int | None = None) -> Shape:
    """Bytes as lower-case hexadecimal digits: exactly `digits`, or any even number."""

    def check(value: Any) -> None:
        is_hex = type(value) is str and value.isascii() and not set(value) - set("0123456789abcdef")
        if not is_hex or (len(value) % 2 if digits is None else len(value) != digits):
            wanted = "an even number of" if digits is None else str(digits)
            raise ShapeError(f"is {shown(value)}, not {wanted} hexadecimal digits")

    return check


def one_of(*values: Any) -> Shape:
    """One of these values."""

    def check(value: Any) -> None:
        if not any(type(value) is type(other) and value == other for other in values):
            raise ShapeError(f"is {shown(value)}, not one of {', '.join(map(shown, values))}")

    return check


def optional(shape: Shape) -> Shape:
    """Null, or a value of this shape."""

    def check(value: Any) -> None:
        if value is not None:
            shape(value)

    return check


def list_of(shape: Shape) -> Shape:
    """A list whose items all have this shape."""

    def check(value: Any) -> None:
        for place, item in enumerate(_list(value)):
            try:
                shape(item)
            except ShapeError as error:
                raise error.below(f"[{place}]") from None

    return check


def row(*shapes: Shape) -> Shape:
    """A list with one item for each of these shapes."""

    def check(value: Any) -> None:
        items = _list(value)
        if len(items) != len(shapes):
            raise ShapeError(f"has {len(items)} items, not {len(shapes)}")
        for place, (shape, item) in enumerate(zip(shapes, items, strict=True)):
            try:
                shape(item)
            except ShapeError as error:
                raise error.below(f"[{place}]") from None

    return check


def table(key: Shape, shape: Shape) -> Shape:
    """An object with any names. Its names have the shape `key`, its values the shape `shape`."""

    def check(value: Any) -> None:
        for name, item in _object(value).items():
            key(name)
            try:
                shape(item)
            except ShapeError as error:
                raise error.below(f".{shown(name)}") from None

    return check


def record(shapes: Mapping[str, Shape], may_have: Mapping[str, Shape] | None = None) -> Shape:
    """An object with exactly these names, and perhaps those that it may have, each with a value of its shape.

    >>> record({"epoch": whole(1, 9)})({"epoch": None})
    Traceback (most recent call last):
    recovery.stores.shapes.ShapeError: epoch is null, not a whole number from 1 to 9
    """

    known = {**shapes, **(may_have or {})}

    def check(value: Any) -> None:
        found = _object(value)
        if found.keys() != shapes.keys():
            missing, more = sorted(shapes.keys() - found.keys()), sorted(found.keys() - known.keys())
            if missing or more:
                raise ShapeError(f"has no {missing[0]!r}" if missing else f"has {shown(more[0])}, which is unknown")
        for name, item in found.items():
            try:
                known[name](item)
            except ShapeError as error:
                raise error.below(f".{name}") from None

    return check


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


def _list(value: Any) -> Sequence[Any]:
    # A document that is to be written may have tuples.
    if not isinstance(value, (list, tuple)):
        raise ShapeError(f"is {shown(value)}, not a list")
    return cast("Sequence[Any]", value)


def _object(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise ShapeError(f"is {shown(value)}, not an object")
    return cast("dict[str, Any]", value)

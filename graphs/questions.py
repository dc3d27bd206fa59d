"""What makes two questions of `map_async` equal: the value that is asked about, and the version of the call."""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable
from hashlib import blake2b
from io import BytesIO
from types import FunctionType
from typing import Any, cast

from msgspec import Struct

from backedge.graphs.task_errors import MisuseError, describe, show

DIGEST_BYTES = 16


class AskedAbout(Struct, frozen=True):
    """The identity of the question that a record asks: a digest of the record, or of its `key`.

    >>> AskedAbout()({"a": 1, "b": 2}) == AskedAbout()({"b": 2, "a": 1}), AskedAbout()(1) == AskedAbout(version=2)(1)
    (True, False)
    """

    key: Callable[[Any], Any] | str | None = None
    version: int = 1

    def __call__(self, record: Any) -> str:
        key = self.key
        asked = record if key is None else record[key] if isinstance(key, str) else key(record)
        return digest_of((asked, self.version))


WHOLE_RECORD = AskedAbout()


def digest_of(value: Any) -> str:
    """A digest that is equal for equal plain values, in every process. Raises if the value has none."""
    try:
        data = _encoded(_ordered(value))
    except Exception as error:
        raise MisuseError(
            f"the question {show(value[0])} has no identity, because it does not pickle ({describe(error)}): give "
            "map_async a call_key= that returns plain values"
        ) from error
    return blake2b(data, digest_size=DIGEST_BYTES).hexdigest()


def _ordered(value: Any) -> Any:
    """The value with dicts and sets in an order that does not depend on how they were filled."""
    kind = cast("type[Any]", type(value))
    if kind is dict:
        return "dict", sorted((_encoded(_ordered(key)), _encoded(_ordered(item))) for key, item in value.items())
    if kind is set or kind is frozenset:
        return "set", sorted(_encoded(_ordered(item)) for item in value)
    if kind is tuple or kind is list:
        return kind.__name__, [_ordered(item) for item in value]
    return value


def _encoded(value: Any) -> bytes:
    """The pickle without references to what it has written before: those depend on which equal objects are the same."""
    buffer = BytesIO()
    pickler = _OrderedPickler(buffer, 5)
    pickler.fast = True
    pickler.dump(value)
    return buffer.getvalue()


class _OrderedPickler(pickle.Pickler):
    """Orders what objects are made of, too: a dataclass may hold a set."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type | FunctionType) or type(obj) in copyreg.dispatch_table:
            return NotImplemented
        # Not 5: NumPy would tell arrays apart by whether they are writable or parts of others, which the way to
        # another process changes.
        reduced = obj.__reduce_ex__(4)
        if isinstance(reduced, str):
            return reduced
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        return tuple, (_ordered([make, arguments, state, list(items or ()), dict(pairs or ())]),)

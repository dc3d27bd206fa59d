"""Keeps what was derived from columns of keys that come again: where their rows go, or which rows of a table they are.

An operator in rounds often emits the same keys in each round, such as the targets of its edges. The first time, only a
sample of their content is noted, so keys that never come again cost next to nothing. The second time, they are kept
with what was derived from them. From the third time on, comparing the content replaces deriving it.

- What is derived depends on the content alone. Equal content is equal bytes of equal types: NaN is equal to itself, and
  0.0 is not equal to -0.0. It is compared with a copy, because the memory of a column can belong to the user, who may
  change it in place.
- What is kept has a limit in bytes. Keys that are in use do not give way to others: if each round has more keys than
  there is room for, some of them are kept, and they do not drive out one another. Keys that have not come among the
  last `SEEN_MAX` batches are given up.
- It is not state: no cut holds it, and a restored task begins without it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy.typing as npt
from msgspec import Struct

from backedge.engine.batches.arrow import arrow
from backedge.recovery.protocol.channels import crc32

BYTES_MAX = 64 << 20
SEEN_MAX = 256
_SAMPLE_BYTES = 1024

T = TypeVar("T")


class Content:
    """The content of some columns: their types and lengths, and the bytes of each.

    - sample: a short value that equal contents have in common, and few others.

    >>> column = arrow().array([1, 2, 3])
    >>> Content.of_columns([column[1:]]).equals(Content.of_columns([arrow().array([2, 3])]))
    True
    """

    __slots__ = ("_buffers", "_form", "sample")

    def __init__(self, form: Hashable, buffers: Sequence[Any]) -> None:
        self._form = form
        self._buffers = buffers
        digest = 0
        for buffer in buffers:
            # Views are sliced in a tenth of the time that buffers take.
            view: Any = memoryview(buffer)
            digest = crc32(view[-_SAMPLE_BYTES:], crc32(view[:_SAMPLE_BYTES], digest))
        self.sample: Hashable = (form, digest)

    @staticmethod
    def of_columns(columns: Sequence[Any]) -> Content:
        """The content of Arrow arrays. It shares their memory if they are numbers."""
        return Content(tuple((column.type, len(column)) for column in columns), [_bytes_of(each) for each in columns])

    @staticmethod
    def of_arrays(arrays: Sequence[npt.NDArray[Any]]) -> Content:
        """The content of contiguous NumPy arrays of numbers. It shares their memory."""
        form = tuple((array.dtype.str, len(array)) for array in arrays)
        return Content(form, [arrow().py_buffer(array) for array in arrays])

    def __len__(self) -> int:
        """Its size in bytes."""
        return sum(buffer.size for buffer in self._buffers)

    def equals(self, other: Content) -> bool:
        """Whether types and bytes are the same."""
        return self._form == other._form and all(
            one.equals(two) for one, two in zip(self._buffers, other._buffers, strict=True)
        )

    def copy(self) -> Content:
        """The same content in memory of its own."""
        return Content(self._form, [arrow().py_buffer(buffer.to_pybytes()) for buffer in self._buffers])


class _Kept(Struct, Generic[T]):
    """A copy of the content, what was derived from it, the size of both in bytes, and the number of its last use."""

    content: Content
    derived: T
    size: int
    used_at: int


class RepeatedKeys(Generic[T]):
    """What was derived from keys that came before.

    >>> import numpy as np
    >>> known = RepeatedKeys[int]()
    >>> content = Content.of_arrays([np.array([1, 2, 3])])
    >>> for _ in range(3):
    ...     if (found := known.find(content)) is None:
    ...         known.note(content, 8, lambda: 6)
    >>> found
    6
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._now = 0
        # Sample -> when it was noted; and what is kept, by sample, in the order of its last use.
        self._seen: dict[Hashable, int] = {}
        self._kept: dict[Hashable, _Kept[T]] = {}

    def find(self, content: Content) -> T | None:
        """What was derived from this content, if it is kept."""
        self._now += 1
        kept = self._kept.pop(content.sample, None)
        if kept is None:
            return None
        if not kept.content.equals(content):
            # The same sample has come for the first time.
            self._size -= kept.size
            self._seen.pop(content.sample, None)
            return None
        kept.used_at = self._now
        self._kept[content.sample] = kept

        return kept.derived

    def note(self, content: Content, size: int, derive: Callable[[], T]) -> None:
        """This content was not found. If it came before, keep what is derived from it, which takes `size` bytes."""
        seen_at = self._seen.pop(content.sample, None)
        self._seen[content.sample] = self._now
        if len(self._seen) > SEEN_MAX:
            del self._seen[next(iter(self._seen))]
        self._give_up(self._now - SEEN_MAX)
        size += len(content)
        if seen_at is None or size > self._bytes_max:
            return
        # What was not used since this content came before is not in use any more.
        self._give_up(seen_at, self._bytes_max - size)
        if self._size + size <= self._bytes_max:
            self._kept[content.sample] = _Kept(content.copy(), derive(), size, self._now)
            self._size += size

    def _give_up(self, used_before: int, size_max: int = 0) -> None:
        """Give up what was last used before this, until what is left has this size."""
        while self._kept and self._size > size_max:
            sample, oldest = next(iter(self._kept.items()))
            if oldest.used_at >= used_before:
                return
            del self._kept[sample]
            self._size -= oldest.size


def _bytes_of(column: Any) -> Any:
    """The bytes of an Arrow array. Numbers are shared; other columns have several parts, which are put together."""
    kind, types = column.type, arrow().types
    if column.null_count or not (types.is_integer(kind) or types.is_floating(kind)):
        return arrow().RecordBatch.from_arrays([column], [""]).serialize()
    width = kind.bit_width // 8
    return column.buffers()[1].slice(column.offset * width, len(column) * width)

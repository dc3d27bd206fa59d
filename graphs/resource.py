"""Resources of a flow: what its functions open once in each process and share, such as a connection to a database.

- The first use in a process opens it. All tasks and calls there share it, whatever thread they run in.
- It belongs to the attempt: it is closed when that is over, at the end of the run as after a failure. The next attempt
  opens it again at its first use, so nothing that a failure has left behind is used again.
- In an attempt, it is opened again where a function finds it broken and says so (`reopen`). An exception alone does not
  say that: most are about a record.

This module has the resources of a process. The engine says when an attempt is over, with `take_opened`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, NamedTuple, TypeVar

from backedge.graphs.public import public

T = TypeVar("T")

Key = tuple[str, str]
"""The names of a flow and of one of its resources."""


class Opened(NamedTuple):
    """What a resource has opened. `resource` is the one that knows how to close it."""

    resource: Resource[Any]
    value: Any

    def close(self) -> None:
        """Close it. If that raises, say so: whatever has ended is over in any case."""
        try:
            if self.resource.on_close is not None:
                self.resource.on_close(self.value)
        except Exception as error:  # noqa: BLE001  # the user's
            print(f"backedge: close= of {self.resource!r} raised {type(error).__name__}: {error}", file=sys.stderr)


_locks: dict[Key, RLock] = {}
"""Of each its own: while one is being opened, which may take long or hang, others are used."""
_opened: dict[Key, Opened] = {}
_times_opened: Counter[Key] = Counter()


@public
class Resource(Generic[T]):
    """What functions and classes of a flow open once in each process and share. `flow.resource` makes one.

    >>> from backedge import Collect, Flow, Items, simulate
    >>> flow = Flow("shop")
    >>> prices = flow.resource("prices", open=lambda: {"apple": 3}, close=dict.clear)
    >>> priced = flow.read(Items(["apple"])).map(lambda name: prices.value[name])
    >>> priced.write(Collect(), name="priced")
    >>> simulate(flow, seeds=range(3)).outputs["priced"]
    [3]
    """

    def __init__(
        self, flow: str, name: str, on_open: Callable[[], T], on_close: Callable[[T], object] | None = None
    ) -> None:
        self.flow = flow
        self.name = name
        self.on_open = on_open
        self.on_close = on_close

    @property
    def value(self) -> T:
        """What `open` has returned in this process; it is opened at the first use. Ask for it at each use."""
        opened = _opened.get((self.flow, self.name))
        if opened is not None:
            return opened.value
        with self._lock():
            opened = _opened.get((self.flow, self.name))
            return self._open() if opened is None else opened.value

    def reopen(self, broken: T) -> T:
        """Close a value that is broken, open another one, and return it.

        If another task or call has found out before, return what it has opened.

        >>> numbers = iter([1, 2, 3])
        >>> line = Resource("shop", "line", lambda: next(numbers))
        >>> first = line.value
        >>> line.reopen(first), line.reopen(first), line.value
        (2, 2, 2)
        """
        with self._lock():
            opened = _opened.get((self.flow, self.name))
            if opened is not None and opened.value is not broken:
                return opened.value
            if opened is not None and _opened.pop((self.flow, self.name), None) is not None:
                opened.close()
            return self._open()

    def _lock(self) -> RLock:
        return _locks.setdefault((self.flow, self.name), RLock())

    def _open(self) -> T:
        try:
            value = self.on_open()
        except Exception as error:
            error.add_note(f"raised by open= of {self!r}")
            raise
        _opened[self.flow, self.name] = Opened(self, value)
        _times_opened[self.flow, self.name] += 1
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return Resource, (self.flow, self.name, self.on_open, self.on_close)

    def __deepcopy__(self, memo: dict[int, Any]) -> Resource[T]:
        return self

    def __repr__(self) -> str:
        return f"<resource {self.name!r} of flow {self.flow!r}>"


def resource_counts() -> dict[str, tuple[int, int]]:
    """The resources that the attempt has opened in this process: whether each is open, and how often it was opened."""
    return {name: (int((flow, name) in _opened), times) for (flow, name), times in list(_times_opened.items())}


def take_opened() -> list[Opened]:
    """The attempt is over: what is open in this process, for the caller to close. The next use opens it again.

    It takes no lock, because a call that goes on may hang in `open`.
    """
    _times_opened.clear()
    taken = [_opened.pop(key, None) for key in list(_opened)]
    return [opened for opened in taken if opened is not None]  # a call may have reopened one just now


def close_opened() -> None:
    """The attempt is over, and no call goes on."""
    for opened in take_opened():
        opened.close()

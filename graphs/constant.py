"""Constants of a flow: values that its functions and classes share, with one copy on each host.

A `Constant` travels to other processes by name. What its value is there, the engine says with `share`: in a process of
a run it is the value that all processes of the run have. Elsewhere, as in the simulator and in tests, the value is the
one that was given, or what the loader returns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, Generic, TypeVar

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.public import public

T_co = TypeVar("T_co", covariant=True)

Key = tuple[str, str]
"""The names of a flow and of one of its constants."""

_lock = RLock()
_loads: dict[Key, Callable[[], Any]] = {}
_shared: dict[Key, Any] = {}


@public
class Constant(Generic[T_co]):
    """A value that functions and classes of a flow share. `flow.constant` makes one.

    >>> from backedge import Collect, Flow, Items
    >>> flow = Flow("shop")
    >>> prices = flow.constant("prices", {"apple": 3})
    >>> priced = flow.read(Items(["apple"])).map(lambda name: prices.value[name])
    >>> prices.value
    {'apple': 3}
    """

    def __init__(self, flow: str, name: str, load: Callable[[], T_co] | None = None, *, is_loaded: bool = True) -> None:
        self.flow = flow
        self.name = name
        self.is_loaded = is_loaded
        self._load = load
        self._own: list[T_co] = []

    @property
    def value(self) -> T_co:
        """The value: in any function of the flow, and in tests. Do not change it."""
        key = (self.flow, self.name)
        if key in _shared:
            return _shared[key]
        with _lock:
            if key in _loads:
                return _shared.setdefault(key, _loads[key]())
            if not self._own:
                self._own.append(self.made())
            return self._own[0]

    def made(self) -> T_co:
        """The value that was given, or what the loader returns now."""
        if self._load is None:
            raise LookupError(
                f"constant {self.name!r} of flow {self.flow!r} has no value in this process, which is no process of a "
                "run: use it where the flow is built, or in functions of the flow"
            )
        return self._load()

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (self.flow, self.name)

    def __deepcopy__(self, memo: dict[int, Any]) -> Constant[T_co]:
        return self

    def __repr__(self) -> str:
        return f"<constant {self.name!r} of flow {self.flow!r}>"


def share(flow: str, name: str, load: Callable[[], Any]) -> None:
    """Let the value of a constant be what `load` returns, in this process. It is called when the value is first used.

    The constants of a run do not change, so a value that is there already stays. What would load it is replaced: the
    process behind an earlier one may have died.

    >>> rate = Constant("lending", "rate", lambda: 1)
    >>> share("lending", "rate", lambda: 2)
    >>> share("lending", "rate", lambda: 3)
    >>> rate.value
    3
    """
    with _lock:
        _loads[flow, name] = load


def own_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the arguments of a class, with constants replaced by their values, which are shared and not copied."""
    copies = copy.deepcopy(dict(arguments))
    constants: dict[str, Constant[Any]] = {name: v for name, v in copies.items() if isinstance(v, Constant)}
    return {**copies, **{name: constant.value for name, constant in constants.items()}}


def check_own_constants(what: str, arguments: Mapping[str, Any], constants: Mapping[str, Constant[Any]]) -> None:
    """Raise if an argument is a constant of another flow, which no process of this flow's runs would have."""
    for name, value in arguments.items():
        if isinstance(value, Constant) and constants.get(value.name) is not value:
            raise BadOptionError(
                f"{what} has the argument {name}={value!r}, but is part of another flow: make the constant with "
                "constant() of the same flow"
            )

"""Reads pickles without executing anything: plain values as they are, everything else as a description.

A pickle is a program. First its opcodes are checked: every allocation must be covered by bytes that follow, every memo
index by earlier opcodes, and the number of opcodes is bounded. So memory use is proportional to the input. Tuples must
not be nested too deep: Python hashes them in C, and would run out of stack. Then it is loaded with `Named` in place
of every class and function that it names; these are neither imported nor called, and `Named` records what the pickle
would have done with them.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, ClassVar

OPCODES_MAX = 4_000_000
"""Largest number of opcodes; each may create an object of about a hundred bytes."""

NESTED_TUPLES_MAX = 20_000
"""How deep tuples may be nested. A stack of 8 MB is enough for 100,000."""

_NAME_CHARACTERS_MAX = 300

# The argument of each opcode, as in Python's pickletools. Opcodes that are missing here refer to objects outside the
# pickle (persistent ids, registered extensions, buffers), and our pickles never contain them.
_BARE = b"(.012NRabd}elos]tu)" + bytes((0x81, *range(0x85, 0x8A), *range(0x8F, 0x95), 0x98))
_FIXED = {"K": 1, "h": 1, "q": 1, "\x80": 1, "M": 2, "J": 4, "j": 4, "r": 4, "G": 8, "\x95": 8}
_COUNTED = {"U": 1, "C": 1, "\x8c": 1, "\x8a": 1, "T": 4, "B": 4, "X": 4, "\x8b": 4, "\x8d": 8, "\x8e": 8, "\x96": 8}
_LINES = {"I": 1, "L": 1, "F": 1, "S": 1, "V": 1, "g": 1, "p": 1, "c": 2, "i": 2}

_UNKNOWN = -1
_SIZES = [_UNKNOWN] * 256
"""Opcode -> the size of its argument in bytes, if fixed."""
for _code in _BARE:
    _SIZES[_code] = 0
for _name, _size in _FIXED.items():
    _SIZES[ord(_name)] = _size
_COUNT_SIZES = {ord(name): size for name, size in _COUNTED.items()}
_LINE_COUNTS = {ord(name): count for name, count in _LINES.items()}
_STOP, _PUT, _LONG_BINPUT = ord("."), ord("p"), ord("r")


class UnreadablePickleError(ValueError):
    """The bytes are not a pickle, or not one that we accept."""


class BrokenPickleError(UnreadablePickleError):
    """The bytes are no pickle, or more than one: nothing that we have written."""


class UncheckedPickleError(UnreadablePickleError):
    """The pickle has more opcodes than are checked, or refers to something outside of it: nothing may load it."""


class Named:
    """Stands for an object of a class that the pickle names, or for the result of a function that it names.

    `of` is that name, `args` the call's arguments, `state` the object's state, `items` its elements: values, or pairs
    of key and value.
    """

    __slots__ = ("args", "items", "state")

    of: ClassVar[str] = ""
    args: tuple[Any, ...]
    state: Any
    items: list[Any]

    def __new__(cls, *args: Any, **named: Any) -> Named:
        self = object.__new__(cls)
        self.args = (*args, named) if named else args
        self.state = None
        self.items = []
        return self

    def __init__(self, *args: Any, **named: Any) -> None:
        """Do nothing: `__new__` has the arguments."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __call__(self, *args: Any) -> Named:
        """The result of calling a result, as in `getattr(Zone, "of")("UTC")`."""
        match self.of, self.args:
            case "builtins.getattr", (type() as owner, str(name)) if issubclass(owner, Named):
                return _named(f"{owner.of}.{name}")(*args)
            case _:
                raise UnreadablePickleError(f"it calls what {self.of} returns")

    def append(self, value: Any) -> None:
        self.items.append(value)

    add = append

    def extend(self, values: Iterable[Any]) -> None:
        self.items.extend(values)


def load(data: bytes) -> Any:
    """The value of a pickle, which must be all of the bytes. Raises `UnreadablePickleError`, and no other exception.

    >>> import io, pickle
    >>> load(pickle.dumps({"many": [1, 2]}, 5))
    {'many': [1, 2]}
    >>> named = load(pickle.dumps(io.StringIO, 5))
    >>> issubclass(named, Named), named.of
    (True, '_io.StringIO')
    >>> load(bytes.fromhex("960000000100000000"))
    Traceback (most recent call last):
    backedge.recovery.spark.cut_tables.plain_pickles.BrokenPickleError: opcode 0x96 asks for 16,777,216 bytes, ...
    """
    if (end := check_pickle(data)) != len(data):
        raise BrokenPickleError(f"it ends at byte {end:,} of {len(data):,}")
    check_nesting(data)
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError) as error:
        raise BrokenPickleError(str(error)) from error
    except Exception as error:
        raise UnreadablePickleError(f"{type(error).__name__}: {error}") from error


def check_pickle(data: bytes) -> int:
    """Where the pickle ends. Raises unless its opcodes show that memory use is proportional to its size."""
    place, end, sizes = 0, len(data), _SIZES
    for count in range(OPCODES_MAX):
        if place >= end:
            raise BrokenPickleError("it has no end")
        code = data[place]
        place += 1
        size = sizes[code]
        if size >= 0:
            if code == _LONG_BINPUT and int.from_bytes(data[place : place + 4], "little") > count:
                raise BrokenPickleError("it uses a place in the memo that is far beyond its own")
            if code == _STOP:
                return place
            place += size
        elif code in _COUNT_SIZES:
            size = _COUNT_SIZES[code]
            asked, left = int.from_bytes(data[place : place + size], "little"), end - place - size
            if asked > left:
                raise BrokenPickleError(f"opcode {code:#04x} asks for {asked:,} bytes, and {max(left, 0):,} follow")
            place += size + asked
        elif code in _LINE_COUNTS:
            for _ in range(_LINE_COUNTS[code]):
                start, place = place, data.find(b"\n", place) + 1
                if not place:
                    raise BrokenPickleError("it has a line without an end")
                line = data[start : place - 1]
                if code == _PUT and not (line.isdigit() and len(line) < 10 and int(line) <= count):
                    raise BrokenPickleError("it uses a place in the memo that is far beyond its own")
        else:
            raise UncheckedPickleError(f"opcode {code:#04x} refers to something outside of it")
    raise UncheckedPickleError(f"it has more than {OPCODES_MAX:,} opcodes")


_TUPLES = (b"t", b"\x85", b"\x86", b"\x87")
_MARK = -1


def check_nesting(data: bytes) -> None:
    """Raise if tuples may be nested too deep. Few pickles have so many tuples that it takes more than to count them."""
    if sum(map(data.count, _TUPLES)) > NESTED_TUPLES_MAX and _nesting_of(data) > NESTED_TUPLES_MAX:
        raise UnreadablePickleError(f"its tuples are nested more than {NESTED_TUPLES_MAX:,} deep")


def _nesting_of(data: bytes) -> int:
    """No less than the depth to which tuples are nested: what an opcode makes is as deep as what it takes."""
    deepest, stack, memo = 0, list[int](), dict[Any, int]()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name == "MARK":
                stack.append(_MARK)
            elif name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if argument is None else argument] = stack[-1]
            elif name in ("GET", "BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name == "DUP":
                stack.append(stack[-1])
            else:
                found = _taken(stack, opcode)
                if "TUPLE" in name and name != "EMPTY_TUPLE":
                    found += 1
                    deepest = max(deepest, found)
                stack += [found] * len(opcode.stack_after)
    except (ValueError, LookupError) as error:
        raise BrokenPickleError(f"it is damaged: {error}") from error
    return deepest


def _taken(stack: list[int], opcode: pickletools.OpcodeInfo) -> int:
    """Take what an opcode takes from the stack; return the depth of the deepest."""
    found, count = 0, len(opcode.stack_before)
    if pickletools.markobject in opcode.stack_before:
        while (depth := stack.pop()) != _MARK:
            found = max(found, depth)
        count -= 2
    return max([found, *(stack.pop() for _ in range(count))])


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """A subclass of `Named` for this name; nothing is imported."""
        if len(module_name) + len(global_name) > _NAME_CHARACTERS_MAX:
            raise UnreadablePickleError("it names something whose name is too long")
        return _named(f"{module_name}.{global_name}")


@lru_cache(4096)
def _named(name: str) -> type[Named]:
    return type("Named", (Named,), {"__slots__": (), "of": name})

"""What goes wrong in user code, or with what it returns: each message says where, with which record, and the fix."""

from __future__ import annotations

import traceback
from enum import Enum
from pathlib import Path
from typing import Any

_OWN_FOLDER = str(Path(__file__).parent)
_SHOWN_MAX = 500


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Any = _NoKey.NO_KEY
"""Stands where a record, a state or a timer belongs to no key; None is a key like any other."""


class TaskError(Exception):
    """A task cannot go on; the run fails, since running it again would end the same."""


class UserFunctionError(TaskError):
    """An exception of the user's own code, with the operator, the key, the record and the user's frames.

    >>> try:
    ...     raise user_error("parse", ValueError("no digits"), record="abc")
    ... except UserFunctionError as error:
    ...     print(error.operator, "-", str(error).splitlines()[0])
    parse - operator 'parse' raised ValueError: no digits
    """

    def __init__(self, message: str, operator: str) -> None:
        super().__init__(message, operator)
        self.message = message
        self.operator = operator

    def __str__(self) -> str:
        return self.message


class StateSerializationError(TaskError):
    """State that a snapshot cannot hold."""


class RecordSerializationError(TaskError):
    """A record that cannot travel, be copied or be kept, because it does not pickle."""


class LoopLimitError(TaskError):
    """A record went round a loop more often than `max_rounds` allows, and `on_limit` is "fail"."""


class LoopOverflowError(TaskError):
    """A loop holds more records than it was given disk for."""


class RoutingError(TaskError):
    """A record that its edge can send nowhere."""


class MisuseError(TaskError):
    """User code called something where it means nothing, such as the state of a record that has no key."""


def user_error(
    operator: str,
    error: BaseException,
    record: Any = NO_KEY,
    key: Any = NO_KEY,
    hook: str = "",
    can_set_aside: bool = True,
) -> UserFunctionError:
    """The error to raise, `from error`, when user code raised."""
    where = f" in {hook}" if hook else ""
    lines = [f"operator {operator!r} raised {describe(error)}{where}"]
    if key is not NO_KEY:
        lines.append(f"  key: {show(key)}")
    if record is not NO_KEY:
        lines.append(f"  record: {show(record)}")
    frames = user_frames(error)
    if frames:
        lines.append("  your code, innermost last:")
        lines += ["    " + line for frame in frames for line in frame.rstrip().splitlines()]
    aside = ', or give the operator on_error="dead_letter" to set such records aside' if can_set_aside else ""
    lines.append(f"  fix the function{aside}")
    return UserFunctionError("\n".join(lines), operator)


def serialization_error(operator: str, what: str, error: BaseException) -> StateSerializationError:
    """The error to raise, `from error`, when state does not encode."""
    return StateSerializationError(
        f"operator {operator!r} holds {what} that no snapshot can keep: {describe(error)}\n"
        "  keep values that pickle in the state: numbers, text, lists, dicts, arrays, objects of importable classes; "
        "make open files, locks, connections, generators and lambdas anew in on_start"
    )


def describe(error: BaseException) -> str:
    """The kind and the words of an exception, on one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def show(value: Any) -> str:
    """The repr of a user's value, cut to a length that a terminal bears.

    >>> show("x" * 1000)[-30:]
    'xxx... (1,002 characters)'
    """
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # a broken __repr__ must not hide the error that is being told
        return f"(a {type(value).__name__} whose repr raises {type(error).__name__})"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}... ({len(text):,} characters)"


def user_frames(error: BaseException) -> list[str]:
    """The traceback without our own frames: what the user can read and change."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OWN_FOLDER)]
    return traceback.format_list(own)

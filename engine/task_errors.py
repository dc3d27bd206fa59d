"""What goes wrong in user code, or with what it returns: each message says where, with which record, and the fix."""

from __future__ import annotations

import traceback
from enum import Enum
from pathlib import Path
from typing import Any

from graphs.io import RAISED_BY_USERS

_OWN_FOLDER = str(Path(__file__).parent)
_SHOWN_MAX = 500


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Any = _NoKey.NO_KEY
"""Stands where a record, a state or a timer belongs to no key; None is a key like any other."""


USER_RAISED = RAISED_BY_USERS


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


def raise_unless_users(error: BaseException) -> None:
    """Raise the error on if the process is being ended from outside, which Ray does by a SystemExit of its own."""
    if isinstance(error, SystemExit) and hasattr(error, "ray_terminate_msg"):
        raise error


def user_error(
    operator: str,
    error: BaseException,
    record: Any = NO_KEY,
    key: Any = NO_KEY,
    hook: str = "",
    can_set_aside: bool = True,
    subject: str = "",
) -> UserFunctionError:
    """The error to raise, `from error`, when user code raised. `subject` is what to blame in place of the operator."""
    raise_unless_users(error)
    where = f" in {hook}" if hook else ""
    blamed = subject or f"operator {operator!r}"
    lines = [f"{blamed} raised {describe(error)}{where}"]
    if key is not NO_KEY:
        lines.append(f"  key: {show(key)}")
    if record is not NO_KEY:
        lines.append(f"  record: {show(record)}")
    lines += _told_frames(error)
    aside = ', or give the operator on_error="dead_letter" to set such records aside' if can_set_aside else ""
    lines.append(f"  fix the function{aside}")
    return UserFunctionError("\n".join(lines), operator)


def stop_when_error(flow: str, epoch: int, error: BaseException) -> UserFunctionError:
    """The error to raise, `from error`, when the `stop_when` of a flow raised."""
    raise_unless_users(error)
    lines = [f"stop_when of flow {flow!r} raised {describe(error)} at cut {epoch}"]
    lines += _told_frames(error)
    lines.append("  fix the function: it is given a CutView, and says whether the run may stop")
    return UserFunctionError("\n".join(lines), "stop_when")


def serialization_error(operator: str, what: str, error: BaseException) -> StateSerializationError:
    """The error to raise, `from error`, when state does not encode."""
    return StateSerializationError(
        f"operator {operator!r} holds {what} that no snapshot can keep: {describe(error)}\n"
        "  keep values that pickle in the state: numbers, text, lists, dicts, arrays, objects of importable classes; "
        "make open files, locks, connections, generators and lambdas anew in on_start"
    )


def unreadable_error(operator: str, what: str, kind: str, error: BaseException) -> StateSerializationError:
    """The error to raise, `from error`, when state encodes and cannot be read back: no restart would succeed."""
    return StateSerializationError(
        f"operator {operator!r} holds {what} that no restart could read back: a {kind} pickles, and unpickling it "
        f"raises {describe(error)}\n"
        "  keep plain values in the state, or give the class a __reduce__ with what its __init__ needs; an exception "
        "unpickles if its __init__ hands all of its arguments to super().__init__"
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


def _told_frames(error: BaseException) -> list[str]:
    """The user's frames as lines of a message; none where there are none."""
    lines = ["    " + line for frame in user_frames(error) for line in frame.rstrip().splitlines()]
    return ["  your code, innermost last:", *lines] if lines else []


def user_frames(error: BaseException) -> list[str]:
    """The traceback without our own frames: what the user can read and change."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_OWN_FOLDER)]
    return traceback.format_list(own)

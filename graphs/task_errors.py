"""Errors of user code or about its results: each message names the place, the record and the fix."""

from __future__ import annotations

import os
import traceback
from enum import Enum
from pathlib import Path
from typing import Any

from backedge.graphs.io import RAISED_BY_USERS
from backedge.graphs.public import public

_OWN_FOLDER = f"{Path(__file__).parents[1]}{os.sep}"
_PYTHON = os.path.dirname(os.__file__) + os.sep
_PACKAGES = {"site-packages", "dist-packages"}
_LIBRARIES = {"msgspec", "numpy", "pyarrow", "ray"}
"""Packages that our own code calls throughout: what they raise for it is a mistake of ours."""
_SHOWN_MAX = 500


class _NoKey(Enum):
    NO_KEY = "no key"


NO_KEY: Any = _NoKey.NO_KEY
"""The key of records, state or timers without a key; None is a key like any other."""


USER_RAISED = RAISED_BY_USERS


@public
class TaskError(Exception):
    """A task cannot go on. The run fails, because running it again would end the same."""


@public
class UserFunctionError(TaskError):
    """An exception raised by user code, with the operator, the key, the record and the user's frames.

    Fix: correct the function, then resume; or set such records aside with `on_error="dead_letter"`.

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


@public
class StateSerializationError(TaskError):
    """State that cannot be put into a snapshot.

    Fix: keep plain values in state; open connections and files in `on_start`.
    """


@public
class RecordSerializationError(TaskError):
    """A record that cannot travel, be copied or be kept, because it does not pickle.

    Fix: send plain values, or a class that pickles.
    """


@public
class LoopLimitError(TaskError):
    """A record went round a loop more often than `max_rounds` allows, and `on_limit` is "fail".

    Fix: raise `max_rounds`, or read `dead_letters` of the loop instead.
    """


@public
class LoopOverflowError(TaskError):
    """A loop holds more records than its disk budget allows.

    Fix: let less into the loop or more out of it (`rate=` of its sources, `max_rounds`, more tasks), or raise
    `loop_disk_bytes`.
    """


@public
class RoutingError(TaskError):
    """A record that its edge cannot route.

    Fix: return an index of a task from `route`, and a value of a keyable type from `key_by`.
    """


@public
class MisuseError(TaskError):
    """User code used a feature where it has no meaning, such as the state of a record without a key.

    Fix: use the feature as the message says.
    """


def raise_unless_users(error: BaseException) -> None:
    """Re-raise the error if the process is being ended from outside, which Ray does with its own SystemExit."""
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
    """The error to raise, `from error`, when user code raised. `subject`, if given, is blamed instead of it."""
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
    lines.append("  fix the function: it gets a CutView and returns whether the run may stop")
    return UserFunctionError("\n".join(lines), "stop_when")


def serialization_error(operator: str, what: str, error: BaseException) -> StateSerializationError:
    """The error to raise, `from error`, when state cannot be encoded."""
    return StateSerializationError(
        f"operator {operator!r} holds {what} that cannot be put into a snapshot: {describe(error)}\n"
        "  keep values that pickle in the state: numbers, text, lists, dicts, arrays, objects of importable classes; "
        "create open files, locks, connections, generators and lambdas again in on_start"
    )


def unreadable_error(operator: str, what: str, kind: str, error: BaseException) -> StateSerializationError:
    """The error to raise, `from error`, when state can be encoded but not decoded, so that no restart would succeed."""
    return StateSerializationError(
        f"operator {operator!r} holds {what} that a restart could not read: a {kind} can be pickled, but unpickling it "
        f"raises {describe(error)}\n"
        "  keep plain values in the state, or give the class a __reduce__ with what its __init__ needs; an exception "
        "unpickles if its __init__ passes all of its arguments to super().__init__"
    )


def former_error(operator: str, what: str, error: BaseException) -> StateSerializationError:
    """The error to raise, `from error`, when a program cannot decode what another one has encoded."""
    return StateSerializationError(
        f"operator {operator!r} cannot read {what} that a former run has kept: {describe(error)}\n"
        "  let the class that it names be found where it was, and take its former attributes"
    )


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def show(value: Any) -> str:
    """The repr of a user's value, shortened to fit a terminal.

    >>> show("x" * 1000)[-30:]
    'xxx... (1,002 characters)'
    """
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  # a broken __repr__ must not hide the error that is being reported
        return f"(a {type(value).__name__} whose repr raises {type(error).__name__})"
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}... ({len(text):,} characters)"


def _told_frames(error: BaseException) -> list[str]:
    """The user's frames as lines of a message; empty if there are none."""
    told = (*user_frames(error), *getattr(error, "__notes__", ()))
    lines = ["    " + line for each in told for line in each.rstrip().splitlines()]
    return ["  your code, innermost last:", *lines] if lines else []


def user_frames(error: BaseException) -> list[str]:
    """The traceback without our own frames: what the user can read and change."""
    return traceback.format_list(_frames_of_others(error))


def foreign_place(error: BaseException) -> str:
    """The innermost place in a source, sink or operator of others; empty if there is none.

    Python's own code and that of the libraries that ours calls is no such place.
    """
    for frame in reversed(_frames_of_others(error)):
        parts = set(Path(frame.filename).parts)
        is_pythons = frame.filename.startswith((_PYTHON, "<frozen ")) and not parts & _PACKAGES
        if not is_pythons and not parts & _LIBRARIES:
            return f"{frame.filename}, line {frame.lineno}, in {frame.name}"
    return ""


def _frames_of_others(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if not frame.filename.startswith(_OWN_FOLDER)]

"""Extracts the key of a record: by the user's function, or by column name."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

from backedge.engine.task_errors import MisuseError


def key_function(by: Callable[[Any], Any] | str | None) -> Callable[[Any], Any]:
    """The function that returns a record's key.

    >>> key_function("id")({"id": 7})
    7
    """
    if by is None:
        raise MisuseError("records must be keyed, but the plan has no key for them: call key_by first")
    return itemgetter(by) if isinstance(by, str) else by

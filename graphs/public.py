"""Names that users see: each module says which of its classes and functions `backedge` has."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def public(thing: T) -> T:
    """Show a class or function as `backedge.NAME`, in errors and in `help()`: that is where users import it from.

    >>> from backedge import Flow
    >>> Flow
    <class 'backedge.Flow'>
    """
    thing.__module__ = "backedge"
    return thing

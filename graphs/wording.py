"""Counts in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """So many of them.

    >>> counted(1, "cut"), counted(1200, "record")
    ('1 cut', '1,200 records')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"

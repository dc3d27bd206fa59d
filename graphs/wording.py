"""Counts in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, ending: str = "s") -> str:
    """So many of them.

    >>> counted(1, "cut"), counted(1200, "record"), counted(2, "batch", "es")
    ('1 cut', '1,200 records', '2 batches')
    """
    return f"{number:,} {noun}{'' if number == 1 else ending}"

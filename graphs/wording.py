"""Counts in sentences, and text that is safe to print."""

from __future__ import annotations


def counted(number: int, noun: str, ending: str = "s") -> str:
    """A count with its noun.

    >>> counted(1, "cut"), counted(1200, "record"), counted(2, "batch", "es")
    ('1 cut', '1,200 records', '2 batches')
    """
    return f"{number:,} {noun}{'' if number == 1 else ending}"


def printable(text: str) -> str:
    """A line of text for a terminal: line breaks, control and invisible characters are written as escapes.

    Names and messages may come from files that somebody else wrote. Printed raw, a name could look like a line of our
    own or move the cursor.

    >>> print(printable("rank" + chr(10) + "consistent: 1 cut" + chr(27) + "[2J"))
    rank\\nconsistent: 1 cut\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def one_line(text: object) -> str:
    """A message on one line, printable: an error may quote several lines, or names that hold anything.

    >>> print(one_line("cannot be read:" + chr(10) + "  no such file" + chr(27)))
    cannot be read: no such file\\x1b
    """
    return printable(" ".join(line.strip() for line in str(text).splitlines()))

"""Tables, amounts and refusals, as the command prints them for people."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from unicodedata import combining, east_asian_width

from backedge.graphs.wording import one_line, printable


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns, the first row being the heads. Names that came from files are escaped.

    >>> table_lines([("job", "state"), ("shop", "running")])
    ['job   state', 'shop  running']
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    most = [max(width(row[column]) for row in rows) for column in range(len(rows[0]))]
    padded = ([cell + " " * (wide - width(cell)) for cell, wide in zip(row, most, strict=True)] for row in rows)
    return ["  ".join(cells).rstrip() for cells in padded]


def width(text: str) -> int:
    """The columns that a text takes on a terminal.

    >>> width("shop"), width("\u5e97"), width("e\u0301")
    (4, 2, 1)
    """
    return len(text) if text.isascii() else sum(map(_width, text))


def _width(character: str) -> int:
    return 0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1


def fitting(line: str, columns: int) -> str:
    """As much of the beginning of a line as fits into that many columns of a terminal."""
    line = line[:columns]
    while width(line) > columns:
        line = line[:-1]
    return line


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows as `table_lines` arranges them."""
    print("\n".join(table_lines(rows)))


def refuse(command: str, refused: Exception) -> int:
    """Say on standard error, in one line, why a command cannot do what it was asked for. Returns the exit code, 2."""
    print(f"backedge {command}: {explained(refused)}", file=sys.stderr)
    return 2


def explained(refused: Exception) -> str:
    """Why something cannot be done, in one line; of a path that is closed to this user also what opens it.

    >>> explained(PermissionError(13, "Permission denied", "/data/cuts"))
    '/data/cuts cannot be used (Permission denied): grant this user access to it'
    """
    if isinstance(refused, PermissionError) and refused.filename is not None:
        return one_line(f"{refused.filename} cannot be used ({refused.strerror}): grant this user access to it")
    return one_line(refused)


def shortened(text: str | None, characters_max: int) -> str:
    """A text, or its beginning if it is long, or a dash where there is none.

    >>> shortened("four", 4), shortened("fives", 4), shortened(None, 4)
    ('four', 'fiv…', '-')
    """
    if text is None:
        return "-"
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def amount(number: float | None) -> str:
    """A number, or a dash where it is not known.

    >>> amount(12500.4), amount(0.25), amount(None)
    ('12,500', '0.25', '-')
    """
    if number is None:
        return "-"
    return f"{number:,.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"


def share(part: float | None) -> str:
    """A share of the time.

    >>> share(0.256), share(None)
    ('26 %', '-')
    """
    return "-" if part is None else f"{part:.0%}".replace("%", " %")


def duration(seconds: float | None) -> str:
    """A time, as exact as one can see.

    >>> duration(0.0123), duration(1.25), duration(95), duration(7300), duration(None)
    ('12 ms', '1.25 s', '1 min 35 s', '2 h 1 min', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def size(count: int | None) -> str:
    """A number of bytes.

    >>> size(999), size(12_345), size(3_400_000), size(None)
    ('999 B', '12.3 kB', '3.4 MB', '-')
    """
    if count is None:
        return "-"
    amount, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.3g} {unit}"


def local_time(at_s: float | None) -> str:
    """A time of day, in this place's time zone; a dash where it is not known, or no time, as it may be if forged.

    >>> local_time(None), local_time(1e20)
    ('-', '-')
    """
    try:
        return "-" if at_s is None else datetime.fromtimestamp(at_s).astimezone().isoformat(" ", "seconds")[:19]
    except (ValueError, OverflowError, OSError):
        return "-"

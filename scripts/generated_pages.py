"""Writes the page of docs/ that is made from code: errors.md.

python scripts/generated_pages.py            write it
python scripts/generated_pages.py --check    exit with 1 if it differs from the code
"""

from __future__ import annotations

import sys
from pathlib import Path

import error_page

PAGE = Path(__file__).resolve().parents[1] / "docs" / "errors.md"


def main(arguments: list[str]) -> int:
    """Write the page or check it."""
    made = error_page.page()
    if arguments == ["--check"]:
        differs = not PAGE.exists() or PAGE.read_text() != made
        if differs:
            print("docs/errors.md differs from the code: run `make map`", file=sys.stderr)
        return int(differs)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

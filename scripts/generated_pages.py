"""Writes the parts of docs/ that are made from code: files.md and errors.md.

python scripts/generated_pages.py            write them
python scripts/generated_pages.py --check    exit with 1 if one of them differs from the code
"""

from __future__ import annotations

import sys
from pathlib import Path

import error_page
import file_map

DOCS = Path(__file__).resolve().parents[1] / "docs"


def main(arguments: list[str]) -> int:
    """Write the files or check them."""
    made = {DOCS / "files.md": file_map.page(), DOCS / "errors.md": error_page.page()}
    if arguments == ["--check"]:
        differing = [file for file, text in made.items() if not file.exists() or file.read_text() != text]
        for file in differing:
            print(f"docs/{file.relative_to(DOCS)} differs from the code: run `make map`", file=sys.stderr)
        return int(bool(differing))
    for file, text in made.items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A real graph: the packages of Debian, and what the index that apt has of them names in each one's entry.

An entry leads to the packages it depends on, recommends or conflicts with, alternatives included; to its source,
maintainer, section and tags; and to the words of its description. Debian 12 has 1.1 million such pairs.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.ours import BenchError

PACKAGES = (
    *("Depends", "Pre-Depends", "Recommends", "Suggests", "Enhances"),
    *("Breaks", "Conflicts", "Replaces", "Provides"),
)
OTHERS = ("Source", "Maintainer", "Section", "Tag", "Description")
_FIELDS = re.compile(r"^([\w-]+): ?(.*(?:\n .*)*)", re.MULTILINE)


def write_debian(folder: str) -> tuple[int, int]:
    """Write the distinct edges, as `graph_input.write_graph` does; return the numbers of vertices and edges."""
    try:
        index = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, check=True, encoding="utf8").stdout
    except FileNotFoundError as error:
        raise BenchError("there is no apt-cache, so no index of packages: run this on Debian or Ubuntu") from error
    pairs = set(named(index))
    if not pairs:
        raise BenchError("apt knows no packages: run `apt-get update` first")
    number: dict[str, int] = {}
    ends = np.array([number.setdefault(end, len(number)) for pair in sorted(pairs) for end in pair], np.int32)
    np.save(Path(folder) / "sources.npy", ends[::2])
    np.save(Path(folder) / "targets.npy", ends[1::2])
    return len(number), len(pairs)


def named(index: str) -> Iterator[tuple[str, str]]:
    """Each package of an index with each thing that its entry names; what is no package has its kind in front.

    >>> list(named("Package: less\\nDepends: libc6 (>= 2.3), a | b:any\\nTag: role::program,\\n x::y\\n"))
    [('less', 'libc6'), ('less', 'a'), ('less', 'b'), ('less', 'Tag:role::program'), ('less', 'Tag:x::y')]
    """
    for entry in index.split("\n\n"):
        fields: dict[str, str] = dict(_FIELDS.findall(entry))
        if "Package" not in fields:
            continue
        package = fields["Package"]
        for field in PACKAGES:
            for part in re.split("[,|]", fields.get(field, "")):
                if name := part.strip().partition(" ")[0].partition(":")[0]:
                    yield package, name
        for field in OTHERS:
            for thing in _things(field, fields.get(field, "")):
                yield package, f"{field}:{thing}"


def _things(field: str, text: str) -> list[str]:
    if field == "Description":
        return re.findall(r"\w+", text.lower())
    # The version of a source stands behind it.
    parts = text.split(",") if field == "Tag" else [text.partition(" (")[0]]
    return [part.strip() for part in parts if part.strip()]

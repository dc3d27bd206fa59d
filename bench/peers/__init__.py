"""What ours is compared with, a file each: `run(workload)` gives its figure, in the unit of the workload.

    python -m bench loop --peer mine.py

puts the module in `mine.py` in the place of a peer: the first one of the benchmark, or the one that the module names
with `PEER = "ray"`. What it is given, and what it must do, stands in `bench/workloads.py`.

The programs of `bench losses` are processes of their own, see `conversations.py`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Run = Callable[[Any], float]


class PeerError(ValueError):
    """A file that cannot stand in for a peer."""


def peers(known: Mapping[str, Run], path: str | None) -> dict[str, Run]:
    """The peers of a benchmark, one of them replaced if there is a file that stands in."""
    if path is None:
        return dict(known)
    name, run = load(path, tuple(known))
    return {**known, name: run}


def load(path: str, names: tuple[str, ...]) -> tuple[str, Run]:
    """The peer that a file stands in for, and its `run`."""
    file = Path(path).absolute()
    if not file.is_file() or file.suffix != ".py":
        raise PeerError(f"--peer {path}: there is no such Python file; give a module with run(workload)")
    # By its plain name and from its own folder, so that processes which it starts can import it again.
    sys.path.insert(0, str(file.parent))
    module = importlib.import_module(file.stem)
    if Path(str(module.__file__)).resolve() != file.resolve():
        raise PeerError(f"--peer {path}: another module is called {file.stem!r} ({module.__file__}): rename yours")
    name = getattr(module, "PEER", names[0])
    if name not in names:
        raise PeerError(f"--peer {path} has PEER = {name!r}: the peers here are {', '.join(names)}")
    if not callable(getattr(module, "run", None)):
        raise PeerError(f"--peer {path} has no run(workload), which gives one figure: see bench/workloads.py")

    def run(workload: Any) -> float:
        figure = module.run(workload)
        if not isinstance(figure, int | float) or not figure > 0:
            raise PeerError(f"--peer {path}: run(workload) gave {figure!r}: return a figure above 0")
        return float(figure)

    return name, run

"""Makes the cuts of this version that later ones must read: `python -m tests.formats.make_cuts FOLDER`.

Run it once for a version whose format is new, and keep what it has made: `cuts_of_0_1`, of layout 12, is of the commit
before the one that added it, e0707738, and `cuts_of_layout_13` of 4e2157a2. It starts a Ray of its own. Ids, times and
how far records have gone differ from run to run.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from backedge import Job, start
from backedge.graphs.ids import Epoch
from backedge.recovery.stores.cut_store import CutStore
from tests.formats.flows_of_cuts import COUNT, DELTA, FLOWS, JOURNAL, MADE, ROWS, WHOLE
from tests.gates import Gate, wait_for

OPTIONS: dict[str, Any] = {"every": None, "parallelism": 2, "actors": "slice", "progress": False}
LET = {"plain": (COUNT // 4,), "columns": (ROWS // 2,), "calls": (WHOLE, DELTA)}
"""How much each split may give before each cut; there are two splits."""


def make(name: str, folder: Path) -> None:
    """Take the cuts of one flow, and end it as a crash would."""
    with tempfile.TemporaryDirectory() as place:
        gate = Gate(f"{place}/gate")
        gate.let(0)
        job = start(FLOWS[name](gate, MADE), snapshots=folder, **OPTIONS)
        last = 0
        try:
            for count in LET[name]:
                gate.let(count // 2)
                wait_for(lambda count=count: read(job) >= count, f"{count} records are read")
                last = job.cut()
            if name == "calls":
                gate.let(JOURNAL // 2)
                wait_for(lambda: answered(folder, last) >= JOURNAL - DELTA, "the journal has the answers")
        finally:
            job.cancel()
    (folder / name / "status.json").unlink()  # what the run was doing: nothing is restored from it


def read(job: Job) -> int:
    """How many records the sources have read."""
    return sum(count for task, count in job.status().by_task().items() if task.name == "numbers")


def answered(folder: Path, restored: int) -> int:
    """How many answers the journal has beside this cut."""
    return sum(1 for _ in CutStore(str(folder), "calls").answers.read("ask", Epoch(restored)))


if __name__ == "__main__":
    for each in FLOWS:
        make(each, Path(sys.argv[1]))

"""`python -m recovery.spark watch FOLDER MODE SINCE TEMPORARY`, which a run to be audited starts: see `watching.py`."""

from __future__ import annotations

import os
import sys

from recovery.spark.audit.watching import watch

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch", path, "every-cut" | "final" as mode, since, temporary] if since.isdigit():
            pass
        case _:
            sys.exit("python -m recovery.spark: write watch FOLDER every-cut|final SINCE TEMPORARY")
    # Whatever Java prints must not come between the lines that the run reads.
    with os.fdopen(os.dup(1), "w") as said:
        os.dup2(2, 1)
        sys.exit(watch(path, mode, int(since), temporary, said, sys.stdin))

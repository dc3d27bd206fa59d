"""`python -m backedge.recovery.spark watch FOLDER MODE SINCE TEMPORARY`: the process that `run(audit=...)` starts."""

from __future__ import annotations

import os
import sys

from backedge.recovery.spark.audit.live_audit import watch

if __name__ == "__main__":
    match sys.argv[1:]:
        case ["watch", path, "every-cut" | "final" as mode, since, temporary] if since.isdigit():
            pass
        case _:
            sys.exit("usage: python -m backedge.recovery.spark watch FOLDER every-cut|final SINCE TEMPORARY")
    # The run parses our stdout, so anything that Java prints goes to stderr.
    with os.fdopen(os.dup(1), "w") as reports:
        os.dup2(2, 1)
        sys.exit(watch(path, mode, int(since), temporary, reports, sys.stdin))

"""Every fault that a run must survive, one after the other: python -m tests.faults [--json] [--only 1,9,gcs]

Each fault is made to happen by tests of this project (`fault_list.py`), which count how often it happened and what they
checked after it (`evidence.py`): committed output equals the reference as a multiset, nothing wrong is read, every cut
that is left passes the audit, and all of it ends before a deadline. The exit code is 1 if a fault did not happen or was
not survived, 130 after Ctrl-C or SIGTERM, which leave nothing running.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

import pytest

from tests.faults.fault_list import FAULTS, Fault
from tests.faults.recorder import Recorder, Result, run_tests

INTERRUPTED = 130


def main() -> int:
    """Make the faults happen and report what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Make every fault happen.")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each fault, instead of a table")
    parser.add_argument("--only", metavar="LIST", help="numbers and names of faults: 1,9,gcs")
    given = parser.parse_args()
    known = {fault.number: fault for fault in FAULTS}
    names = given.only.split(",") if given.only else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"no fault {', '.join(unknown)}: there are {', '.join(known)}")
    chosen = [known[name] for name in names]

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The output of tests is captured; what is said here goes past that.
    with open(os.dup(1), "w", buffering=1) as out, open(os.dup(2), "w", buffering=1) as progress:
        return _run(chosen, given.json, out, progress)


def _run(chosen: Sequence[Fault], as_json: bool, out: TextIO, progress: TextIO) -> int:
    done: list[Result] = []

    def on_result(result: Result) -> None:
        done.append(result)
        if as_json:
            print(json.dumps(result.to_json()), file=out)
        word = "survived" if result.survived else "NOT SURVIVED" if result.happened else "DID NOT HAPPEN"
        print(f"{len(done)} of {len(chosen)}: {result.fault.number} {result.fault.name}: {word}", file=progress)
        for error in result.errors.values():
            print(error, file=progress)

    recorder = Recorder(chosen, lambda nodeid: print(f"  {nodeid}", file=progress), on_result)
    code, said = run_tests(recorder)
    if code == pytest.ExitCode.INTERRUPTED:
        print("interrupted; nothing is left running", file=progress)
        return INTERRUPTED
    missing = [result for result in recorder.results.values() if result not in done]
    for result in missing:
        on_result(result)
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        print(said, file=progress)
    if not as_json:
        print("\n".join(_table(list(recorder.results.values()))), file=out)
    return 0 if code == 0 and all(result.survived for result in done) else 1


def _table(results: Sequence[Result]) -> list[str]:
    width = max(len(result.fault.name) for result in results)
    lines = [f"{'fault':>10}  {'':{width}}  happened  survived  seconds"]
    for result in results:
        marks = f"{_mark(result.happened):8}  {_mark(result.survived):8}"
        lines.append(f"{result.fault.number:>10}  {result.fault.name:{width}}  {marks}  {result.seconds:7.1f}")
        counted = (result.proof["happened"] + result.proof["survived"]).items()
        lines += [f"{'':12}{count:,} {what}" for what, count in counted]
    return lines


def _mark(is_so: bool) -> str:
    return "yes" if is_so else "NO"


if __name__ == "__main__":
    sys.exit(main())

"""An example on Ray whose loop head is killed once, and what Spark says about its output."""

from __future__ import annotations

from types import ModuleType

from backedge import RunOptions, case_of, run_checked
from backedge.faults import Faults

EVERY_S = 0.1


def check_killed_once(
    example: ModuleType, size: int, parallelism: int = 1, early: str | None = None, rounds: int | None = None
) -> None:
    """The head dies when a cut that can be restored exists, with records in the loop if this loop ever shows any.

    `early`: the kill for an example that is over within two cuts. It may have to begin from the start.
    """
    in_loop = case_of(example).in_loop
    kill = early or ("head@loop=1" if in_loop else "head@epoch=2")
    options = RunOptions(every=EVERY_S, parallelism=parallelism, progress=False)
    checked = run_checked(example, options, faults=Faults([kill]), size=size, rounds=rounds)
    assert checked.failures == []
    assert len(checked.rows) > 0
    (restore,) = checked.result.restores
    assert restore["epoch"] is not None or early
    assert restore["in_loop_records"] > 0 or not in_loop

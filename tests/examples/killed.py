"""An example on Ray whose loop head is killed once, and what Spark says about its output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from backedge import Flow, RunOptions, run_checked
from backedge.faults import Faults
from tests.gates import Gate, behind, opened_after

EVERY_S = 0.1


@contextmanager
def gated(example: ModuleType, at_first: int, attempts: int, folder: Path) -> Iterator[None]:
    """Within the block, runs of an example with their cuts in `folder` end only when `attempts` attempts have begun."""
    make, gate = example.flow, Gate(folder.with_suffix(".gate"))

    @wraps(make)
    def flow(*given: Any, **named: Any) -> Flow:
        return behind(make(*given, **named), gate, at_first)

    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(example, "flow", flow)
        with opened_after(attempts, gate, folder, example.__name__.rpartition(".")[2]):
            yield


def check_killed_once(
    example: ModuleType,
    folder: Path,
    size: int,
    parallelism: int = 1,
    early: str | None = None,
    rounds: int | None = None,
) -> None:
    """The head dies in the second cut, when half of the input was read: the first cut is restored.

    `early`: the kill for an example that computes nothing before all is read. It may have to begin from the start.
    """
    options = RunOptions(every=EVERY_S, parallelism=parallelism, progress=False, snapshots=folder)
    with nullcontext() if early else gated(example, size // 2, 2, folder):
        faults = Faults([early or "head@epoch=2"])
        checked = run_checked(example, options, faults=faults, size=size, rounds=rounds)
    assert checked.failures == []
    assert len(checked.rows) > 0
    (restore,) = checked.result.restores
    assert restore["epoch"] is not None or early

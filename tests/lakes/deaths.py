"""A process that dies at planned steps of a commit, one after the other, whichever process then does them."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from backedge.engine.io.files.kept_in_store import StoreWriter
from backedge.engine.io.lakes.delta import _DeltaStore
from backedge.engine.io.lakes.iceberg import _IcebergStore
from tests.on_ray.fault_points import KILLED

METHODS: dict[str, tuple[type[Any], ...]] = {
    "prepare": (StoreWriter,),
    "commit": (_DeltaStore, _IcebergStore),
    "append": (_DeltaStore, _IcebergStore),
    "_write": (StoreWriter,),
}
"""The steps, in their order: records are kept, the cut is complete, rows and marker are committed, a note is made (and
records are kept, which is the same method)."""


class Step(NamedTuple):
    """Before or after the `number`-th call of a method in a process."""

    method: str
    side: Literal["before", "after"]
    number: int


def steps(seed: int, count: int) -> tuple[Step, ...]:
    """Random steps, one of each kind at least if there are enough."""
    rng = random.Random(seed)
    methods = [*METHODS] * (count // len(METHODS)) + rng.sample([*METHODS], count % len(METHODS))
    rng.shuffle(methods)
    return tuple(Step(method, rng.choice(["before", "after"]), rng.randrange(1, 4)) for method in methods)


@dataclass(frozen=True)
class Deaths:
    """Steps at which a process ends. `notes` is a folder with a file for each that has happened."""

    notes: str
    steps: tuple[Step, ...]

    @property
    def happened(self) -> int:
        return len(os.listdir(self.notes))

    def set(self) -> None:
        """Set them in this process."""
        calls: Counter[str] = Counter()
        for name, owners in METHODS.items():
            for owner in owners:
                original = getattr(owner, name)
                if not hasattr(original, "deaths"):
                    setattr(owner, name, self._passing(name, original, calls))

    def _passing(self, name: str, original: Callable[..., Any], calls: Counter[str]) -> Callable[..., Any]:
        def passing(*arguments: Any) -> Any:
            calls[name] += 1
            self._pass(name, "before", calls[name])
            found = original(*arguments)
            self._pass(name, "after", calls[name])
            return found

        passing.deaths = self  # type: ignore[attr-defined]
        return passing

    def _pass(self, name: str, side: str, number: int) -> None:
        happened = self.happened
        due = self.steps[happened] if happened < len(self.steps) else None
        if due is not None and due[:2] == (name, side) and number >= due.number:
            open(f"{self.notes}/{happened:02}-{name}-{side}", "x").close()
            os._exit(KILLED)

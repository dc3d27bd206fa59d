"""What the live page shows: the status of each job, and the contents of its cuts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from threading import Lock
from typing import Any

from backedge.inspecting.cut_contents import CutContents
from backedge.inspecting.cut_diff import CutDiff, diff_of
from backedge.inspecting.jobs import Jobs, cut_of, kept_at
from backedge.page.page_layout import layout_of
from backedge.recovery.stores.run_status import RunStatus

SHOWN_MAX = 200
LIVING_S = 0.8
STORED_S = 5.0
"""For how long an answer of the cluster, and what the store says of a job, are taken for new."""

Living = Callable[[], Sequence[RunStatus]]
"""Asks the cluster for the runs that are alive."""


class PageSource:
    """Looks at the jobs of a folder, and at the runs that are alive. Its methods block; any thread may call them."""

    def __init__(self, snapshots: str | None, key: bytes | None, living: Living) -> None:
        self._snapshots = snapshots
        self._key = key
        self._ask_living = living
        self._lock = Lock()
        self._living: tuple[float, Sequence[RunStatus]] = (-LIVING_S, ())
        self._stored: dict[str, tuple[float, RunStatus]] = {}

    def jobs(self) -> list[dict[str, Any]]:
        """Every job, with its state."""
        found, faults = self._jobs().all()
        told = [
            {"job": status.job, "state": status.state, "is_live": status.is_live, "cut": status.last_epoch}
            for status in found
        ]
        return told + [{"job": "", "state": "unreadable", "fault": str(fault)} for fault in faults]

    def status(self, job: str) -> dict[str, Any]:
        """The status document of a job, with the layout of its graph."""
        found = self._status(job)
        return {**found.to_json(), "layout": layout_of(found)}

    def _status(self, job: str) -> RunStatus:
        told_s, known = self._stored.get(job, (0.0, None))
        jobs = self._jobs()
        if (
            known is not None
            and time.monotonic() - told_s < STORED_S
            and not any(s.job == job for s in jobs.living or ())
        ):
            return known
        found = jobs.one(job)
        if not found.is_live:
            self._stored[job] = time.monotonic(), found
        return found

    def cut(self, job: str, epoch: int) -> dict[str, Any]:
        """What a cut consists of, by the names that can be asked for."""
        contents = self._contents(job, epoch)
        return {"epoch": epoch, "operators": contents.operators, "loops": contents.loops}

    def state(self, job: str, epoch: int, operator: str, search: str) -> dict[str, Any]:
        """The first entries of an operator's state whose key or value contains a text."""
        entries = self._contents(job, epoch).state(operator)
        wanted = (entry for entry in entries if search in (entry.key or "") or search in (entry.value or ""))
        return _listed(wanted, lambda entry: entry._asdict())

    def in_flight(self, job: str, epoch: int, loop: str, search: str) -> dict[str, Any]:
        """The first records in a loop that contain a text, those that have gone round most often first."""
        found = (record for record in self._contents(job, epoch).in_flight(loop) if search in (record.record or ""))
        oldest = sorted(found, key=lambda record: record.rounds or 0, reverse=True)
        return _listed(iter(oldest), lambda record: record._asdict())

    def positions(self, job: str, epoch: int, search: str) -> dict[str, Any]:
        """How far the splits of sources were read."""
        found = self._contents(job, epoch).positions().items()
        wanted = ({"split": split, "position": position} for split, position in found if search in split)
        return _listed(wanted, lambda row: row)

    def transactions(self, job: str, epoch: int, search: str) -> dict[str, Any]:
        """The transactions of sinks that a cut lists."""
        found = self._contents(job, epoch).transactions()
        wanted = ({"task": task, "transaction": name} for task, name in found if search in task or search in name)
        return _listed(wanted, lambda row: row)

    def diff(self, job: str, before: int, epoch: int, search: str) -> dict[str, Any]:
        """What has changed since an earlier cut, a row for each key, position and number that differs."""
        found = diff_of(self._contents(job, before), self._contents(job, epoch))
        rows = (row for row in _differences(found) if any(search in str(cell) for cell in row))
        return _listed(rows, lambda row: dict(zip(("what", "name", "before", "after"), row, strict=True)))

    def _jobs(self) -> Jobs:
        # However many browsers look, the supervisors are asked once.
        with self._lock:
            told_s, living = self._living
            if time.monotonic() - told_s >= LIVING_S:
                living = self._ask_living()
                self._living = time.monotonic(), living
        # The page of a folder shows the runs that keep their cuts there, and those that keep none.
        return Jobs(self._snapshots, self._key, kept_at(self._snapshots, living))

    def _contents(self, job: str, epoch: int) -> CutContents:
        store = self._jobs().store(job)
        return CutContents(store, cut_of(store, epoch))


def _differences(diff: CutDiff) -> Iterator[tuple[str, str, Any, Any]]:
    """What differs, its name, and what it was before and after."""
    for loop, (before, after) in diff.loops.items():
        if before != after:
            yield "records in a loop", loop, before, after
    for split, (before, after) in diff.positions.items():
        yield "position", split, before, after
    for operator, (before, after) in diff.records.items():
        yield "records", operator, before, after
    for state in diff.state:
        if state.other:
            yield "timers and waiting inputs", state.operator, None, f"{state.other} differ"
        if state.unread:
            yield "values that cannot be read", state.operator, None, f"{state.unread} may differ"
        for key, (before, after) in state.keys.items():
            yield f"state of {state.operator}", key, before, after


def _listed(entries: Iterator[Any], told: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """The first entries, and how many there are beyond them."""
    listed = [told(entry) for entry in islice(entries, SHOWN_MAX)]
    return {"entries": listed, "more": sum(1 for _ in entries)}

"""The lineage of cuts across restarts, derived from the chain.

The predecessor of a cut is the previous cut of its attempt; the predecessor of an attempt's first cut is the cut that
the attempt restored. Cuts in between that were not restored are a different branch and contributed nothing. Each
pipeline of a job has a lineage of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from recovery.orders import AttemptStart, Manifest
from recovery.spark.cut_tables.job_folder import Unrecorded
from recovery.spark.report.verdict import Facts, Finding, finding
from recovery.stores.links import Link


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a cut in the lineage: the previous cut and the cut its attempt restored, None if there is none."""

    link: Link
    entry: Manifest
    previous: int | None
    restored: int | None

    @property
    def is_first_of_attempt(self) -> bool:
        """Whether the previous cut is the restored one."""
        return self.previous == self.restored


def places_in(links: Sequence[Link]) -> dict[int, Place]:
    """Epoch -> its place, for every cut in the chain."""
    places: dict[int, Place] = {}
    restored: dict[str | None, int | None] = {}
    previous: dict[str | None, int | None] = {}
    for link in links:
        entry, pipeline = link.entry, link.entry.pipeline
        if isinstance(entry, AttemptStart):
            restored[pipeline] = previous[pipeline] = entry.restored
        else:
            places[entry.epoch] = Place(link, entry, previous.get(pipeline), restored.get(pipeline))
            previous[pipeline] = entry.epoch
    return places


def attempts_in(links: Sequence[Link]) -> list[Facts]:
    """The starts of attempts, in order."""
    starts = (link.entry for link in links if isinstance(link.entry, AttemptStart))
    return [{"attempt": int(start.attempt), "restored": start.restored} for start in starts]


def check_chain(links: Sequence[Link], unrecorded: Sequence[Unrecorded] = ()) -> Iterator[Finding]:
    """Check the chain as a whole: numbers increase, cuts belong to the running attempt of their pipeline, and restored
    cuts exist.

    `unrecorded` are folders that the chain does not mention; they must have been listed before the links were read.
    """
    attempt = 0
    running: dict[str | None, int] = {}
    epochs_of: dict[str | None, list[int]] = {}
    every_epoch: set[int] = set()
    for link in links:
        entry = link.entry
        epochs = epochs_of.setdefault(entry.pipeline, [])
        if isinstance(entry, AttemptStart):
            if link.manifest is not None:
                story = f"entry {link.number} starts attempt {entry.attempt} but names a manifest, {link.manifest.name}"
                yield finding(5, story, None)
            if entry.attempt <= attempt:
                yield finding(8, f"attempt {entry.attempt} began after attempt {attempt}", None)
            if entry.restored is not None and entry.restored not in epochs:
                story = f"attempt {entry.attempt} restored epoch {entry.restored}, which is not a complete cut"
                yield finding(8, story, None)
            attempt = running[entry.pipeline] = entry.attempt
            continue
        if entry.attempt != running.get(entry.pipeline, 0):
            story = (
                f"the cut belongs to attempt {entry.attempt} but attempt {running.get(entry.pipeline, 0)} was running"
            )
            yield finding(5, story, entry.epoch)
        if epochs and entry.epoch <= epochs[-1]:
            yield finding(8, f"epoch {entry.epoch} is recorded after epoch {epochs[-1]}", entry.epoch)
        elif entry.epoch in every_epoch:
            yield finding(8, f"epoch {entry.epoch} is a cut of two pipelines", entry.epoch)
        epochs.append(entry.epoch)
        every_epoch.add(entry.epoch)
    yield from _check_end(unrecorded, links[-1].number if links else 0, attempt)


def _check_end(unrecorded: Sequence[Unrecorded], last: int, attempt: int) -> Iterator[Finding]:
    """Nothing on disk is later than the chain, except a manifest whose entry was not written because of a crash."""
    for one in unrecorded:
        what = f"epoch={one.epoch}/attempt={one.attempt}"
        if one.attempt > attempt:
            story = f"{what} exists but the chain ends with attempt {attempt}: its last entries are missing"
            yield finding(5, story, None)
        elif one.follows is not None and one.follows > last:
            story = (
                f"the manifest in {what} follows entry {one.follows} but the chain ends with entry {last}: its last "
            )
            yield finding(5, story + "entries are missing", None)

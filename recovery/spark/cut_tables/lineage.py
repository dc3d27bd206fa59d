"""The lineage of cuts, read off the chain: which cut comes before which, across restarts.

Before a cut comes the one that its attempt completed last, and before an attempt's first the one that it restored.
What lies between in the chain and was not restored is another branch: nothing of it is in the cut.
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
    """Where a cut stands. `restored` is what its attempt began with; `previous` the cut before it; None: nothing."""

    link: Link
    entry: Manifest
    previous: int | None
    restored: int | None

    @property
    def is_first_of_attempt(self) -> bool:
        """Whether the cut before it is the one that was restored."""
        return self.previous == self.restored


def places_in(links: Sequence[Link]) -> dict[int, Place]:
    """Epoch -> its place, for every cut that the chain records."""
    places: dict[int, Place] = {}
    restored: int | None = None
    previous: int | None = None
    for link in links:
        if isinstance(link.entry, AttemptStart):
            restored = previous = link.entry.restored
        else:
            places[link.entry.epoch] = Place(link, link.entry, previous, restored)
            previous = link.entry.epoch
    return places


def attempts_in(links: Sequence[Link]) -> list[Facts]:
    """The starts of attempts, in their order."""
    starts = (link.entry for link in links if isinstance(link.entry, AttemptStart))
    return [{"attempt": int(start.attempt), "restored": start.restored} for start in starts]


def check_chain(links: Sequence[Link], unrecorded: Sequence[Unrecorded] = ()) -> Iterator[Finding]:
    """The chain as a whole: numbers grow, a cut belongs to the attempt that runs, what is restored is there.

    `unrecorded` was read before the links: what lies in folders of which the chain knows nothing.
    """
    attempt = 0
    epochs: list[int] = []
    for link in links:
        entry = link.entry
        if isinstance(entry, AttemptStart):
            if link.manifest is not None:
                story = f"entry {link.number} starts attempt {entry.attempt} and names a manifest, {link.manifest.name}"
                yield finding(5, story, None)
            if entry.attempt <= attempt:
                yield finding(8, f"attempt {entry.attempt} began after attempt {attempt}", None)
            if entry.restored is not None and entry.restored not in epochs:
                yield finding(8, f"attempt {entry.attempt} restored epoch {entry.restored}, no complete cut", None)
            attempt = entry.attempt
            continue
        if entry.attempt != attempt:
            yield finding(5, f"the cut is of attempt {entry.attempt}, and attempt {attempt} was running", entry.epoch)
        if epochs and entry.epoch <= epochs[-1]:
            yield finding(8, f"epoch {entry.epoch} is recorded after epoch {epochs[-1]}", entry.epoch)
        epochs.append(entry.epoch)
    yield from _check_end(unrecorded, links[-1].number if links else 0, attempt)


def _check_end(unrecorded: Sequence[Unrecorded], last: int, attempt: int) -> Iterator[Finding]:
    """Nothing on disk is later than the chain. A manifest that follows its last entry was left by a death."""
    for one in unrecorded:
        what = f"epoch={one.epoch}/attempt={one.attempt}"
        if one.attempt > attempt:
            story = f"{what} is there, and attempt {attempt} is the last in the chain: its last entries are missing"
            yield finding(5, story, None)
        elif one.follows is not None and one.follows > last:
            story = (
                f"the manifest in {what} follows entry {one.follows}, and the chain ends with entry {last}: its last "
            )
            yield finding(5, story + "entries are missing", None)

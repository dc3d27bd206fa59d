"""The lineage of cuts across restarts, derived from the chain.

The predecessor of a cut is the previous cut of its attempt; the predecessor of an attempt's first cut is the cut that
the attempt restored. Cuts in between that were not restored are a different branch and contributed nothing. Each
pipeline of a job has a lineage of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from backedge.recovery.protocol.chain_view import run_of
from backedge.recovery.protocol.orders import AttemptStart, Manifest
from backedge.recovery.spark.cut_tables.job_folder import Unrecorded
from backedge.recovery.spark.report.verdict import Facts, Finding, finding
from backedge.recovery.stores.links import Link


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a cut in the lineage: the previous cut and the cut its attempt restored, None if there is none.

    `bases` are the earlier cuts of its attempt, and the restored one; None if the chain was shortened among them.
    """

    link: Link
    entry: Manifest
    previous: int | None
    restored: int | None
    bases: frozenset[int] | None


def places_in(links: Sequence[Link]) -> dict[int, Place]:
    """Epoch -> its place, for every cut in the chain."""
    places: dict[int, Place] = {}
    restored: dict[str | None, int | None] = {}
    previous: dict[str | None, int | None] = {}
    bases: dict[str | None, frozenset[int]] = {}
    for link, is_next in _with_gaps(links):
        entry, pipeline = link.entry, link.entry.pipeline
        if not is_next:
            bases = {}
        if isinstance(entry, AttemptStart):
            restored[pipeline] = previous[pipeline] = entry.restored
            bases[pipeline] = frozenset(() if entry.restored is None else (entry.restored,))
        else:
            earlier = bases.get(pipeline)
            places[entry.epoch] = Place(link, entry, previous.get(pipeline), restored.get(pipeline), earlier)
            previous[pipeline] = entry.epoch
            if earlier is not None:
                bases[pipeline] = earlier | {entry.epoch}
    return places


def _with_gaps(links: Sequence[Link]) -> Iterator[tuple[Link, bool]]:
    """The links, each with whether it follows the one before it: of the first of a long chain only some are kept."""
    last = 0
    for link in links:
        yield link, link.number == last + 1
        last = link.number


def attempts_in(links: Sequence[Link]) -> list[Facts]:
    """The starts of attempts, in order; of a long chain, those that are still there."""
    starts = (link.entry for link in links if isinstance(link.entry, AttemptStart))
    return [{"attempt": int(start.attempt), "restored": start.restored} for start in starts]


def check_chain(links: Sequence[Link], unrecorded: Sequence[Unrecorded] = ()) -> Iterator[Finding]:
    """Check the chain as a whole: numbers increase, cuts belong to the running attempt of their pipeline, and restored
    cuts exist.

    `unrecorded` are folders that the chain does not mention; they must have been listed before the links were read.
    The first entries of a long chain may be gone, with the cuts that attempts restored.
    """
    attempt = 0
    is_whole = True
    running: dict[str | None, int] = {}
    epochs_of: dict[str | None, list[int]] = {}
    every_epoch: set[int] = set()
    lines: dict[str | None, _Line] = {}
    for link, is_next in _with_gaps(links):
        entry = link.entry
        is_whole &= is_next
        lines = lines if is_next else {}
        line = lines.get(entry.pipeline)
        lines[entry.pipeline] = _Line.after(line, entry)
        epochs = epochs_of.setdefault(entry.pipeline, [])
        if isinstance(entry, AttemptStart):
            if link.manifest is not None:
                story = f"entry {link.number} starts attempt {entry.attempt} but names a manifest, {link.manifest.name}"
                yield finding(5, story, None)
            if entry.attempt <= attempt:
                yield finding(8, f"attempt {entry.attempt} began after attempt {attempt}", None)
            if is_whole and entry.restored is not None and entry.restored not in epochs:
                story = f"attempt {entry.attempt} restored epoch {entry.restored}, which is not a complete cut"
                yield finding(8, story, None)
            if line is not None and not line.may_restore(entry):
                story = f"attempt {entry.attempt} restored epoch {entry.restored}, but its job had come to epoch "
                yield finding(8, f"{story}{line.reached}", None)
            attempt = running[entry.pipeline] = entry.attempt
            continue
        for given_up in entry.given_up:
            lines.pop(given_up, None)  # it may begin from the beginning
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


@dataclass(frozen=True, slots=True)
class _Line:
    """Where a pipeline has come to: the run, the cut that it names, and the one that it named when that run began.

    `is_known`: the beginning of the run is among the links, or a cut of it.
    """

    run: str
    reached: int | None
    came_from: int | None
    is_known: bool

    @staticmethod
    def after(line: _Line | None, entry: AttemptStart | Manifest) -> _Line:
        run = run_of(entry.claimant)
        if isinstance(entry, Manifest):
            return _Line(run, entry.epoch, entry.epoch, is_known=True)
        if line is None:
            return _Line(run, entry.restored, None, is_known=False)
        if not run or run != line.run:
            return _Line(run, entry.restored, line.reached, is_known=True)
        return replace(line, reached=entry.restored)

    def may_restore(self, start: AttemptStart) -> bool:
        """A new run may choose a cut. If it cannot restore that, the chain names again the one that it named before."""
        run = run_of(start.claimant)
        chooses = start.restored is not None and (not run or run != self.run)
        return not self.is_known or chooses or start.restored in (self.reached, self.came_from)


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

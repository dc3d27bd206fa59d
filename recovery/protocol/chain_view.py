"""What the chain of a job says to a supervisor of one of its pipelines.

The chain is a numbered list in the store: starts of attempts and manifests. Of the first ones, those that are no longer
`needed` may be missing. The rules that supervisors follow are in `supervisor.py`. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, Protocol, TypeVar

from backedge.graphs.ids import Attempt, Epoch, prepared_by
from backedge.recovery.protocol.orders import AttemptStart, Entry, FileId, Manifest, Numbered
from backedge.recovery.protocol.pipelines import THE_JOB, Pipeline
from backedge.recovery.protocol.requests import Sizes
from backedge.recovery.protocol.state_files import StateLists


def claimant_of(run: str, own: str) -> str:
    """The claimant of a supervisor, from the number of its run and its own.

    >>> claimant_of("4f", "09"), run_of("4f.09")
    ('4f.09', '4f')
    """
    return f"{run}.{own}"


def run_of(claimant: str) -> str:
    """The run that a supervisor belongs to; empty for one that shares its run with no other."""
    return claimant.rpartition(".")[0]


class InChain(Protocol):
    """An entry at its place in the chain."""

    @property
    def number(self) -> int: ...

    @property
    def entry(self) -> Entry: ...


L = TypeVar("L", bound=InChain)


class Claim(Enum):
    """Whose entries the chain holds, of the job or of one pipeline."""

    NONE = "none of this run"
    PREDECESSOR = "those of a predecessor"
    OWN = "those of this supervisor"
    LOST = "those of another run or of a successor behind them"


CLAIMS: Mapping[Claim, tuple[Claim, Claim, Claim]] = {
    Claim.NONE: (Claim.OWN, Claim.PREDECESSOR, Claim.NONE),
    Claim.PREDECESSOR: (Claim.OWN, Claim.PREDECESSOR, Claim.LOST),
    Claim.OWN: (Claim.OWN, Claim.LOST, Claim.LOST),
    Claim.LOST: (Claim.LOST, Claim.LOST, Claim.LOST),
}
"""What a claim becomes by an entry of this supervisor, by one of its run, and by one of another run.

A run that begins has not had the job: what others append before its first claim does not fence it.
"""


class KeptCut(NamedTuple):
    """A complete cut that the chain keeps: its attempt, the transactions that it lists, and the files that it needs.

    `states` are the files that make up the keyed state of each task.
    """

    attempt: Attempt
    transactions: frozenset[str]
    is_savepoint: bool
    files: frozenset[FileId]
    states: StateLists


class ChainView:
    """What the entries that were read say. `claimant` and `pipeline` are those of the reader.

    - begun: the numbers of tasks that the options of the reader's run give it.
    - entries: the number of the last entry that was read. highest: the highest attempt.
    - others: the attempts of other pipelines, each with its pipeline.
    - given_up: the pipelines that were given up and have not begun again.
    - next_epoch: above all epochs of the job.
    - claim: whose entries the chain holds. claim_of_pipeline: the same of this pipeline alone.
    - kept: the cuts of the pipeline that can be restored, in the order in which they were taken. last_cut: the latest.
    - continues_from: the cut that the last entry of the pipeline names.
    - replaces: the cut after which the chain says that output is removed, as long as that may be unfinished.
    - sizes: the numbers of tasks of the next attempt, if the run was rescaled; the supervisor may change them. The
      claim has them and `begun`, for successors and for later runs that begin with the same numbers. sizes_of_cut:
      those of the attempt that took the latest cut.
    """

    def __init__(self, claimant: str, pipeline: Pipeline = THE_JOB, begun: Sizes = ()) -> None:
        self.claimant = claimant
        self.pipeline = pipeline
        self.begun = begun
        self.entries = 0
        self.highest = Attempt(0)
        self.others: dict[Attempt, str | None] = {}
        self.given_up: set[str | None] = set()
        self.next_epoch = Epoch(1)
        self.claim = Claim.NONE
        self.claim_of_pipeline = Claim.NONE
        self.kept: dict[Epoch, KeptCut] = {}
        self.last_cut: Epoch | None = None
        self.continues_from: Epoch | None = None
        self.replaces: Epoch | None = None
        self.sizes: Sizes = ()
        self.sizes_of_cut: Sizes = ()

    def learn(self, number: int, entry: Entry) -> None:
        """Read the next entry."""
        self.entries = number
        self.highest = max(self.highest, entry.attempt)
        self.claim = self._claim_after(self.claim, entry)
        if isinstance(entry, Manifest):
            self.next_epoch = Epoch(max(self.next_epoch, entry.epoch + 1))
            self.given_up.update(entry.given_up)
            self.others = {attempt: name for attempt, name in self.others.items() if name not in entry.given_up}
            if self.pipeline.name in entry.given_up:
                self._forget()
        self.given_up.discard(entry.pipeline)
        if not self.is_own(entry):
            self.others[entry.attempt] = entry.pipeline
            return
        self.claim_of_pipeline = self._claim_after(self.claim_of_pipeline, entry)
        if isinstance(entry, AttemptStart):
            self._learn_start(entry)
        else:
            self._learn_cut(entry)

    def _learn_start(self, start: AttemptStart) -> None:
        self.continues_from = start.restored
        self.replaces = start.replaces
        if self.replaces is not None:
            self.kept = {epoch: cut for epoch, cut in self.kept.items() if epoch <= self.replaces}
            self.last_cut, self.sizes_of_cut = self.replaces, ()
        is_same = self.is_of_this_run(start) or start.begun == self.begun
        self.sizes = start.sizes if is_same else ()

    def _learn_cut(self, cut: Manifest) -> None:
        self.continues_from = self.last_cut = cut.epoch
        self.sizes_of_cut = self.sizes
        self.replaces = None
        transactions = frozenset(name for names in cut.transactions.values() for name in names)
        self.kept[cut.epoch] = KeptCut(cut.attempt, transactions, cut.savepoint is not None, cut.named, cut.states)
        if cut.kept is not None:
            kept = frozenset(cut.kept)
            self.kept = {epoch: each for epoch, each in self.kept.items() if epoch in kept}

    def _forget(self) -> None:
        """This pipeline begins from the beginning: what it had was given up."""
        self.continues_from = self.last_cut = self.replaces = None
        self.kept, self.sizes, self.sizes_of_cut = {}, (), ()

    # -- whose entries -------------------------------------------------------------------------------------------

    def is_own(self, entry: Entry) -> bool:
        """Whether an entry is of this pipeline."""
        return entry.pipeline == self.pipeline.name

    def is_of_this_run(self, entry: Entry) -> bool:
        """Whether this supervisor or another one of its run has created an entry."""
        run = run_of(self.claimant)
        return entry.claimant == self.claimant or (run != "" and run_of(entry.claimant) == run)

    def _claim_after(self, claim: Claim, entry: Entry) -> Claim:
        by_own, by_run, by_another = CLAIMS[claim]
        if entry.claimant == self.claimant:
            return by_own
        return by_run if self.is_of_this_run(entry) else by_another

    def unread(self, chain: Sequence[Numbered]) -> list[Numbered]:
        return [numbered for numbered in chain if numbered.number > self.entries]

    def lost_with(self, chain: Sequence[Numbered]) -> int | None:
        """The entry with which another supervisor took the job over; None if this one still has it, or never had it."""
        claim = self.claim
        for number, entry in self.unread(chain):
            if (claim := self._claim_after(claim, entry)) is Claim.LOST:
                return number
        return None

    # -- the cuts ------------------------------------------------------------------------------------------------

    @property
    def cuts(self) -> list[Epoch]:
        """The cuts that can be restored, in the order in which they were taken."""
        return list(self.kept)

    @property
    def first_cut(self) -> Epoch | None:
        """The lowest number of a cut that can be restored."""
        return min(self.kept, default=None)

    def listed_by(self, epoch: Epoch | None) -> frozenset[str]:
        """The transactions that a cut lists; none if it is not kept."""
        cut = None if epoch is None else self.kept.get(epoch)
        return frozenset() if cut is None else cut.transactions

    def published_before(self, restored: Epoch | None) -> dict[str, list[str]]:
        """What is published before a run goes on from this cut: the transactions of the latest one, by their sinks."""
        found: dict[str, list[str]] = {}
        for name in self.listed_by(self.last_cut) if restored != self.last_cut else ():
            found.setdefault(prepared_by(name)[0], []).append(name)
        return found


def read_pipelines(chain: Sequence[Numbered]) -> dict[str | None, ChainView]:
    """What the chain says to a reader of each of its pipelines."""
    views = {name: ChainView("", Pipeline(name)) for name in dict.fromkeys(entry.pipeline for _, entry in chain)}
    for view in views.values():
        for number, entry in chain:
            view.learn(number, entry)
    return views


# -- a long chain ------------------------------------------------------------------------------------------------


def needed(gone: Sequence[L], rest: Iterable[InChain], there: Collection[Epoch]) -> tuple[L, ...]:
    """The links among the first ones that are still needed, if these cuts exist. However often a job was restarted:

    - the cuts that exist, each with the link of its pipeline before it; the last link of each pipeline, because the
      rest follows it; and the last one that gives a pipeline up;
    - the starts of the attempts of all these, and of those whose files the cuts name: what another pipeline has written
      is not removed;
    - the starts that restored a cut that exists: inputs that are kept may follow it;
    - the last start of each supervisor: one that wakes up when its successor has the job finds that out, even if it
      never heard that its own claim is in the chain, and so does a run that has lost the job.
    """
    links = {gone[-1].number: gone[-1]} if gone else {}
    last: dict[str | None, L] = {}
    gives_up: dict[str, L] = {}
    starts: dict[str, L] = {}
    for link in gone:
        entry = link.entry
        before = last.get(entry.pipeline, link)
        last[entry.pipeline] = link
        if isinstance(entry, AttemptStart):
            starts[entry.claimant] = link
            if entry.restored in there:
                links[link.number] = link
        else:
            gives_up |= dict.fromkeys(entry.given_up, link)
            if entry.epoch in there:
                links |= {before.number: before, link.number: link}
    links |= {link.number: link for link in (*last.values(), *gives_up.values(), *starts.values())}
    attempts = {link.entry.attempt for link in links.values()}
    existing = (link.entry for link in (*gone, *rest) if isinstance(link.entry, Manifest) and link.entry.epoch in there)
    attempts |= {file.attempt for cut in existing for file in cut.named}
    return tuple(
        link
        for link in gone
        if link.number in links or (isinstance(link.entry, AttemptStart) and link.entry.attempt in attempts)
    )

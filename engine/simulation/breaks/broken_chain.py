"""The chain of a job: claims, entries that may exist, and removals (rule 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import asdict, astuple, replace

from backedge.engine.io.later_output import LaterOutput
from backedge.engine.run.driver import RunDriver
from backedge.engine.simulation.breaks.break_parts import Break
from backedge.graphs.ids import Attempt, Epoch, prepared_by, turn_in
from backedge.recovery.protocol.chain_view import ChainView
from backedge.recovery.protocol.orders import (
    Abort,
    AppendEntry,
    AttemptStart,
    Entry,
    FailAttempt,
    Fenced,
    Manifest,
    Numbered,
    Order,
    ReplaceOutput,
    RestoreTasks,
    Sweep,
)
from backedge.recovery.protocol.requests import Request
from backedge.recovery.protocol.supervisor import Stage, Supervisor
from backedge.recovery.stores.store_errors import OutcomeUnknownError


class _BoldSweep(Sweep, frozen=True):
    def _is_earlier(self, attempt: Attempt) -> bool:
        return True


class SupersededRunRemoves(Supervisor):
    """Removes everything that it does not know, even of later attempts."""

    def sweep(self, *, is_over: bool = False) -> Sweep:
        return _BoldSweep(**asdict(super().sweep(is_over=is_over)))


class UnknownEntryGivenUp(Supervisor):
    """Assumes that an entry whose reply was lost was not created."""

    def on_unknown(self, append: AppendEntry) -> list[Order]:
        entry = append.entry
        if not isinstance(entry, Manifest):
            return super().on_unknown(append)
        return [*(Abort(task, entry.epoch, entry.mode) for task in entry.files), FailAttempt("the reply was lost")]


class OwnEntryTakenForAnothers(Supervisor):
    """Is fenced by any entry that has the number it wanted."""

    def on_taken(self, append: AppendEntry, chain: Sequence[Numbered]) -> list[Order]:
        return super().on_taken(append, chain) if not self.restarts.count else [Fenced(append.number)]


class GoesOnFromTheLatestCut(Supervisor):
    """Forgets the request for an older cut when an attempt fails."""

    def _claim(self, chain: Sequence[Numbered]) -> list[Order]:
        is_asked = self.asked is not None and self.asked.epoch is not None
        orders = super()._claim(chain)
        if is_asked or not self.chain.cuts:
            return orders
        self.restored_from = self.chain.cuts[-1]
        return self.append(AttemptStart(self.attempt, self.restored_from))


class RetentionOutsideTheChain(Supervisor):
    """Drops cuts without recording it in the chain, so that others still restore them."""

    def append(self, entry: Entry) -> list[Order]:
        return super().append(replace(entry, kept=None) if isinstance(entry, Manifest) else entry)


class GoingBackDropsOutput(Supervisor):
    """Publishes no output of the latest cut when it goes back to an older one."""

    def on_appended(self, entry: Entry, now_ms: int = 0) -> list[Order]:
        orders = super().on_appended(entry, now_ms)
        return [order._replace(unpublished=()) if isinstance(order, RestoreTasks) else order for order in orders]


class ClaimsInVainCount(Supervisor):
    """Leaves the chain as it is when no task has run under its claim."""

    def hand_back(self) -> list[Order]:
        return []


class ReplacesOutputOnce(Supervisor):
    """Leaves it to the first attempt to remove the output after the cut that a run goes back to."""

    def on_appended(self, entry: Entry, now_ms: int = 0) -> list[Order]:
        was_wanted = self.asked is not None and self.asked.replaces_output
        orders = super().on_appended(entry, now_ms)
        return [order for order in orders if was_wanted or not isinstance(order, ReplaceOutput)]


class _ReplacedCutsKept(ChainView):
    def _learn_start(self, start: AttemptStart) -> None:
        kept, last_cut = self.kept, self.last_cut
        super()._learn_start(start)
        if start.replaces is not None:
            self.kept, self.last_cut = kept, last_cut


class ReplacedCutsRestorable(Supervisor):
    """Keeps the cuts whose output it removes."""

    chain_class = _ReplacedCutsKept


class _EndedInTheCut(LaterOutput, frozen=True):
    def removes(self, transaction: str) -> bool:
        turn = turn_in(transaction)
        if turn is None or turn.epoch > 0 or turn.attempt >= self.taken_by:
            return super().removes(transaction)
        return prepared_by(transaction) not in self.ended


class OutputOfFormerTasksReplaced(RunDriver):
    """Takes the output of tasks that ended before a rescale for later than a cut that does not have these tasks."""

    def _replace(self, order: ReplaceOutput) -> Sequence[Order]:
        try:
            later = LaterOutput.than(self.ports.store.manifest(order.after), order.attempt, order.others)
            self.ports.output.replace(_EndedInTheCut(*astuple(later)))
        except OSError as error:
            return [FailAttempt(str(error))]
        return ()


class LaterErrorSettlesUnknown(RunDriver):
    """Takes the error of a repetition for the answer, though the first try may still take effect."""

    def _on_create_error(self, append: AppendEntry, error: OSError) -> None:
        if not isinstance(error, OutcomeUnknownError):
            self.is_unknown = False
        super()._on_create_error(append, error)


class ActsWithoutAClaim(RunDriver):
    """Has the actors restored without an entry that says so: two supervisors may both do that."""

    def _append(self, append: AppendEntry) -> None:
        if isinstance(append.entry, AttemptStart) and append.number > 1:
            self.obey(self.supervisor.on_appended(append.entry))
        else:
            super()._append(append)


class _NeverLost(ChainView):
    def lost_with(self, chain: Sequence[Numbered]) -> int | None:
        return None


class WokenSupervisorGoesOn(Supervisor):
    """Gives its entries the next free numbers, whoever has taken the ones that it wanted."""

    chain_class = _NeverLost


class ClaimsFromAnOldChain(RunDriver):
    """Claims again and again from what it has read of the chain at first."""

    def _chain(self) -> Sequence[Numbered]:
        old: Sequence[Numbered] | None = getattr(self, "old_chain", None)
        self.old_chain = super()._chain() if old is None else old
        return self.old_chain


class RescaleRestoresAnOlderCut(Supervisor):
    """Begins the attempt of a rescale with the cut before the one that was taken for it."""

    def on_rescale(self, chain: Sequence[Numbered]) -> list[Order]:
        orders = super().on_rescale(chain)
        if len(self.chain.cuts) < 2:
            return orders
        self.restored_from = self.chain.cuts[-2]
        return self.append(AttemptStart(self.attempt, self.restored_from, sizes=self.chain.sizes))


class RescaleWithinTheAttempt(Supervisor):
    """Gives the new tasks the number of the attempt that was left, so that nothing fences the old ones."""

    def on_rescale(self, chain: Sequence[Numbered]) -> list[Order]:
        self.chain.sizes = () if self.rescaling is None else self.rescaling.sizes
        self.stage, self.restored_from = Stage.RESTORING, self.chain.last_cut
        return [RestoreTasks(self.attempt, self.chain.last_cut)]


class RescaleUndoesAnother(Supervisor):
    """Gives operators that a rescale does not name the tasks that they had before any rescale."""

    def rescale(self, request: Request, epoch: Epoch, parallelism: Mapping[str, int]) -> list[Order]:
        self.first: Mapping[str, int] = getattr(self, "first", parallelism)
        return super().rescale(request, epoch, self.first)


class RefusedRescaleGoesOn(Supervisor):
    """Refuses a rescale whose tasks cannot be restored, and tries again with these tasks."""

    def gives_up_rescale(self, error: str) -> bool:
        sizes = self.chain.sizes
        is_given_up = super().gives_up_rescale(error)
        self.chain.sizes = sizes
        return is_given_up


CHAIN = {
    "superseded-run-removes": Break(
        "a run that lost the job removes files of its successor", supervisor=SupersededRunRemoves
    ),
    "unknown-entry-given-up": Break("an epoch is aborted although its entry may exist", supervisor=UnknownEntryGivenUp),
    "own-entry-taken-for-anothers": Break("a run is fenced by its own entry", supervisor=OwnEntryTakenForAnothers),
    "goes-on-from-the-latest-cut": Break("a run forgets that it went back", supervisor=GoesOnFromTheLatestCut),
    "retention-outside-the-chain": Break(
        "cuts are dropped that others may restore", supervisor=RetentionOutsideTheChain
    ),
    "going-back-drops-output": Break(
        "output of a complete cut is dropped by a run that goes back", supervisor=GoingBackDropsOutput
    ),
    "claims-in-vain-count": Break(
        "a run that went back and failed before a task ran changes which cut is the latest",
        supervisor=ClaimsInVainCount,
        go_backs=8,
    ),
    "replaces-output-once": Break(
        "an attempt that fails while it removes output is not repeated", supervisor=ReplacesOutputOnce, go_backs=8
    ),
    "replaced-cuts-restorable": Break(
        "cuts whose output was removed are restored", supervisor=ReplacedCutsRestorable, go_backs=8
    ),
    "output-of-former-tasks-replaced": Break(
        "output of tasks that ended before a rescale is removed by a run that goes back to a cut after it",
        run_driver=OutputOfFormerTasksReplaced,
        topology="pipelines",
        go_backs=8,
    ),
    "later-error-settles-unknown": Break(
        "an entry that may exist is given up when its repetition fails", run_driver=LaterErrorSettlesUnknown
    ),
    "acts-without-a-claim": Break(
        "two supervisors: a successor acts before it has claimed the job", run_driver=ActsWithoutAClaim
    ),
    "woken-supervisor-goes-on": Break(
        "two supervisors: one that slept through a takeover goes on", supervisor=WokenSupervisorGoesOn
    ),
    "rescale-restores-an-older-cut": Break(
        "a rescale begins with the cut before the one taken for it", supervisor=RescaleRestoresAnOlderCut, rescales=2
    ),
    "rescale-within-the-attempt": Break(
        "the tasks from before a rescale go on, and nothing fences them", supervisor=RescaleWithinTheAttempt, rescales=2
    ),
    "rescale-undoes-another": Break(
        "operators that a rescale does not name go back to the tasks that they had before another rescale",
        supervisor=RescaleUndoesAnother,
        rescales=2,
    ),
    "refused-rescale-goes-on": Break(
        "a rescale is refused, and the run has its tasks nevertheless", supervisor=RefusedRescaleGoesOn, rescales=2
    ),
    "claims-from-an-old-chain": Break(
        "a claim that is repeated does not read the chain again", run_driver=ClaimsFromAnOldChain
    ),
}

"""Pipelines of a job that are not independent (rule 15)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from backedge.engine.simulation.breaks.break_parts import Break
from backedge.engine.simulation.world.simulated_store import ManifestName, SimulatedStore
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.chain_view import ChainView
from backedge.recovery.protocol.orders import AppendEntry, Entry, Fenced, Manifest, Numbered, Order, Sweep
from backedge.recovery.protocol.supervisor import Supervisor


class _TakesAllCuts(ChainView):
    def is_own(self, entry: Entry) -> bool:
        return isinstance(entry, Manifest) or super().is_own(entry)


class PipelineSharesACompletion(Supervisor):
    """Takes the cut of any pipeline for its own."""

    chain_class = _TakesAllCuts


class PipelineFencesAnother(Supervisor):
    """Is fenced by an entry of another pipeline of its run."""

    def on_taken(self, append: AppendEntry, chain: Sequence[Numbered]) -> list[Order]:
        is_others = any(number == append.number and not self.chain.is_own(entry) for number, entry in chain)
        return [Fenced(append.number)] if is_others else super().on_taken(append, chain)


class PipelineSweepsAnother(Supervisor):
    """Removes what earlier attempts have left behind, whichever pipeline they are of."""

    def sweep(self, *, is_over: bool = False) -> Sweep:
        return replace(super().sweep(is_over=is_over), others=frozenset())


class PipelinesCountAttemptsApart(Supervisor):
    """Numbers its attempts without regard to those of the other pipelines."""

    def _claim(self, chain: Sequence[Numbered]) -> list[Order]:
        own = [Numbered(number, entry) for number, entry in chain if self.chain.is_own(entry)]
        orders = super()._claim(chain)
        attempt = Attempt(max((entry.attempt for _, entry in own), default=0) + 1)
        if orders and isinstance(orders[0], AppendEntry):
            self.attempt = attempt
            return [orders[0]._replace(entry=replace(orders[0].entry, attempt=attempt))]
        return orders


class _ForgetsNothing(ChainView):
    def _forget(self) -> None:
        """Keeps everything."""


class GivenUpPipelineContinues(Supervisor):
    """Goes on from the cuts of a pipeline although a run has dropped it."""

    chain_class = _ForgetsNothing


class _StoreThatUsesANameAgain(SimulatedStore):
    def name_of_manifest(self, number: int, manifest: Manifest) -> ManifestName:
        return super().name_of_manifest(0, manifest)


PIPELINES = {
    "given-up-pipeline-continues": Break(
        "the state of a pipeline that was dropped comes back with its operators",
        supervisor=GivenUpPipelineContinues,
        of_pipelines=True,
    ),
    "pipeline-shares-a-completion": Break(
        "a cut of one pipeline counts for another", supervisor=PipelineSharesACompletion, of_pipelines=True
    ),
    "pipeline-fences-another": Break(
        "an entry of another pipeline is taken for one of another run",
        supervisor=PipelineFencesAnother,
        of_pipelines=True,
    ),
    "pipeline-sweeps-another": Break(
        "a restart removes files of the pipelines that go on", supervisor=PipelineSweepsAnother, of_pipelines=True
    ),
    "manifest-without-its-number": Break(
        "the manifests of two entries have the same name", store=_StoreThatUsesANameAgain, of_pipelines=True
    ),
    "pipelines-count-attempts-apart": Break(
        "two pipelines use the same number of an attempt", supervisor=PipelinesCountAttemptsApart, of_pipelines=True
    ),
}

"""What the store of a job knows about its runs, as the same document that a living supervisor hands out.

The chain says what is certain: attempts, cuts, and whether the job has finished. The status that the last supervisor
has kept adds figures, epochs that were given up, and failures; where the chain says something else, the chain counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from backedge.graphs.describing import edges_in
from backedge.graphs.ids import Epoch
from backedge.graphs.plan import Edge, operators_round
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.run_status import (
    REMEMBERED_MAX,
    ChannelStatus,
    EpochStatus,
    LoopLog,
    LoopStatus,
    OperatorStatus,
    RunStatus,
    TaskStatus,
)
from backedge.recovery.stores.store_errors import StoreError

UNFINISHED = "unfinished"


def stored_status(store: CutStore, now_s: float) -> RunStatus:
    """What the store knows; `now_s` is the time of day. Raises if the chain of the job cannot be read."""
    chain = store.chain()
    cuts = [entry for entry in chain if isinstance(entry, Manifest)]
    there = store.existing()
    last = [store.manifest_of(epoch) for epoch in {entry.pipeline: entry.epoch for entry in there}.values()]
    kept, fault = _kept(store)
    attempt = max((entry.attempt for entry in chain), default=0)
    if kept is None or kept.attempt > attempt:
        kept = RunStatus(store.job, "", UNFINISHED, False, now_s, None, store.root, 0, None, 0)
    status = replace(
        kept,
        state=_state(kept, attempt, last),
        is_live=False,
        snapshots=store.root,
        attempt=attempt,
        last_epoch=cuts[-1].epoch if cuts else None,
        cuts=max(kept.cuts, len(cuts)),
        epochs=_epochs(store, kept, cuts, {entry.epoch for entry in there}),
        reason=kept.reason or fault,
    )
    if not status.operators:
        return _with_graphs(status, store, last)
    return replace(status, operators=tuple(map(_at_rest, status.operators))) if status.is_over else status


def _at_rest(operator: OperatorStatus) -> OperatorStatus:
    """An operator of a run that has ended: what its tasks did in their last second is no present pace."""
    tasks = (replace(task, in_per_s=None, out_per_s=None, busy=None, held=None) for task in operator.tasks)
    return replace(operator, tasks=tuple(tasks))


def _kept(store: CutStore) -> tuple[RunStatus | None, str]:
    """What was kept, and why it cannot be read."""
    try:
        return store.kept_status(), ""
    except StoreError as error:
        return None, str(error)


def _state(kept: RunStatus, attempt: int, last: Sequence[CutDescription]) -> str:
    if kept.is_over and kept.attempt == attempt:
        return kept.state
    if last and all(task.ended for cut in last for task in cut.tasks.values()):
        return "finished"
    return UNFINISHED


def _epochs(store: CutStore, kept: RunStatus, cuts: Sequence[Manifest], there: set[Epoch]) -> tuple[EpochStatus, ...]:
    """The last epochs that were kept or are in the chain, and the cuts that exist. What is not in the chain has not
    become a cut.
    """
    known = {told.epoch: told for told in kept.epochs}
    complete = {entry.epoch for entry in cuts}
    for entry in cuts:
        told = known.get(entry.epoch)
        if told is None or told.state != "complete" or told.attempt != entry.attempt:
            told = EpochStatus(entry.epoch, entry.attempt, entry.mode.value, "complete", savepoint=entry.savepoint)
            if entry.epoch in there:
                cut = store.manifest_of(entry.epoch)
                told = replace(
                    told,
                    complete_s=store.written_s(entry),
                    written_bytes=sum(file.size for task in cut.tasks.values() for file in task.files),
                    loops={loop: LoopLog(log.batches, log.size, log.records) for loop, log in cut.logs.items()},
                )
        known[entry.epoch] = replace(told, is_kept=entry.epoch in there)
    for epoch in known.keys() - complete:
        if known[epoch].state == "open":
            known[epoch] = replace(known[epoch], state="given up", reason="the run ended before it was complete")
    last = set(sorted(known)[-REMEMBERED_MAX:]) | (known.keys() & there)
    return tuple(known[epoch] for epoch in sorted(last))


def _with_graphs(status: RunStatus, store: CutStore, cuts: Sequence[CutDescription]) -> RunStatus:
    for cut in cuts:
        status = _with_graph(status, store, cut)
    return status


def _with_graph(status: RunStatus, store: CutStore, cut: CutDescription) -> RunStatus:
    """Add the tasks and loops of a cut, where no figures were kept."""
    description = store.graph(cut.graph_hash)
    edges = edges_in(description)
    order = [operator["name"] for operator in description["operators"]]
    place = {name: number for number, name in enumerate(order)}
    sources = {operator["name"] for operator in description["operators"] if operator["source"]}
    sinks = {operator["name"] for operator in description["operators"] if operator["sink"]}
    chains: dict[str, list[TaskStatus]] = {}
    members: dict[str, tuple[str, ...]] = {}
    for task, files in cut.tasks.items():
        read = sum(facts.records for facts in files.operators)
        members[task.name] = tuple(facts.name for facts in files.operators)
        chains.setdefault(task.name, []).append(TaskStatus(task.index, "", records_in=read))
    return replace(
        status,
        operators=status.operators
        + tuple(
            OperatorStatus(
                name,
                members[name],
                is_source=not sources.isdisjoint(members[name]),
                is_sink=not sinks.isdisjoint(members[name]),
                tasks=tuple(sorted(tasks, key=lambda task: task.index)),
            )
            for name, tasks in sorted(chains.items(), key=lambda chain: place.get(chain[0], len(place)))
        ),
        channels=status.channels + _channels(edges, cut),
        loops=status.loops
        + tuple(
            LoopStatus(loop, tuple(name for name in order if name in operators_round(loop, edges)))
            for loop in dict.fromkeys(edge.loop for edge in edges if edge.loop is not None)
        ),
    )


def _channels(edges: Sequence[Edge], cut: CutDescription) -> tuple[ChannelStatus, ...]:
    loops = {edge.name: edge.loop for edge in edges}
    return tuple(
        ChannelStatus(edge, str(sender), str(receiver), loops.get(edge))
        for files in cut.tasks.values()
        for edge, sender, receiver, is_restored in (end.channel for end in files.ends if end.direction == "in")
        if not is_restored
    )

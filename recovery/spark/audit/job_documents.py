"""Reads the documents of a job (chain, manifests, graphs) and checks them before any data file is opened.

A manifest with a valid seal but malformed content is a finding about its cut, and nothing else of that cut is checked.
If the chain itself is malformed, there is nothing to audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from backedge.recovery.spark.audit.manifest_checks import (
    CutDocuments,
    bases_of,
    check_back_edges,
    check_completeness,
    check_lists,
    check_splits,
)
from backedge.recovery.spark.cut_tables.job_folder import Epochs, JobFolder, MalformedDocumentError, Unrecorded
from backedge.recovery.spark.cut_tables.lineage import Place, attempts_in, check_chain, places_in
from backedge.recovery.spark.cut_tables.manifest_tables import files_in
from backedge.recovery.spark.report.audit_result import Found, conclude_cut, conclude_malformed
from backedge.recovery.spark.report.verdict import CutVerdict, Finding, Verdict, finding
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.links import Link


@dataclass(frozen=True)
class JobDocuments:
    """The documents of a job. `cuts` are the cuts to audit and those they are compared with.

    `malformed` holds the chosen cuts with a malformed manifest.
    """

    links: Sequence[Link]
    places: Mapping[int, Place]
    chosen: Sequence[int]
    cuts: Mapping[int, CutDocuments]
    malformed: Mapping[int, MalformedDocumentError]
    unrecorded: Sequence[Unrecorded]
    of_chain: list[Finding] = field(default_factory=list[Finding])


def read_documents(folder: JobFolder, epochs: Epochs) -> JobDocuments:
    """Read the documents of the chosen cuts. Raises `UnreadableError` if nothing can be audited."""
    # Before the chain: folders that the run creates meanwhile must not look unrecorded.
    unrecorded = folder.unrecorded()
    links = folder.links()
    places, there = places_in(links), set(folder.cuts())
    chosen = folder.chosen(epochs)
    wanted = {other for epoch in chosen for other in (epoch, *_others(places.get(epoch)))}
    cuts: dict[int, CutDocuments] = {}
    malformed: dict[int, MalformedDocumentError] = {}
    waiting = sorted(wanted & (there | set(chosen)), reverse=True)
    while waiting:
        epoch = waiting.pop()
        try:
            manifest = folder.manifest(epoch)
        except MalformedDocumentError as error:
            malformed[epoch] = error
            continue
        if epoch not in places:
            raise UnreadableError(f"epoch {epoch} completed while the chain was being read: run the audit again")
        names = dict.fromkeys(file["name"] for file in files_in(manifest))
        foreign = {name: fault for name in names if (fault := folder.foreign_file(name)) is not None}
        place = places[epoch]
        graph = folder.graph(manifest["graph_hash"])
        cuts[epoch] = CutDocuments(place.link, place.entry, manifest, graph, foreign, place.bases)
        if epoch in chosen:
            bases = set[int]().union(*map(bases_of, manifest["tasks"]))
            waiting += (bases & there) - wanted
            wanted |= bases
    return JobDocuments(links, places, chosen, cuts, malformed, unrecorded)


def judge_documents(documents: JobDocuments) -> dict[int, Found]:
    """Check the documents of each chosen cut, and the chain as a whole (into `of_chain`)."""
    found = {epoch: Found() for epoch in documents.chosen}
    for epoch in documents.chosen:
        if epoch in documents.cuts:
            cut = documents.cuts[epoch]
            previous = documents.places[epoch].previous
            before = None if previous is None else documents.cuts.get(previous)
            of_cut = (*check_back_edges(cut), *check_completeness(cut), *check_splits(cut, before))
            found[epoch].add((one, 1) for one in (*of_cut, *check_lists(cut, documents.cuts, previous)))
        else:
            error = documents.malformed[epoch]
            story = f"its manifest is malformed: {error.place} {error.fault}"
            found[epoch].add([(finding(statement_of(error.place), story, epoch), 1)])
    for one in check_chain(documents.links, documents.unrecorded):
        if one.epoch in found:
            found[one.epoch].add([(one, 1)])
        else:
            documents.of_chain.append(one)
    return found


def conclude(folder: JobFolder, documents: JobDocuments, found: Mapping[int, Found], readable: Set[int]) -> Verdict:
    """The verdict over the chosen cuts. `readable` are the cuts whose files were read."""
    verdicts: list[CutVerdict] = []
    for epoch in documents.chosen:
        place = documents.places[epoch]
        if epoch in documents.cuts:
            cut = documents.cuts[epoch]
            verdicts.append(conclude_cut(cut, place, found[epoch], epoch in readable, readable))
        else:
            verdicts.append(conclude_malformed(place, found[epoch]))
    return Verdict(
        job=folder.job,
        job_id=folder.job_id,
        path=folder.path,
        epochs=verdicts,
        attempts=attempts_in(documents.links),
        of_chain=documents.of_chain,
    )


_STATEMENT_OF_COLUMN = {"counts": 1, "digests": 2, "logged": 2, "count": 1, "digest": 2, "log_count": 2}
"""Of the figures of channels; the last three are of manifests of format 12."""


def statement_of(place: str) -> int:
    """The statement that needs the field at this place of a manifest."""
    name, _, _ = place.rpartition(".")[2].partition("[")
    if ".channels[" in place:
        return _STATEMENT_OF_COLUMN.get(name, 5)
    return 6 if name == "records" or ".splits[" in place else 5


def _others(place: Place | None) -> Iterable[int]:
    """The cuts that a cut is compared with."""
    return () if place is None else (epoch for epoch in (place.previous, place.restored) if epoch is not None)

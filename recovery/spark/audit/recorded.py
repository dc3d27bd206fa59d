"""What the documents of a job tell of its cuts, and what is wrong with them, before any file of a cut is opened.

A manifest that is sealed and does not read as this version writes it is a finding about its cut, and no more of that
cut is judged. Where the chain itself does not read, there is nothing to judge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Literal

from recovery.spark.audit.presence import Described, check_cover, check_presence
from recovery.spark.cut_tables.job_folder import JobFolder, MalformedDocumentError, Unrecorded
from recovery.spark.cut_tables.lineage import Place, attempts_in, check_chain, places_in
from recovery.spark.report.audit_result import Found, conclude_cut, conclude_malformed
from recovery.spark.report.verdict import CutVerdict, Finding, Verdict, finding
from recovery.spark.spark_errors import UnreadableError
from recovery.stores.links import Link

Epochs = Literal["latest", "all"] | Sequence[int]


@dataclass(frozen=True)
class Documents:
    """What was read of a job. `cuts` are those to be audited and those that they are compared with.

    `malformed` are the chosen cuts whose manifest does not read.
    """

    links: Sequence[Link]
    places: Mapping[int, Place]
    chosen: Sequence[int]
    cuts: Mapping[int, Described]
    malformed: Mapping[int, MalformedDocumentError]
    unrecorded: Sequence[Unrecorded]
    of_chain: list[Finding] = field(default_factory=list[Finding])


def read_documents(folder: JobFolder, epochs: Epochs) -> Documents:
    """Read what is told of some cuts. Raises `UnreadableError` where there is nothing to judge."""
    # First, so that whatever the run writes meanwhile is in the chain that is read next.
    unrecorded = folder.unrecorded()
    links = folder.links()
    places, there = places_in(links), set(folder.cuts())
    chosen = _chosen(folder, epochs)
    wanted = {other for epoch in chosen for other in (epoch, *_others(places.get(epoch)))}
    cuts: dict[int, Described] = {}
    malformed: dict[int, MalformedDocumentError] = {}
    for epoch in sorted(wanted & (there | set(chosen))):
        try:
            manifest = folder.manifest(epoch)
        except MalformedDocumentError as error:
            malformed[epoch] = error
            continue
        if epoch not in places:
            raise UnreadableError(f"epoch {epoch} was recorded while the chain was read: run the audit again")
        names = dict.fromkeys(file["name"] for task in manifest["tasks"] for file in task["files"])
        foreign = {name: fault for name in names if (fault := folder.foreign_file(name)) is not None}
        place = places[epoch]
        cuts[epoch] = Described(place.link, place.entry, manifest, folder.graph(manifest["graph_hash"]), foreign)
    return Documents(links, places, chosen, cuts, malformed, unrecorded)


def judge_documents(documents: Documents) -> dict[int, Found]:
    """Find what is wrong with the documents of each chosen cut, and of the chain as a whole (in `of_chain`)."""
    found = {epoch: Found() for epoch in documents.chosen}
    for epoch in documents.chosen:
        if epoch in documents.cuts:
            cut = documents.cuts[epoch]
            found[epoch].add((one, 1) for one in (*check_cover(cut), *check_presence(cut)))
        else:
            error = documents.malformed[epoch]
            story = f"its manifest does not read as this version writes it: {error.place} {error.fault}"
            found[epoch].add([(finding(_statement_of(error.place), story, epoch), 1)])
    for one in check_chain(documents.links, documents.unrecorded):
        if one.epoch in found:
            found[one.epoch].add([(one, 1)])
        else:
            documents.of_chain.append(one)
    return found


def conclude(folder: JobFolder, documents: Documents, found: Mapping[int, Found], readable: Set[int]) -> Verdict:
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


def _statement_of(place: str) -> int:
    """The statement that needs what stands in this place of a manifest."""
    _, _, name = place.rpartition(".")
    if ".channels[" in place:
        return {"count": 1, "digest": 2, "log_count": 2}.get(name, 5)
    return 6 if name == "records" or ".splits[" in place else 5


def _chosen(folder: JobFolder, epochs: Epochs) -> list[int]:
    if epochs == "latest":
        return [folder.latest()]
    if epochs == "all":
        folder.latest()
        return folder.cuts()
    return sorted({int(epoch) for epoch in epochs})


def _others(place: Place | None) -> Iterable[int]:
    """The cuts that one is compared with."""
    return () if place is None else (epoch for epoch in (place.previous, place.restored) if epoch is not None)

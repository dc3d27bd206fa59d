"""Checks the files of keyed state that a cut no longer names against those that it names instead (statement 8).

A cut continues the list of files of the cut before it. If several epochs were open, it may continue that of an older
cut instead, the base of its delta; then it is compared with that (`continued`). It leaves a file out for one of
two reasons:

- A compaction takes its place. That holds each key of the files that were put into one, with the value and the times of
  the timers that the last of them has. Only where it holds everything, a key with neither is missing.
- The cut's own delta takes its place, which then holds all its keys. Their values have changed.

Otherwise a restore brings an older value back, or loses one. Values are compared as JSON. Where one cannot be read or
has objects of classes, only its key is compared: such an object may be pickled otherwise once it was loaded.

Only files that one of two cuts names are read, and only if there are any that were left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backedge.graphs.wording import counted
from backedge.recovery.spark.audit.cut_roles import CutRoles, aggregated, one_of
from backedge.recovery.spark.audit.manifest_checks import CutDocuments, compactions_in, continued, layer_names
from backedge.recovery.spark.cut_tables.cut_tables import identified, local_frame
from backedge.recovery.spark.report.verdict import Facts, Finding

_Place = tuple[int, str, int, int, int, int, bool, bool, bool]
_PLACES = (
    "epoch bigint, operator string, task_index int, layer int, audited bigint, instead int, is_left_out boolean, "
    "is_compaction boolean, is_whole boolean"
)
_NAMES = ["epoch", "operator", "task_index", "layer"]
_OF_KEY = ("audited", "operator", "task_index", "key_group", "_identity", "instead", "is_compaction", "is_whole")

# A key that cannot be read may be any key.
_IS_KNOWN = "key_int IS NOT NULL OR key_str IS NOT NULL OR _pickled IS NOT NULL OR data IS NULL"
_HAS_CLASSES = " OR ".join(f"contains(value, '{{\"{name}\":')" for name in ("class", "global"))

# Of a key in one layer: its value and timers, and whether they can be compared.
_CONTENT = (
    "count_if(kind <> 'gone') AS rows",
    # A sum, since two equal timers would not count in an exclusive or. The hashes are cut, so that it cannot overflow.
    "sum(if(kind = 'gone', 0L, pmod(xxhash64(kind, value), 4294967296L))) AS content",
    f"bool_and(kind = 'gone' OR NOT coalesce({_HAS_CLASSES}, true)) AS is_plain",
    "min(key) AS key",
    # Not a condition on rows: Spark would decode each key of each file for it, before anything else.
    f"bool_and({_IS_KNOWN}) AS is_known",
)
_LAYER = "struct(layer, rows, content, is_plain, key)"

_IS_LEFT = "had IS NOT NULL AND NOT (is_whole AND had.rows = 0)"
_IS_LOST = f"{_IS_LEFT} AND has IS NULL"
_DIFFERS = "had.rows <> has.rows OR (had.is_plain AND has.is_plain AND had.content <> has.content)"
_IS_WRONG = f"is_compaction AND has IS NOT NULL AND (NOT ({_IS_LEFT}) OR {_DIFFERS})"


def replaced_files(spark: SparkSession, roles: CutRoles, cuts: Mapping[int, CutDocuments]) -> DataFrame | None:
    """One row per audited cut, operator and task with keys that are `lost` or `wrong`: how many, and the first of each.

    None if no file was left out.
    """
    audited = (cuts[epoch] for epoch in roles.audited)
    places = [place for cut in audited for place in _places(cut, cuts, roles.previous.get(cut.epoch))]
    if not places:
        return None
    of_place = F.broadcast(local_frame(spark, places, _PLACES))
    # First the rows of these files alone, so that no other keys are decoded.
    keyed = roles.tables["state_layers"].where("key_group IS NOT NULL").where(one_of("epoch", {p[0] for p in places}))
    rows = identified(keyed.join(of_place, _NAMES, "left_semi")).join(of_place, _NAMES)
    by_layer = aggregated(rows, (*_OF_KEY, "is_left_out", "layer"), *_CONTENT)
    by_key = aggregated(
        by_layer.where("is_known"),
        _OF_KEY,
        f"max(if(is_left_out, {_LAYER}, NULL)) AS had",
        f"max(if(is_left_out, NULL, {_LAYER})) AS has",
    ).selectExpr("*", f"{_IS_LOST} AS is_lost", f"{_IS_WRONG} AS is_wrong")
    found = aggregated(
        by_key.where("is_lost OR is_wrong"),
        ("audited", "operator", "task_index"),
        "count_if(is_lost) AS lost",
        "min(if(is_lost, had.key, NULL)) AS first_lost",
        "count_if(is_wrong) AS wrong",
        "min(if(is_wrong, has.key, NULL)) AS first_wrong",
    )
    return found.withColumnRenamed("audited", "epoch")


def _places(cut: CutDocuments, cuts: Mapping[int, CutDocuments], previous: int | None) -> Iterator[_Place]:
    """The layers that only one of two cuts names, of tasks whose list goes on; each with what takes its place."""
    for id, task in cut.tasks.items():
        before = continued(id, task, cuts, previous)
        if before is None:
            continue
        earlier = before.tasks[id]
        former, now = layer_names(earlier), layer_names(task)
        left, layers = [*earlier["below"], earlier], [*task["below"], task]
        compactions = compactions_in(task, earlier)
        instead: dict[int, int] = {}
        for layer, facts in enumerate(left):
            if former[layer] not in now:
                of = (place for place in compactions if _is_put_into(layers[place], facts["epoch"]))
                instead[layer] = next(of, len(layers) - 1)
        sides = [
            *((before.epoch, layer, place, True) for layer, place in instead.items()),
            *((cut.epoch, place, place, False) for place in set(instead.values())),
        ]
        for operator in (facts["name"] for facts in task["operators"]):
            for epoch, layer, place, is_left_out in sides:
                kind = place in compactions, layers[place]["base"] is None
                yield epoch, operator, id.index, layer, cut.epoch, place, is_left_out, *kind


def _is_put_into(compaction: Facts, epoch: int) -> bool:
    """Whether what a file holds, which was taken at this epoch, belongs into a compaction."""
    base = compaction["base"]
    return epoch <= compaction["epoch"] and (base is None or base < epoch)


def replaced_findings(cut: CutDocuments, row: Facts) -> Iterator[tuple[Finding, int]]:
    """What is wrong with the lists of an operator's task."""
    id = next(id for id, task in cut.tasks.items() if _is_of(row, id.index, task))
    names = f"the previous cut names files of {row['operator']!r} that this one does not, and "
    stories = {"lost": "lost with them {keys}", "wrong": "the files in their place have {keys} with other values"}
    for what, story in stories.items():
        if row[what]:
            told = story.format(keys=counted(row[what], "key"))
            yield cut.wrong(8, f"{names}{told}; first: {row[f'first_{what}']}", task=id), 1


def _is_of(row: Facts, index: int, task: Facts) -> bool:
    return index == row["task_index"] and row["operator"] in {facts["name"] for facts in task["operators"]}

"""Checks the files of keyed state that a cut no longer names against those that it names instead (statement 8).

A cut continues the list of files of the cut before it. It leaves a file out if its own delta holds all keys of that
one, or if a compaction of it takes its place. So each key of a file that was left out is in a file that the earlier cut
does not name: in the cut's own, or with a value in another one just if it had one. Only where such a file holds
everything, a key without a value may be missing. Otherwise a restore brings an older value back, or loses one.

Only files that one of two cuts names are read, and only if there are any that were left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from graphs.wording import counted
from recovery.spark.audit.cut_roles import CutRoles, aggregated
from recovery.spark.audit.manifest_checks import CutDocuments, layer_names
from recovery.spark.cut_tables.cut_tables import identified
from recovery.spark.cut_tables.local_rows import local_frame
from recovery.spark.report.verdict import Facts, Finding, finding

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACES = "epoch bigint, operator string, task_index int, layer int, audited bigint, side string, is_whole boolean"
_LEFT_OUT, _INSTEAD, _OWN = "left out", "instead", "own"

_Place = tuple[int, str, int, int, int, str, bool]


def replaced_files(spark: SparkSession, roles: CutRoles, cuts: Mapping[int, CutDocuments]) -> DataFrame | None:
    """One row per audited cut, operator and task with keys that are lost: how many, and the first.

    None if no file was left out.
    """
    compared = [(cuts[before], cuts[epoch]) for epoch, before in roles.previous.items()]
    places = [place for before, cut in compared for place in _places(before, cut)]
    if not places:
        return None
    rows = identified(roles.tables["state_layers"].where("key_group IS NOT NULL"))
    # A key that cannot be read may be any key.
    known = rows.where("key_int IS NOT NULL OR key_str IS NOT NULL OR _pickled IS NOT NULL OR data IS NULL")
    of_place = known.join(F.broadcast(local_frame(spark, places, _PLACES)), _NAMES)
    by_key = aggregated(
        of_place,
        ("audited", "operator", "task_index", "key_group", "_identity"),
        f"max(if(side = '{_LEFT_OUT}', struct(layer, kind = 'value' AS has), NULL)).has AS had",
        f"max(if(side = '{_INSTEAD}', struct(layer, kind = 'value' AS has), NULL)).has AS has",
        f"max(side = '{_OWN}') AS is_own",
        "max(is_whole) AS is_whole",
        "min(key) AS key",
    )
    lost = by_key.where("had IS NOT NULL AND NOT is_own AND NOT coalesce(has = had, is_whole AND NOT had)")
    found = aggregated(lost, ("audited", "operator", "task_index"), "count(*) AS keys", "min(key) AS key")
    return found.withColumnRenamed("audited", "epoch")


_NAMES = ["epoch", "operator", "task_index", "layer"]


def _places(before: CutDocuments, cut: CutDocuments) -> Iterator[_Place]:
    """The layers that only one of two cuts names, of tasks whose list goes on."""
    for id, task in cut.tasks.items():
        earlier = before.tasks.get(id)
        if earlier is None or not task["below"]:
            continue
        former, now = layer_names(earlier), layer_names(task)
        left_out = [layer for layer, name in enumerate(former) if name not in now]
        instead = [layer for layer, name in enumerate(now[:-1]) if name not in former]
        sides = [
            *((before, layer, _LEFT_OUT) for layer in left_out),
            *((cut, layer, _INSTEAD) for layer in instead),
            (cut, len(now) - 1, _OWN),
        ]
        for operator in (facts["name"] for facts in task["operators"] if left_out):
            for of_cut, layer, side in sides:
                yield of_cut.epoch, operator, id.index, layer, cut.epoch, side, 0 in instead


def replaced_finding(cut: CutDocuments, row: Facts) -> Finding:
    """What is wrong with the lists of an operator's task."""
    id = next(id for id, task in cut.tasks.items() if _is_of(row, id.index, task))
    lost = counted(row["keys"], "key")
    story = f"the previous cut names files of {row['operator']!r} that this one does not, and lost with them {lost}"
    return finding(8, f"{story}; first: {row['key']}", cut.epoch, task=str(id))


def _is_of(row: Facts, index: int, task: Facts) -> bool:
    return index == row["task_index"] and row["operator"] in {facts["name"] for facts in task["operators"]}

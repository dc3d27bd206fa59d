"""What manifests tell, as rows: small tables, one row for each task, operator, split, file or channel of a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from recovery.spark.cut_tables.decoding import position_in
from recovery.spark.cut_tables.job_folder import JobFolder
from recovery.spark.spark_errors import UnreadableError
from recovery.stores.names import MANIFEST, attempt_folder, encoded, path_of, table_of
from recovery.stores.shapes import shown

Document = Mapping[str, Any]
Row = tuple[Any, ...]


def rows_of(table: str, folder: JobFolder, manifests: Mapping[int, Document]) -> list[Row]:
    """The rows of one of these tables, for all cuts."""
    if table == "cuts":
        return list(_cuts(folder, manifests))
    return [
        (epoch, manifest["attempt"], *row) for epoch, manifest in manifests.items() for row in _ROWS[table](manifest)
    ]


def _cuts(folder: JobFolder, manifests: Mapping[int, Document]) -> Iterator[Row]:
    numbers = {getattr(link.entry, "epoch", None): link.number for link in folder.links() if link.manifest}
    for epoch, manifest in manifests.items():
        name = path_of((*attempt_folder(manifest["attempt"], manifest["epoch"]), MANIFEST))
        told = [manifest[key] for key in ("mode", "savepoint", "graph_hash", "parallelism")]
        yield epoch, manifest["attempt"], numbers[epoch], *told, name


def _tasks(manifest: Document) -> Iterator[Row]:
    placed = {(task["task"], task["index"]): task["actor"] for task in manifest["deployment"]["tasks"]}
    for task in manifest["tasks"]:
        name = (task["task"], task["index"])
        # A task that the deployment lacks is for the audit to find.
        told = (task["epoch"], task["filed"], task["ended"], task["state_rows"])
        yield *name, *told, placed.get(name), task["overtook"]


def _operators(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        for facts in task["operators"]:
            told = (facts["name"], facts["kind"], facts["whole_can_move"], facts["records"])
            yield task["task"], task["index"], *told


def _positions(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        for facts in task["operators"]:
            for split, position in facts["splits"]:
                data = bytes.fromhex(position)
                yield facts["name"], task["index"], split, position_in(data), data


def _files(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        owners = [facts["name"] for facts in task["operators"]] + [log["loop"] for log in task["logs"]]
        # A folder's name is a name encoded, and cut short where it is long.
        names = {encoded(name): name for name in owners}
        for file in task["files"]:
            table, *of = table_of(file["name"]) or ("",)
            owner = names.get(of[0].partition("=")[2]) if of else task["task"]
            if not table or owner is None:
                raise UnreadableError(
                    f"the manifest of epoch {manifest['epoch']} names the file {shown(file['name'])}, which is of no "
                    "table: it is forged; bring it back from a copy"
                )
            told = (table.partition("=")[2], owner, file["name"], file["size"], file["sha256"])
            yield task["task"], task["index"], *told


def _graph_channels(manifest: Document) -> Iterator[Row]:
    columns = ("edge", "sender", "sender_index", "receiver", "receiver_index", "is_back", "within_actor")
    for channel in manifest["deployment"]["channels"]:
        yield tuple(channel[column] for column in columns)


def _channels(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        for told in task["channels"]:
            channel = told["channel"]
            ends = (channel["edge"], *channel["sender"], *channel["receiver"], channel["restored"])
            figures = [told[name] for name in ("is_back", "count", "digest", "ended", "log_count")]
            overtook = task["overtook"] if told["direction"] == "in" else None
            yield task["task"], task["index"], told["direction"], *ends, *figures, overtook


_ROWS: Mapping[str, Callable[[Document], Iterator[Row]]] = {
    "tasks": _tasks,
    "operators": _operators,
    "positions": _positions,
    "files": _files,
    "graph_channels": _graph_channels,
    "channels": _channels,
}

DESCRIBED = ("cuts", *_ROWS)
"""The tables that manifests alone tell."""

"""Small tables built from manifests: one row for each task, operator, split, file or channel of a cut."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import to_builtins

from backedge.graphs.describing import channels_in
from backedge.recovery.spark.cut_tables.decoding import position_in
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores.channel_tables import ChannelTable
from backedge.recovery.stores.names import KEYED, encoded, table_of
from backedge.recovery.stores.shapes import converted, shown

Document = Mapping[str, Any]
Row = tuple[Any, ...]


def rows_of(table: str, folder: JobFolder, manifests: Mapping[int, Document]) -> list[Row]:
    if table == "cuts":
        return list(_cuts(folder, manifests))
    return [
        (epoch, manifest["attempt"], *row) for epoch, manifest in manifests.items() for row in _ROWS[table](manifest)
    ]


def _cuts(folder: JobFolder, manifests: Mapping[int, Document]) -> Iterator[Row]:
    links = {getattr(link.entry, "epoch", None): link for link in folder.links() if link.manifest}
    for epoch, manifest in manifests.items():
        link = links[epoch]
        facts = [manifest[key] for key in ("mode", "savepoint", "graph_hash", "parallelism")]
        yield epoch, manifest["attempt"], link.number, *facts, link.manifest_name


def _tasks(manifest: Document) -> Iterator[Row]:
    placed = {(task["task"], task["index"]): task["actor"] for task in manifest["deployment"]["tasks"]}
    for task in manifest["tasks"]:
        name = (task["task"], task["index"])
        # The audit reports tasks that are missing from the deployment.
        facts = (task["epoch"], task["filed"], task["ended"], task["state_rows"])
        yield *name, *facts, placed.get(name), task["overtook"]


def _operators(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        for facts in task["operators"]:
            columns = (facts["name"], facts["kind"], facts["whole_can_move"], facts["records"])
            yield task["task"], task["index"], *columns


def _positions(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        for facts in task["operators"]:
            for split, position in facts["splits"]:
                data = bytes.fromhex(position)
                yield facts["name"], task["index"], split, position_in(data), data


def _files(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        owners = [facts["name"] for facts in task["operators"]] + [log["loop"] for log in task["logs"]]
        # A folder is named after its owner: encoded, and shortened if long.
        names = {encoded(name): name for name in owners}
        for layer, file in layered_files(task):
            table, *of = table_of(file["name"]) or ("",)
            owner = names.get(of[0].partition("=")[2]) if of else task["task"]
            if not table or owner is None:
                raise UnreadableError(
                    f"the manifest of epoch {manifest['epoch']} lists the file {shown(file['name'])}, which "
                    "belongs to no table: the manifest is forged; restore it from a backup"
                )
            kind = table.partition("=")[2]
            columns = (kind, owner, file["name"], file["size"], file["digest"], layer if kind in KEYED else None)
            yield task["task"], task["index"], *columns


def files_in(manifest: Document) -> list[dict[str, Any]]:
    """The files that a manifest lists, with those of the flow's constants and versions."""
    of_tasks = (file for task in manifest["tasks"] for _, file in layered_files(task))
    return [*of_tasks, *(file for _, file in shared_files(manifest))]


def shared_files(manifest: Document) -> list[tuple[str, dict[str, Any]]]:
    """The files of constants and of versions, each with what it holds. Versions of one content have one file."""
    shared = [(f"constant {name!r}", file) for name, file in manifest["constants"].items()]
    for facts in (facts for task in manifest["tasks"] for facts in task["operators"]):
        # Manifests that earlier releases wrote have none.
        shared += [(f"version {one['number']} of {one['of']!r}", one["file"]) for one in facts.get("versions", ())]
    return list({(file["name"], file["size"], file["digest"]): (what, file) for what, file in shared}.values())


def layered_files(task: Document) -> Iterator[tuple[int, dict[str, Any]]]:
    """The files of a task, the first layer first, each with the number of its layer."""
    for layer, below in enumerate(task["below"]):
        yield from ((layer, file) for file in below["files"])
    yield from ((len(task["below"]), file) for file in task["files"])


def ends_in(task: Document) -> Iterator[dict[str, Any]]:
    """The task's end of each of its channels, as an object of a manifest of format 12."""
    tables = converted(task["channels"], list[ChannelTable])
    return (to_builtins(end) for table in tables for end in table.ends)


def _graph_channels(manifest: Document) -> Iterator[Row]:
    columns = ("edge", "sender", "sender_index", "receiver", "receiver_index", "is_back", "within_actor")
    for channel in channels_in(manifest["deployment"]["channels"]):
        yield tuple(channel[column] for column in columns)


def _channels(manifest: Document) -> Iterator[Row]:
    for task in manifest["tasks"]:
        for end in ends_in(task):
            channel = end["channel"]
            ends = (channel["edge"], *channel["sender"], *channel["receiver"], channel["restored"])
            figures = [end[name] for name in ("is_back", "count", "digest", "ended", "log_count")]
            overtook = task["overtook"] if end["direction"] == "in" else None
            yield task["task"], task["index"], end["direction"], *ends, *figures, overtook


_ROWS: Mapping[str, Callable[[Document], Iterator[Row]]] = {
    "tasks": _tasks,
    "operators": _operators,
    "positions": _positions,
    "files": _files,
    "graph_channels": _graph_channels,
    "channels": _channels,
}

MANIFEST_TABLES = ("cuts", *_ROWS)
"""The tables that are built from manifests alone."""

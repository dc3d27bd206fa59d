"""A copy of a job that somebody has changed and sealed again, so that no seal and no hash tells of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from backedge.graphs.describing import channel_tables, channels_in
from backedge.recovery.spark.audit.file_verification import check_file, file_findings, listed_in
from backedge.recovery.spark.audit.job_documents import conclude, judge_documents, read_documents
from backedge.recovery.spark.audit.manifest_checks import has_readable_files
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import ends_in, layered_files
from backedge.recovery.spark.report.verdict import Verdict
from backedge.recovery.stores.digests import digest_of_task_file
from backedge.recovery.stores.documents import sealed, sha256
from backedge.recovery.stores.parquet_tables import encode, from_rows, parquet

Facts = dict[str, Any]
Row = dict[str, Any]


class Forged:
    """A job to be changed: its chain, its manifests by epoch, the rows of its files. `seal` makes it whole again."""

    def __init__(self, job: Path, copy: Path) -> None:
        shutil.copytree(job, copy)
        self.path = copy
        self.entries = [plain(file) for file in sorted((copy / "chain").glob("*.json"))]
        # Changed when all is sealed: the manifest that an entry names, and what is there instead of a file.
        self.named: dict[int, str] = {}
        self.replaced: dict[Path, Callable[[Path], None]] = {}
        names = {e["epoch"]: e["manifest"]["name"] for e in self.entries if e["manifest"]}
        self.manifests = {epoch: plain(copy / name) for epoch, name in names.items()}

    def entry(self, epoch: int) -> Facts:
        """The entry of the chain that a cut has."""
        return next(entry for entry in self.entries if entry["manifest"] and entry["epoch"] == epoch)

    def task(self, epoch: int, name: str, index: int = 0) -> Facts:
        """What the manifest says of a task."""
        return next(t for t in self.manifests[epoch]["tasks"] if (t["task"], t["index"]) == (name, index))

    def file(self, epoch: int, table: str, task: str, index: int = 0, of: str = "") -> str:
        """The file of a task in a table."""
        names = [file["name"] for file in self.task(epoch, task, index)["files"]]
        return next(name for name in names if f"/table={table}/" in name and of in name)

    def rows(self, name: str) -> list[Row]:
        """The rows of a file."""
        return parquet.read_table(self.path / name, partitioning=None).to_pylist()

    def change(self, name: str, change: Callable[[list[Row]], list[Row]]) -> None:
        """Write other rows into a file."""
        path = self.path / name
        table = parquet.ParquetFile(path).read()
        rows = change(table.to_pylist())
        self._name_groups(name, rows)
        path.write_bytes(encode(from_rows(table.schema, [tuple(row.values()) for row in rows])))

    def _name_groups(self, name: str, rows: list[Row]) -> None:
        groups = [row["key_group"] for row in rows if row.get("key_group") is not None]
        for manifest in self.manifests.values():
            for file in (f for task in manifest["tasks"] for _, f in layered_files(task) if f["name"] == name):
                file["groups"] = [min(groups), max(groups)] if groups else None

    def seal(self) -> Path:
        """Hash every file anew, then manifests, then the chain."""
        parent: str | None = None
        for number, entry in enumerate(self.entries, start=1):
            if entry["manifest"]:
                self.manifests[entry["epoch"]]["parent"] = {"number": number - 1, "sha256": parent}
                entry["manifest"] = self._seal_manifest(entry["epoch"], entry["manifest"]["name"])
                entry["manifest"]["name"] = self.named.get(entry["epoch"], entry["manifest"]["name"])
            entry["parent"] = parent
            data = sealed(entry, None)
            (self.path / "chain" / f"{number:08d}.json").write_bytes(data)
            parent = sha256(data)
        for path, make in self.replaced.items():
            path.unlink()
            make(path)
        return self.path

    def written(self, manifest: Facts) -> Facts:
        """A manifest as it is written."""
        return manifest

    def _seal_manifest(self, epoch: int, name: str) -> Facts:
        manifest = self.manifests[epoch]
        for task in manifest["tasks"]:
            for _, file in layered_files(task):
                data = (self.path / file["name"]).read_bytes()
                file.update(size=len(data), digest=digest_of_task_file(data))
        data = sealed(self.written(manifest), None)
        (self.path / name).write_bytes(data)
        return {"name": name, "size": len(data), "sha256": sha256(data)}


def plain(path: Path) -> Facts:
    """A sealed document without its seal."""
    document = json.loads(path.read_text())
    return {name: value for name, value in document.items() if name not in ("seal", "format")}


class ForgedChannels(Forged):
    """The same, whose manifests have an object for each channel, to be changed, in place of tables."""

    def __init__(self, job: Path, copy: Path) -> None:
        super().__init__(job, copy)
        for manifest in self.manifests.values():
            manifest["deployment"]["channels"] = list(channels_in(manifest["deployment"]["channels"]))
            for task in manifest["tasks"]:
                task["channels"] = list(ends_in(task))

    def written(self, manifest: Facts) -> Facts:
        """With a table for each channel, so that it may have any values."""
        deployment = {**manifest["deployment"], "channels": channel_tables(manifest["deployment"]["channels"])}
        tasks = [{**task, "channels": list(map(table_of, task["channels"]))} for task in manifest["tasks"]]
        return {**manifest, "deployment": deployment, "tasks": tasks}


def table_of(end: Facts) -> Facts:
    """A table for one end of a channel."""
    channel, is_in = end["channel"], end["direction"] == "in"
    (sender, first), (receiver, second) = channel["sender"], channel["receiver"]
    return {
        **{name: end[name] for name in ("direction", "is_back")},
        **{"edge": channel["edge"], "sender": sender, "receiver": receiver, "restored": channel["restored"]},
        **{"own": second if is_in else first, "others": [first if is_in else second]},
        **{"counts": [end["count"]], "digests": [end["digest"]], "ended": [0] if end["ended"] else []},
        "logged": [[0, end["log_count"]]] if end["log_count"] else [],
    }


def before_rows(job: Path, epoch: int) -> Verdict:
    """What the audit finds before Spark compares any rows: in the documents, and in each file of the cut."""
    folder = JobFolder.open(str(job))
    documents = read_documents(folder, [epoch])
    found, cut = judge_documents(documents), documents.cuts.get(epoch)
    if cut is not None and has_readable_files(cut):
        checked = {f: check_file(str(job), f.name, f.size, f.digest, f.span, f.said) for f in listed_in([cut])}
        faults = {file: found for file, found in checked.items() if isinstance(found, list)}
        found[epoch].add((one, 1) for one in file_findings(cut, faults))
    return conclude(folder, documents, found, set())

"""The summary of a run: as text for people, and as JSON written to a file or a URI."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from backedge.engine.files.arrow import filesystems
from backedge.engine.on_ray.api.shared_paths import check_path
from backedge.flows import WrongCallError
from backedge.graphs.wording import counted


class JsonFile:
    """A file for one JSON document, at a path or a URI. Raises at once if it cannot be written.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = JsonFile(f"{folder}/results/run.json")
    ...     file.write({"state": "finished"})
    ...     Path(folder, "results", "run.json").read_text()
    '{"state": "finished"}\\n'
    """

    def __init__(self, given: str) -> None:
        check_path("--json-out", given, " or s3://BUCKET/")
        self._given = given
        self._path: Path | None = None
        if "://" not in given or given.startswith("file:///"):
            self._path = Path(given.removeprefix("file://")).absolute()
        try:
            if self._path is None:
                self._filesystem, self._remote = filesystems().FileSystem.from_uri(given)
            elif self._path.is_dir():
                raise IsADirectoryError(f"{self._path} is a folder")
            else:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._temporary.touch()
                self._temporary.unlink()
        except (OSError, ValueError, NotImplementedError) as error:
            raise WrongCallError(f"--json-out {given} cannot be written ({error}): give another path") from error

    def write(self, document: dict[str, Any]) -> None:
        """Replace the file by this document, atomically where the place allows it."""
        data = (json.dumps(document) + "\n").encode()
        if self._path is None:
            with self._filesystem.open_output_stream(self._remote) as stream:
                stream.write(data)
            return
        self._temporary.write_bytes(data)
        os.replace(self._temporary, self._path)

    @property
    def _temporary(self) -> Path:
        path = self._path or Path(self._given)
        return path.with_name(f".{path.name}.{os.getpid()}")


def told(summary: dict[str, Any]) -> str:
    """A summary in a few lines.

    >>> print(told({"job": "rank", "state": "finished", "seconds": 2.5, "records": 1200, "hops": 900, "snapshots": 3,
    ...     "snapshots_with_log": 1, "kills": 1, "restores": 2, "missed_faults": [], "outputs": {"done": 400},
    ...     "files": {"ranks": "/out/ranks"}, "tables": {"booked": "'bookings' of /out/shop.db"}}))
    rank: finished in 2.5 s; 1,200 records, 900 hops; 3 cuts, 1 with records in loops; 1 kill, 2 restores
      done: 400 records
      ranks: files in /out/ranks
      booked: rows of table 'bookings' of /out/shop.db
    """
    how = f"{summary['job']}: {summary['state']} in {summary['seconds']:.1f} s"
    worked = f"{counted(summary['records'], 'record')}, {counted(summary['hops'], 'hop')}"
    cuts = f"{counted(summary['snapshots'], 'cut')}, {summary['snapshots_with_log']} with records in loops"
    faults = f"{counted(summary['kills'], 'kill')}, {counted(summary['restores'], 'restore')}"
    audit = f"; audit: {summary['audit']['state']}" if summary.get("audit") else ""
    lines = [f"{how}; {worked}; {cuts}; {faults}{audit}"]
    lines += [
        f"  rescaled at epoch {rescale['epoch']} in {rescale['gap_ms']} ms" for rescale in summary.get("rescales", [])
    ]
    lines += [f"  {sink}: {counted(count, 'record')}" for sink, count in summary["outputs"].items()]
    lines += [f"  {sink}: files in {place}" for sink, place in summary.get("files", {}).items()]
    lines += [f"  {sink}: rows of table {title}" for sink, title in summary.get("tables", {}).items()]
    return "\n".join(lines)

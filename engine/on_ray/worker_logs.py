"""What the functions of a job have printed and logged, from the files that Ray keeps on each host.

Ray keeps the output of a process until its session ends, also when the process has died. The first lines of a file name
the Ray job (the program that has started the run) and the actor. A line that begins with a mark says which task has
printed those that follow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.actor.labelled_output import MARK

PROGRAM_MARK = ":job_id:"
_PROGRAM = re.compile(rf"{PROGRAM_MARK}(?:[0-9a-f]{{2}}){{1,8}}")
"""What Ray prints. A function may print anything behind the same mark."""
RAYS_MARKS = (PROGRAM_MARK, ":task_name:")
HEAD_BYTES = 4_096
PIECE_BYTES_MAX = 1_000_000


class Piece(NamedTuple):
    """A part of a file from `offset` on; `changed_s` is when the file was last written to."""

    file: str
    offset: int
    data: bytes
    changed_s: float


class PrintedLine(NamedTuple):
    """A line, and the task that has printed it, such as "orders > count/0", or another process: "supervisor"."""

    task: str
    text: str

    @property
    def operators(self) -> list[str]:
        return self.task.rpartition("/")[0].split(" > ")


Read = Callable[[str, Mapping[str, int]], Iterable[Piece]]
"""Reads the files of a job, each from the offset that is given on, on all hosts."""


def read_logs(folder: Path, job: str, offsets: Mapping[str, int]) -> list[Piece]:
    """What files of this host have of a job, each from its offset on."""
    mark = f"{MARK}{job}/".encode()
    found: list[Piece] = []
    for path in sorted(folder.glob("worker-*")):
        if path.suffix not in (".out", ".err"):
            continue
        with path.open("rb") as file:
            offset = offsets.get(path.name, 0)
            if not offset and mark not in file.read(HEAD_BYTES):
                continue
            file.seek(offset)
            if data := file.read(PIECE_BYTES_MAX):
                found.append(Piece(path.name, offset, data, os.fstat(file.fileno()).st_mtime))
    return found


def read_cluster(job: str, offsets: Mapping[str, int]) -> list[Piece]:
    """What the files of all hosts have of a job. A host that is lost meanwhile is left out."""
    asked = [ask() for _, ask in cluster.on_each_daemon(_read_here, job, dict(offsets))]
    found: dict[str, Piece] = {}
    for answer in asked:
        try:
            # Two daemons of one host have the same files.
            found |= {piece.file: piece for piece in cluster.get(answer)}
        except cluster.RayError:
            continue
    return list(found.values())


def _read_here(job: str, offsets: Mapping[str, int]) -> list[Piece]:
    return read_logs(Path(cluster.own_log()).parent, job, offsets)


@dataclass(slots=True)
class _File:
    """A file that is being read: up to `offset`; `rest` is a line without its end; the marks that came last."""

    offset: int = 0
    rest: bytes = b""
    label: str = ""
    program: str = ""
    changed_s: float = 0.0


class WorkerLogs:
    """The output of a job, read again and again. Of several programs that have run it, the last one counts."""

    def __init__(self, job: str, read: Read = read_cluster) -> None:
        self._job = job
        self._read = read
        self._files: dict[str, _File] = {}

    @property
    def is_known(self) -> bool:
        """Whether the cluster has files of this job."""
        return bool(self._files)

    def new_lines(self) -> list[PrintedLine]:
        """The lines that have been printed since the last time; of each file together, the oldest file first."""
        found: list[tuple[_File, PrintedLine]] = []
        while pieces := self._read(self._job, {name: file.offset for name, file in self._files.items()}):
            for piece in pieces:
                file = self._files.setdefault(piece.file, _File())
                file.offset, file.changed_s = piece.offset + len(piece.data), piece.changed_s
                found += [(file, line) for line in self._lines_in(file, piece.data)]
        last = max((_number(file.program) for file in self._files.values()), default=0)
        found.sort(key=lambda pair: pair[0].changed_s)
        return [line for file, line in found if _number(file.program) == last]

    def _lines_in(self, file: _File, data: bytes) -> Iterable[PrintedLine]:
        *lines, file.rest = (file.rest + data).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            if _PROGRAM.fullmatch(text):
                file.program = text.removeprefix(PROGRAM_MARK)
            elif text.startswith(MARK):
                file.label = text.removeprefix(MARK)
            elif file.label.startswith(f"{self._job}/") and not text.startswith(RAYS_MARKS):
                yield PrintedLine(file.label.removeprefix(f"{self._job}/"), text)


def _number(program: str) -> int:
    """The number of a Ray job, from its name: hexadecimal, the lowest byte first."""
    return int.from_bytes(bytes.fromhex(program), "little")

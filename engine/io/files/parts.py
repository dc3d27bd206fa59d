"""The file of a transaction: what a format does with it, and those written record by record, JSON lines, CSV, pickles.

A part takes a batch whole or not at all: an unwritable record is found before the first byte is written.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import pickle
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Protocol, cast
from uuid import UUID

import numpy as np

from backedge.engine.batches.batch import copy_value
from backedge.engine.batches.columns import Records, as_records
from backedge.engine.batches.unpickle_check import check_reads_back
from backedge.engine.io.files.disk import Disk
from backedge.engine.io.files.file_errors import DamagedOutputError, UnwritableRecordError
from backedge.graphs.task_errors import describe, show

_FRAME = struct.Struct("<Q16s")
"""The length of a batch, and its digest."""
_COPIED_BYTES = 1 << 20
_CSV_SCALARS = frozenset({type(None), bool, int, float, Decimal, UUID, time})
_CSV_FAMILIES: tuple[type, ...] = (
    str,
    date,
    timedelta,
    np.bool_,
    np.integer,
    np.floating,
    np.datetime64,
    np.timedelta64,
)


class Part(Protocol):
    """A file to which records, or the rows of columns, are added."""

    def write(self, records: Records) -> None:
        """Add records."""

    def close(self) -> None:
        """Pass everything to the system. The content is durable once the file is synced."""


class FileFormat(ABC):
    """What a sink of files does with the files of its transactions."""

    path: str
    roll_bytes: int | None
    roll_s: float | None

    disk: ClassVar[Disk] = Disk()
    """All operations on files in a folder go through this."""

    ending: ClassVar[str]
    """The ending of the written files."""

    @abstractmethod
    def new_part(self, disk: Disk, path: Path, sink: str, types: dict[str, Any]) -> Part:
        """Create a file for a transaction. `types` is shared by all parts of a task."""

    def join(self, disk: Disk, parts: Sequence[Path], path: Path) -> None:
        """Write the records of these files, which have the same form, into a new one; always the same bytes.

        Their contents follow one another, unless the format needs more.
        """
        join_bytes(disk, parts, path)

    def form_of(self, path: Path) -> Any:
        """What the files that are joined must have in common."""
        return None

    def length_of(self, path: Path) -> int:
        """The length of a file's records, in a unit in which the lengths of joined files add up. By default, bytes."""
        return path.stat().st_size

    def extract(self, disk: Disk, file: Path, spans: Sequence[tuple[int, int]], path: Path) -> None:
        """Write these parts of a file's records into a new one, in the unit of `length_of`."""
        cut_bytes(disk, file, spans, path)

    @abstractmethod
    def of_ending(self, ending: str) -> FileFormat:
        """The format that has this ending: an earlier run may have had another one."""

    @property
    @abstractmethod
    def other_endings(self) -> Sequence[str]:
        """The endings of the other formats in which an earlier run may have written."""


class JsonPart:
    """One value per line. Keys become text, as JSON requires; no two of a dict may become the same."""

    def __init__(self, disk: Disk, path: Path, sink: str) -> None:
        self._sink = sink
        self._stream = disk.open(path)
        self._encode = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain).encode

    def write(self, records: Records) -> None:
        records = as_records(records)
        try:
            encode = self._encode
            lines = [encode(record) for record in records]
            check_names(records)
        except (TypeError, ValueError, RecursionError) as error:
            fix = "map it to text, finite numbers, booleans, None, lists and dicts of these"
            raise unwritable(self._sink, "JSON", _culprit(records, self._try), describe(error), fix) from error
        self._stream.write(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        self._stream.close()

    def _try(self, record: Any) -> None:
        self._encode(record)
        check_names([record])


class CsvPart:
    """Comma-separated values. The columns are those of all records, in the order in which they first occur.

    None is left empty, and so is a column that a record lacks.
    """

    def __init__(self, disk: Disk, path: Path, sink: str) -> None:
        self._sink = sink
        self._disk = disk
        self._path = path
        self._stream = disk.open(path)
        self._columns: dict[str, None] = {}

    def write(self, records: Records) -> None:
        records = as_records(records)
        columns = column_names(self._sink, "CSV", records, self._columns)
        rows: list[list[Any]] = [list(map(record.get, columns)) for record in records]
        kinds = set(map(type, chain.from_iterable(rows)))
        unknown = {kind for kind in kinds - _CSV_SCALARS if not issubclass(kind, _CSV_FAMILIES)}
        if unknown:
            culprit, value = next((r, v) for r in records for v in r.values() if type(v) in unknown)
            what = f"it contains a {type(value).__name__}, which is no text, number, truth value, date or time"
            raise unwritable(self._sink, "CSV", culprit, what, "map it to one, or write JSON lines or Parquet")
        try:
            header = _csv([list(columns)]).encode()
            data = _csv(rows).encode()
        except UnicodeEncodeError as error:
            culprit = _culprit(records, lambda record: _csv([[*record, *record.values()]]).encode())
            raise unwritable(
                self._sink, "CSV", culprit, describe(error), "map it to text that is valid UTF-8"
            ) from error
        if len(columns) > len(self._columns):
            self._widen(header, len(columns) - len(self._columns))
            self._columns = columns
        self._stream.write(data)

    def close(self) -> None:
        self._stream.close()

    def _widen(self, header: bytes, more: int) -> None:
        """Write the file again with this header and so many more columns, which are empty in the rows before."""
        if not self._columns:
            self._stream.write(header)
            return
        self._stream.close()
        with self._disk.read(self._path) as file:
            csv_header(file)
            self._disk.remove(self._path)
            self._stream = self._disk.open(self._path)
            self._stream.write(header)
            is_quoted = False
            while lines := file.readlines(_COPIED_BYTES):
                for number, line in enumerate(lines):
                    is_quoted ^= line.count(b'"') % 2 == 1
                    if not is_quoted:
                        lines[number] = line[:-1] + b"," * more + b"\n"
                self._stream.write(b"".join(lines))


class PicklePart:
    """Batches of any records, each after its length and a digest."""

    def __init__(self, disk: Disk, path: Path, sink: str) -> None:
        self._sink = sink
        self._stream = disk.open(path)

    def write(self, records: Records) -> None:
        payload = pickled_batch(self._sink, records)
        self._stream.write(_FRAME.pack(len(payload), _digest(payload)) + payload)

    def close(self) -> None:
        self._stream.close()


def join_bytes(disk: Disk, parts: Sequence[Path], path: Path, header_bytes: int = 0) -> None:
    """Write files one after the other into a new one, without the first bytes of all but the first."""
    stream = disk.open(path)
    try:
        for number, part in enumerate(parts):
            with part.open("rb") as file:
                file.seek(header_bytes if number else 0)
                while data := file.read(_COPIED_BYTES):
                    stream.write(data)
    finally:
        stream.close()


def cut_bytes(disk: Disk, file: Path, spans: Iterable[tuple[int, int]], path: Path, header_bytes: int = 0) -> None:
    """Write the first bytes of a file into a new one, and these parts of what follows: starts and lengths."""
    stream = disk.open(path)
    try:
        with file.open("rb") as source:
            for start, length in [(-header_bytes, header_bytes), *spans]:
                source.seek(header_bytes + start)
                left = length
                while left and (data := source.read(min(left, _COPIED_BYTES))):
                    stream.write(data)
                    left -= len(data)
    finally:
        stream.close()


def csv_header(file: BinaryIO) -> bytes:
    """Read the first line of a file that a `CsvPart` wrote; a name of a column may contain line ends."""
    header = file.readline()
    while header.count(b'"') % 2 and (line := file.readline()):
        header += line
    return header


def pickled_batch(sink: str, records: Records) -> bytes:
    """A batch of any records, if it reads back."""
    records = as_records(records)
    try:
        payload = pickle.dumps(records, 5)
        check_reads_back(payload)
    except Exception as error:
        fix = "map it to values that pickle: numbers, text, lists, dicts, arrays, objects of importable classes"
        raise unwritable(sink, "pickle", _culprit(records, copy_value), describe(error), fix) from error
    return payload


def read_pickles(path: Path) -> Iterator[list[Any]]:
    """The batches that a `PicklePart` wrote."""
    with path.open("rb") as file:
        yield from pickles_in(file, str(path))


def pickles_in(file: BinaryIO, path: str) -> Iterator[list[Any]]:
    """The batches in a file of frames. Each is verified before it is decoded."""
    while frame := file.read(_FRAME.size):
        length, digest = _FRAME.unpack(frame) if len(frame) == _FRAME.size else (0, b"")
        payload = file.read(length)
        if len(payload) != length or _digest(payload) != digest:
            raise DamagedOutputError(
                f"{path} is not what was written: it is torn or altered; restore it from a backup, or start a new run"
            )
        yield pickle.loads(payload)


def column_names(sink: str, form: str, records: Iterable[Any], known: Iterable[str] = ()) -> dict[str, None]:
    """The names of columns that are known, then the others of these records, which must be dicts with texts as keys."""
    names = dict.fromkeys(known)
    for record in records:
        if not isinstance(record, dict) or not record:
            raise unwritable(sink, form, record, "it has no columns", "map records to dicts")
        keys = cast("dict[Any, Any]", record).keys()
        if not keys <= names.keys():
            if not all(isinstance(key, str) for key in keys):
                what = "a column whose name is not text"
                raise unwritable(sink, form, record, what, "map records to dicts with text as keys")
            names |= dict.fromkeys(keys)
    return names


def unwritable(sink: str, form: str, record: Any, what: str, fix: str) -> UnwritableRecordError:
    """The error to raise if a record does not fit into a format."""
    return UnwritableRecordError(
        f"sink {sink!r} cannot write a record as {form}: {what}\n  record: {show(record)}\n  {fix}"
    )


def _culprit(records: list[Any], encode: Callable[[Any], object]) -> Any:
    """The first record that cannot be encoded; all of them if each can be encoded by itself."""
    for record in records:
        try:
            encode(record)
        except Exception:  # noqa: BLE001  # whether it raises is the question
            return record
    return records


def _plain(value: Any) -> Any:
    """Convert a value that JSON does not know: numpy numbers become numbers."""
    # A duration is an integer to NumPy, and its unit would be lost.
    if isinstance(value, (np.bool_, np.integer, np.floating)) and not isinstance(value, np.timedelta64):
        return cast("np.generic[Any]", value).item()
    raise TypeError(f"{show(value)} of type {type(value).__name__} cannot be written as JSON")


def check_names(values: list[Any]) -> None:
    """Raise if two keys of a dict in these values become the same text: a reader would find one of them."""
    while True:
        kinds = set(map(type, values))
        dicts: list[dict[Any, Any]] = _of_kinds(values, kinds, dict)
        lists: list[Sequence[Any]] = _of_kinds(values, kinds, (list, tuple))
        if not dicts and not lists:
            return
        if not set(map(type, chain.from_iterable(dicts))) <= {str}:
            for each in dicts:
                if len(json.loads(json.dumps(dict.fromkeys(each)))) < len(each):
                    raise ValueError("two keys become the same text")
        values = [*chain.from_iterable(map(dict[Any, Any].values, dicts)), *chain.from_iterable(lists)]


def _of_kinds(values: list[Any], kinds: set[type], wanted: type | tuple[type, ...]) -> list[Any]:
    found = {kind for kind in kinds if issubclass(kind, wanted)}
    if not found:
        return []
    return values if len(found) == len(kinds) else [value for value in values if type(value) in found]


def _csv(rows: list[Any]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    text = buffer.getvalue()
    if "\r" in text:
        # Before Python 3.13 a single carriage return is not quoted, and no reader accepts it.
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
        text = buffer.getvalue()
    return text


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=16).digest()

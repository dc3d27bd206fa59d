"""Reads a dataset of Ray Data, and returns results as one.

A dataset that is executed twice may have other blocks, and even other rows. So it is executed once, before the run: its
rows stay in Ray's object store, in pieces of a fixed number of rows, which are the splits of the source. Tasks fetch
them from there; no folder is shared.

A position has the number of rows read of a piece, and a digest of all rows of the piece. A restart of the whole program
executes the dataset again, and cuts it into the same pieces whatever its blocks are. Where the digests of a piece that
the run has begun to read differ, the dataset has changed, and the run is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from backedge.engine.batches.arrow import arrow
from backedge.engine.io.files.file_errors import InputChangedError, NoInputError
from backedge.engine.on_ray import cluster
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import ArrowRows, Source
from backedge.graphs.public import public
from backedge.graphs.wording import counted

PIECE_ROWS = 10_000
FETCH_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Piece:
    """Some rows that follow each other: a reference to them in Ray's object store, their number and their digest."""

    rows: int
    digest: str
    reference: Any = field(repr=False, compare=False)


@dataclass(frozen=True)
class DatasetRows(Source[dict[str, Any]]):
    """The rows of a dataset, as `from_ray_data` has pinned them. Pieces are named by the number of their first row."""

    pieces: Mapping[str, Piece] = field(repr=False)

    def splits(self) -> Sequence[str]:
        """One for each piece."""
        return list(self.pieces)

    def first_position(self, split: str) -> Any:
        """No row, of rows with this digest."""
        return 0, self.pieces[split].digest

    def is_read(self, split: str, position: Any) -> bool:
        """Whether all rows of the piece were read."""
        return split in self.pieces and position[0] >= self.pieces[split].rows

    def check_unchanged(self, positions: Mapping[str, Any]) -> None:
        """Raise `InputChangedError` if the dataset has other rows than those that the run has begun to read."""
        for split, (_, digest) in positions.items():
            if split not in self.pieces or self.pieces[split].digest != digest:
                raise InputChangedError(
                    f"the dataset has other rows from row {split} on than when the run began: give it the same "
                    "dataset, in the same order, or begin anew in another folder"
                )

    def open_split(self, split: str, position: Any) -> _PieceReader:
        """Fetch a piece."""
        piece = self.pieces[split]
        try:
            rows = cluster.get(piece.reference, FETCH_TIMEOUT_S)
        except (cluster.RayError, TimeoutError) as error:
            raise NoInputError(
                f"the rows from row {split} on are lost with the process or machine that held them "
                f"({cluster.first_line(error)}): start the run again with resume='latest', which executes the dataset "
                "again"
            ) from error
        # Ray may have computed lost rows again, from a dataset that has changed since.
        if digest_of(rows) != piece.digest:
            raise InputChangedError(f"the dataset has other rows from row {split} on than when the run began")
        return _PieceReader(rows, piece.digest, position[0])


class _PieceReader:
    """The rows of a piece from a row on."""

    def __init__(self, rows: Any, digest: str, at: int) -> None:
        self._rows = rows
        self._digest = digest
        self._at = at

    @property
    def position(self) -> Any:
        return self._at, self._digest

    @property
    def is_done(self) -> bool:
        return self._at >= self._rows.num_rows

    def read(self, records_max: int) -> ArrowRows:
        # Arrow leaves a column of more than 2 GiB in several chunks.
        rows = self._rows.slice(self._at, records_max).to_batches()[0]
        self._at += rows.num_rows
        return rows


@public
def from_ray_data(dataset: Any) -> DatasetRows:
    """A source of the rows of a `ray.data.Dataset`, each a dict; operators that take columns get columns.

    Executes the dataset now, in the Ray that this process is connected to. A restart of the run reads the same rows. If
    the program is started again with `resume="latest"`, the dataset is executed again: it must have the same rows in
    the same order, which is checked. The rows keep the order of the input, whatever block is ready first.

        flow.read(from_ray_data(ray.data.read_parquet("s3://bucket/orders")), name="orders")
    """
    if not callable(getattr(dataset, "to_arrow_refs", None)):
        raise BadOptionError(
            f"from_ray_data got something of type {type(dataset).__name__}, which is no ray.data.Dataset: give it a "
            "dataset, and read lists and tables with Items(...)"
        )
    cluster.connect()
    # A dataset has a context of its own, copied when it was made: the current one comes too late.
    dataset.context.execution_options.preserve_order = True
    blocks = list(dataset.to_arrow_refs())
    described: list[tuple[int, Any]] = cluster.get([cluster.task(_describe)(block) for block in blocks])
    schema = common_schema([schema for _, schema in described])
    cut = list(_spans([rows for rows, _ in described], PIECE_ROWS))
    pinned = [cluster.task(_pin, returns=2)(schema, spans, *(blocks[block] for block, _, _ in spans)) for spans in cut]
    digests: list[str] = cluster.get([digest for _, digest in pinned])
    return DatasetRows(
        {
            str(number * PIECE_ROWS): Piece(sum(stop - start for _, start, stop in spans), digest, rows)
            for number, (spans, (rows, _), digest) in enumerate(zip(cut, pinned, digests, strict=True))
        }
    )


def _spans(sizes: Sequence[int], rows_max: int) -> list[list[tuple[int, int, int]]]:
    """Pieces of a number of rows, each a list of (block, first row, row after the last).

    >>> _spans([3, 0, 4], 5)
    [[(0, 0, 3), (2, 0, 2)], [(2, 2, 4)]]
    """
    pieces: list[list[tuple[int, int, int]]] = []
    room = 0
    for block, size in enumerate(sizes):
        start = 0
        while start < size:
            if not room:
                pieces.append([])
                room = rows_max
            stop = min(size, start + room)
            pieces[-1].append((block, start, stop))
            room -= stop - start
            start = stop
    return pieces


def _describe(block: Any) -> tuple[int, Any]:
    """The number of its rows, and its schema."""
    return block.num_rows, block.schema


def common_schema(blocks: Sequence[Any]) -> Any:
    """The schema of all blocks. One that has only nulls in a column, or lacks it, does not know the column's type."""
    bare = [schema.remove_metadata() for schema in blocks]
    try:
        return arrow().unify_schemas([arrow().schema([]), *bare], promote_options="default")
    except arrow().ArrowException as error:
        raise BadOptionError(
            f"the blocks of the dataset differ in the type of a column ({error}): convert it before from_ray_data"
        ) from error


def _pin(schema: Any, spans: Sequence[tuple[int, int, int]], *blocks: Any) -> tuple[Any, str]:
    """The rows of a piece as a table, and their digest."""
    parts = [block.slice(start, stop - start) for block, (_, start, stop) in zip(blocks, spans, strict=True)]
    # The piece has all columns and their types, whatever its own blocks know of them.
    table = arrow().concat_tables([schema.empty_table(), *parts], promote_options="default").combine_chunks()
    rows = table.replace_schema_metadata(None)
    return rows, digest_of(rows)


def digest_of(rows: Any) -> str:
    """A digest of names, types and values, whatever buffers hold them."""
    digest = hashlib.blake2b(digest_size=16)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        # Python shortens long arrays, as which the values of a tensor column come; its storage is lists.
        kind = column.type
        values = column.cast(kind.storage_type) if isinstance(kind, arrow().BaseExtensionType) else column
        digest.update(f"{name}\0{kind}\0{values.to_pylist()!r}\0".encode())
    return digest.hexdigest()


def to_ray_data(records: Sequence[Any]) -> Any:
    """A `ray.data.Dataset` of records. A record that is no dict is a row with the column `item`."""
    try:
        data: Any = import_module("ray.data")
    except ImportError as error:
        raise BadOptionError(f"Ray Data is not installed ({error}): pip install 'backedge[data]'") from error
    if not records:
        raise BadOptionError("a dataset needs at least one record, and there are none")
    cluster.connect()
    return data.from_items(list(records))


def check_not_detached(source: object, what: str) -> None:
    """Raise for a detached run that reads a dataset: its rows would be lost with the process that starts it."""
    if isinstance(source, DatasetRows):
        raise BadOptionError(
            f"{what} has detached=True and reads a dataset, whose {counted(len(source.pieces), 'piece')} would be lost "
            "with this process: write the dataset to Parquet, and read Parquet(path)"
        )

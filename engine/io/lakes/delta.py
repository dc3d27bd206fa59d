"""A Delta table, to read or to write.

The marker is the application transaction of a sink (`txn` in the log of the table): an id, and a version that grows.
Two commits that set the same one are in conflict, so the format itself refuses the second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from backedge.engine.batches.arrow import arrow
from backedge.engine.io.files.file_errors import NoInputError, OutputError
from backedge.engine.io.lakes.lake_table import (
    ConflictError,
    LakeStore,
    LakeTable,
    absolute_path,
    check_path,
    make_folder,
    order_of,
)
from backedge.engine.io.marked_output import one_line
from backedge.engine.io.packages import package
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import SinkPlace
from backedge.graphs.public import public
from backedge.recovery.stores.folder_store import local_path
from backedge.recovery.stores.store_schemes import scheme_of

STORAGE = {"allow_http": "true"}
"""An endpoint is what an environment variable says, as for object stores elsewhere; it may have http:."""


def driver() -> Any:
    return package("deltalake", "delta")


@public
@dataclass(frozen=True)
class DeltaTable(LakeTable):
    """A Delta table in a folder or an object store, a record a row, to read or to write.

    Written, each row is there once, and the rows of a cut are one version of the table. One task writes it. If there is
    no table yet, it is created with the columns of the first records. `schema` says what becomes of columns that it
    lacks: "fail", "widen" (they are added) or "ignore".

    Read, the files of a version are divided among tasks: of `version`, or of the latest at the start.

    >>> DeltaTable("lake/bookings").label
    'bookings'
    """

    path: str
    version: int | None = None

    def __post_init__(self) -> None:
        given: Any = self.path
        if not isinstance(given, str) or not given or "\0" in given:
            raise BadOptionError(
                f"DeltaTable is given path={given!r}: give a folder, or a URI such as s3://bucket/table"
            )
        check_path(given)
        super().__post_init__()

    @property
    def label(self) -> str | None:
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def relative_path(self) -> str | None:
        return None if self.path == absolute_path(self.path) else self.path

    def absolute(self) -> DeltaTable:
        return replace(self, path=absolute_path(self.path))

    @property
    def title(self) -> str:
        return self.path

    def store(self) -> _DeltaStore:
        return _DeltaStore(self)

    def validate_input(self) -> None:
        self.open_version(self._loaded(self.version).version())

    def version_to_read(self) -> int | None:
        table = self.store().opened() if self.version is None else self._loaded(self.version)
        return None if table is None else table.version()

    def open_version(self, version: int) -> Mapping[str, Callable[[], Iterator[Any]]]:
        table = self._loaded(version)
        with self._refused():
            dataset = table.to_pyarrow_dataset()

        def reader(fragment: Any) -> Callable[[], Iterator[Any]]:
            return lambda: fragment.to_batches(schema=dataset.schema, use_threads=False)

        return {fragment.path: reader(fragment) for fragment in dataset.get_fragments()}

    def moved_to(self, folder: str) -> DeltaTable:
        return replace(self, path=os.path.join(folder, "table"))

    def _loaded(self, version: int | None) -> Any:
        with self._refused():
            return driver().DeltaTable(self.path, version=version, storage_options=STORAGE)

    @contextmanager
    def _refused(self) -> Generator[None]:
        try:
            yield
        except driver().exceptions.DeltaError as error:
            which = "" if self.version is None else f"version {self.version} of "
            raise NoInputError(
                f"{which}Delta table {self.path} cannot be read: {one_line(error)}; correct path and version, or copy "
                "the table to one without that feature"
            ) from error


class _DeltaStore(LakeStore):
    def __init__(self, described: DeltaTable) -> None:
        super().__init__(described)
        self._path = described.path
        self._folder = local_path(self._path) if scheme_of(self._path) == "file" else None

    def check(self) -> None:
        try:
            self.opened()
        except driver().exceptions.DeltaError as error:
            raise OutputError(
                f"Delta table {self._path} cannot be written ({one_line(error)}): correct the path"
            ) from error
        if self._folder is not None:
            make_folder(self._folder, f"Delta table {self._path}")

    def opened(self) -> Any:
        try:
            return driver().DeltaTable(self._path, storage_options=STORAGE)
        except driver().exceptions.TableNotFoundError as error:
            if "Unknown scheme" in str(error):
                raise
            return None

    def schema_of(self, table: Any) -> Any:
        return arrow().schema(table.schema().to_arrow())

    def check_type(self, kind: Any) -> None:
        try:
            driver().Schema.from_arrow(arrow().schema([("column", kind)]))
        except Exception as error:  # noqa: BLE001  # what it raises has no class of its own
            raise TypeError(one_line(error)) from None

    def marker_of(self, table: Any, place: SinkPlace) -> int | None:
        return table.transaction_version(_application(place))

    def append(self, table: Any, rows: Any, place: SinkPlace, marker: int) -> Any:
        transaction = driver().Transaction(_application(place), marker)
        try:
            driver().write_deltalake(
                self._path if table is None else table,
                rows,
                # A table that somebody has created since is not written before its marker is read. deltalake would
                # repeat a creation that another one was ahead of as the next version, whatever that one has set.
                mode="error" if table is None else "append",
                schema_mode=None if table is None else "merge",
                storage_options=STORAGE,
                commit_properties=driver().CommitProperties(
                    app_transactions=[transaction], max_commit_retries=0 if table is None else None
                ),
            )
        except driver().exceptions.CommitFailedError as error:
            raise ConflictError(one_line(error)) from error
        except driver().exceptions.DeltaError as error:
            if table is None and self.opened() is not None:
                raise ConflictError(one_line(error)) from error
            raise
        return self.opened() if table is None else table

    def latest_files(self, table: Any) -> Iterable[str]:
        log = f"{self._folder}/_delta_log/{table.version():020}.json"
        if self._folder is None or not os.path.exists(log):  # an old one goes when there is a checkpoint
            return
        yield log
        with open(log) as lines:
            for action in map(json.loads, lines):
                if "add" in action:
                    yield f"{self._folder}/{unquote(action['add']['path'])}"

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        marker = max(map(order_of, transactions))
        return (
            f"execute in Python: import deltalake as d; t = d.DeltaTable({self._path!r}); "
            "t.create_write_transaction([], 'append', t.schema(), commit_properties=d.CommitProperties("
            f"app_transactions=[d.Transaction({_application(place)!r}, {marker})]))"
        )


def _application(place: SinkPlace) -> str:
    return f"backedge/{place.run}/{place.operator}"

"""An Iceberg table, to read or to write.

The marker is a property of the snapshot that a commit makes. Snapshots of other programs may follow it, so it is looked
for among the ancestors of the current one. pyiceberg repeats a commit that another one was ahead of, and does not know
the marker; so it is kept from doing that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from backedge.engine.io.files.file_errors import NoInputError
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

CATALOG = "catalog.db"


def driver(module: str) -> Any:
    return package(f"pyiceberg.{module}", "iceberg")


@public
@dataclass(frozen=True)
class IcebergTable(LakeTable):
    """An Iceberg table, a record a row, to read or to write. `table` is NAMESPACE.TABLE.

    `catalog` is a folder with the catalog (in SQLite) and the data, or the properties of another catalog, as
    `load_catalog` of pyiceberg takes them, and its name: {"name": "prod", "type": "rest", "uri": ...}.

    Written, each row is there once, and the rows of a cut are one snapshot. One task writes it. If there is no table
    yet, it is created with the columns of the first records. `schema` says what becomes of columns that it lacks:
    "fail", "widen" (they are added) or "ignore".

    Read, the files of a snapshot are divided among tasks: of `snapshot`, or of the latest at the start.

    >>> IcebergTable("lake", "shop.bookings").label
    'bookings'
    """

    catalog: str | Mapping[str, str] = field(repr=False)
    table: str
    snapshot: int | None = None

    def __post_init__(self) -> None:
        table: Any = self.table
        if not isinstance(table, str) or not all(table.split(".")) or table.count(".") < 1:
            raise BadOptionError(f"table {table!r} names no table: write NAMESPACE.TABLE")
        if not self.catalog or not isinstance(self.catalog, (str, Mapping)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadOptionError(f"table {table!r} is given no catalog: give a folder, or properties of a catalog")
        if isinstance(self.catalog, str):
            check_path(self.catalog)
            check_path(table)
            if "/" in table:
                raise BadOptionError(f"table {table!r} has a slash in its name, which names its folder: leave it out")
        super().__post_init__()

    @property
    def label(self) -> str | None:
        return self.table.rpartition(".")[2]

    @property
    def relative_path(self) -> str | None:
        catalog = self.catalog
        return catalog if isinstance(catalog, str) and catalog != absolute_path(catalog) else None

    def absolute(self) -> IcebergTable:
        return self if self.relative_path is None else replace(self, catalog=absolute_path(self.relative_path))

    @property
    def title(self) -> str:
        # Properties may hold a password.
        return f"{self.table!r} of {self.catalog if isinstance(self.catalog, str) else 'its catalog'}"

    def store(self) -> _IcebergStore:
        return _IcebergStore(self)

    def properties(self) -> Mapping[str, str]:
        if not isinstance(self.catalog, str):
            return self.catalog
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.catalog}/{CATALOG}",
            "warehouse": f"file://{self.catalog}",
        }

    @contextmanager
    def connected(self) -> Generator[Any]:
        """The catalog. What it says may pass is an `OSError`: the attempt fails, and the next one tries again."""
        properties = {"name": "default", **self.properties()}
        errors = driver("exceptions")
        passing: tuple[type[Exception], ...] = (
            *(errors.ServerError, errors.ServiceUnavailableError, errors.CommitStateUnknownException),
            *(errors.TooManyRequestsError, package("sqlalchemy.exc", "iceberg").OperationalError),
        )
        try:
            with closing(driver("catalog").load_catalog(properties.pop("name"), **properties)) as catalog:
                yield catalog
        except passing as error:
            raise ConnectionError(f"{self.title} cannot be reached at the moment: {one_line(error)}") from error

    def validate_input(self) -> None:
        table = self.loaded()
        if self.snapshot is not None and table.snapshot_by_id(self.snapshot) is None:
            raise NoInputError(f"table {self.title} has no snapshot {self.snapshot}: it has expired, or never was")

    def version_to_read(self) -> int | None:
        current = self.loaded().current_snapshot()
        return self.snapshot or (None if current is None else current.snapshot_id)

    def open_version(self, version: int) -> Mapping[str, Callable[[], Iterator[Any]]]:
        scan = self.loaded().scan(snapshot_id=version)
        everything = driver("expressions").AlwaysTrue()
        rows = driver("io.pyarrow").ArrowScan(scan.table_metadata, scan.io, scan.projection(), everything)

        def reader(task: Any) -> Callable[[], Iterator[Any]]:
            return lambda: rows.to_record_batches([task])

        return {task.file.file_path: reader(task) for task in scan.plan_files()}

    def moved_to(self, folder: str) -> IcebergTable:
        return replace(self, catalog=folder)

    def loaded(self) -> Any:
        if isinstance(self.catalog, str) and "://" not in self.catalog and not os.path.isdir(self.catalog):
            raise NoInputError(f"there is no catalog {self.catalog}: correct the path")
        errors = driver("exceptions")
        with self.connected() as catalog:
            try:
                return catalog.load_table(self.table)
            except (errors.NoSuchTableError, errors.NoSuchNamespaceError) as error:
                raise NoInputError(f"there is no table {self.title} ({one_line(error)}): correct its name") from error


class _IcebergStore(LakeStore):
    _described: IcebergTable

    def check(self) -> None:
        """Create the table if there is none; columns come with the first rows."""
        catalog, name = self._described.catalog, self._described.table
        if isinstance(catalog, str) and "://" not in catalog:
            make_folder(catalog, f"the catalog {catalog}")
        with self._described.connected() as opened:
            opened.create_namespace_if_not_exists(name.rpartition(".")[0])
            opened.create_table_if_not_exists(name, driver("schema").Schema())

    def opened(self) -> Any:
        return self._described.loaded()

    def schema_of(self, table: Any) -> Any:
        return driver("io.pyarrow").schema_to_pyarrow(table.schema(), include_field_ids=False)

    def marker_of(self, table: Any, place: SinkPlace) -> int | None:
        found = (
            snapshot.summary.additional_properties.get(_property(place))
            for snapshot in driver("table.snapshots").ancestors_of(table.current_snapshot(), table.metadata)
            if snapshot.summary is not None
        )
        return next((int(marker) for marker in found if marker is not None), None)

    def append(self, table: Any, rows: Any, place: SinkPlace, marker: int) -> Any:
        table.metadata.properties["commit.retry.num-retries"] = "0"  # of this copy of the table
        with self._described.connected() as catalog:
            table.catalog = catalog
            try:
                with table.transaction() as transaction:
                    known = {column.name for column in table.schema().columns}
                    if not known.issuperset(rows.schema.names):
                        with transaction.update_schema() as changed:
                            changed.union_by_name(rows.schema)
                    transaction.append(rows, snapshot_properties={_property(place): str(marker)})
            except driver("exceptions").CommitFailedException as error:
                raise ConflictError(one_line(error)) from error
        return table

    def latest_files(self, table: Any) -> Iterable[str]:
        snapshot = table.current_snapshot()
        found = [table.metadata_location, snapshot.manifest_list]
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                entries = manifest.fetch_manifest_entry(table.io)
                found += [manifest.manifest_path, *(entry.data_file.file_path for entry in entries)]
        if isinstance(self._described.catalog, str):
            # Its folder holds the journal of SQLite, which undoes a commit if it comes back after a power cut.
            found.append(f"{self._described.catalog}/{CATALOG}")
        return [file.removeprefix("file://") for file in found]

    def how_to_skip(self, place: SinkPlace, transactions: Sequence[str]) -> str:
        marker = max(map(order_of, transactions))
        return (
            f"execute in Python, with the catalog as `catalog`: t = catalog.load_table({self._described.table!r}); "
            f"t.append(t.schema().as_arrow().empty_table(), snapshot_properties={{{_property(place)!r}: '{marker}'}})"
        )


def _property(place: SinkPlace) -> str:
    return f"backedge.{place.run}.{place.operator}"

"""A table of each format without a run: the test opens its writers, and is another program that works on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from backedge import DeltaTable, IcebergTable
from backedge.engine.io.lakes.lake_table import LakeStore
from tests.databases.sinks_by_hand import place_in

Wrap = Callable[[LakeStore], LakeStore]
"""Changes a store before its writer is opened."""


class Lake:
    """A table in a folder, with the writers of a sink, and another program that works on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened: list[Any] = []

    def described(self, **options: Any) -> Any:
        raise NotImplementedError

    def create(self, schema: pa.Schema) -> None:
        """Another program creates the table."""
        raise NotImplementedError

    def append(self, rows: pa.Table) -> None:
        """Another program commits."""
        raise NotImplementedError

    def read(self) -> pa.Table | None:
        """What another program finds in the table; None if there is none."""
        raise NotImplementedError

    def commits(self) -> int:
        """How many times rows or a marker were committed."""
        raise NotImplementedError

    def markers(self, sink: str) -> list[int]:
        """What a sink has set its marker to, in the order of commits."""
        raise NotImplementedError

    def writer(self, *, attempt: int = 1, wrap: Wrap = lambda store: store, **options: Any) -> Any:
        table, place = self.described(**options), place_in(self.folder, attempt=attempt)
        table.validate_output(place, fresh=False)
        store = wrap(table.store())
        object.__setattr__(table, "store", lambda: store)
        self.opened.append(table.open_writer(place))
        return self.opened[-1]

    def rows(self) -> list[dict[str, Any]]:
        found = self.read()
        return [] if found is None else found.to_pylist()

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())

    def close(self) -> None:
        for writer in self.opened:
            writer.close()


class Delta(Lake):
    @property
    def path(self) -> str:
        return str(self.folder / "lake" / "rows")

    def described(self, **options: Any) -> DeltaTable:
        return DeltaTable(self.path, **options)

    def create(self, schema: pa.Schema) -> None:
        deltalake.DeltaTable.create(self.path, deltalake.Schema.from_arrow(schema))

    def append(self, rows: pa.Table) -> None:
        deltalake.write_deltalake(self.path, rows, mode="append", schema_mode="merge")

    def read(self) -> pa.Table | None:
        if not deltalake.DeltaTable.is_deltatable(self.path):
            return None
        return deltalake.DeltaTable(self.path).to_pyarrow_table()

    def commits(self) -> int:
        return sum(each["operation"] == "WRITE" for each in deltalake.DeltaTable(self.path).history())

    def markers(self, sink: str) -> list[int]:
        actions = [
            json.loads(line)
            for file in sorted(Path(self.path, "_delta_log").glob("*.json"))
            for line in file.read_text().splitlines()
        ]
        return [
            each["txn"]["version"] for each in actions if "txn" in each and each["txn"]["appId"].endswith(f"/{sink}")
        ]


class Iceberg(Lake):
    def described(self, **options: Any) -> IcebergTable:
        return IcebergTable(str(self.folder / "lake"), "shop.rows", **options)

    def load(self) -> Any:
        with self.described().connected() as catalog:
            return catalog.load_table("shop.rows")

    def create(self, schema: pa.Schema) -> None:
        (self.folder / "lake").mkdir()
        with closing(load_catalog("default", **self.described().properties())) as catalog:
            catalog.create_namespace("shop")
            catalog.create_table("shop.rows", schema)

    def append(self, rows: pa.Table) -> None:
        with self.described().connected() as catalog:
            table = catalog.load_table("shop.rows")
            with table.transaction() as transaction:
                with transaction.update_schema() as changed:
                    changed.union_by_name(rows.schema)
                transaction.append(rows)

    def read(self) -> pa.Table | None:
        if not (self.folder / "lake" / "shop").exists():
            return None
        return self.load().scan().to_arrow() if self.load().schema().columns else None

    def commits(self) -> int:
        return len(self.load().history())

    def markers(self, sink: str) -> list[int]:
        summaries = [snapshot.summary.additional_properties for snapshot in self.load().snapshots()]
        return [int(of[name]) for of in summaries for name in of if name.endswith(f".{sink}")]


@pytest.fixture(params=[Delta, Iceberg])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with closing(request.param(tmp_path)) as made:
        yield made


def records(*ids: int) -> list[dict[str, Any]]:
    return [{"id": each, "name": f"n{each}"} for each in ids]


def by_hand(*ids: int) -> pa.Table:
    """Rows of another program."""
    return pa.Table.from_pylist(records(*ids))


def around_append(before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None) -> Wrap:
    """Do something around each commit of rows."""

    def wrap(store: LakeStore) -> LakeStore:
        append = store.append

        def appended(*given: Any) -> Any:
            before()
            found = append(*given)
            after()
            return found

        store.append = appended  # type: ignore[method-assign]
        return store

    return wrap


def unmarked(store: LakeStore) -> LakeStore:
    """A store that finds no marker: the rule is broken on purpose."""
    store.marker_of = lambda table, place: None  # type: ignore[method-assign]
    return store

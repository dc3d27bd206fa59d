"""One PostgreSQL server for the tests of a process, and a schema of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.databases.postgres_process import PostgresProcess

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def postgres(own_home_and_temporary_folder: None) -> Iterator[PostgresProcess]:
    server = PostgresProcess()
    yield server
    server.remove()


@pytest.fixture
def schema(postgres: PostgresProcess) -> Iterator[str]:
    name = f"test_{next(_NUMBERS)}"
    postgres.execute(f"CREATE SCHEMA {name}")
    yield name
    for gid in postgres.prepared():
        postgres.execute(f"ROLLBACK PREPARED '{gid}'")
    postgres.execute(f"DROP SCHEMA {name} CASCADE")

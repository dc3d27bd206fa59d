"""One Redis server for the tests of a process, and a key of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tests.redis_keys.redis_process import RedisProcess

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def server(own_home_and_temporary_folder: None) -> Iterator[RedisProcess]:
    with RedisProcess() as made:
        yield made


@pytest.fixture
def key() -> str:
    return f"key {next(_NUMBERS)}"

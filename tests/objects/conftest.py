"""One server of each kind for all tests; each test gets a place of its own in the bucket, and no faults at first."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from backedge.recovery.stores.object_client import Repeats
from backedge.recovery.stores.object_store import ObjectStore
from tests.gates import HANG_S
from tests.objects.faulty_http import FaultyServer
from tests.objects.object_servers import BUCKET, ObjectServer, azure_server, s3_server

SERVERS = {"s3": s3_server, "az": azure_server}
QUICK = Repeats(request_s=HANG_S, times=3, pause_s_first=0.001, pause_s_max=0.01)
"""Repeats what has failed at once."""
IMPATIENT = replace(QUICK, request_s=1.0)
"""Also what has no answer soon."""


@dataclass
class Place:
    location: str
    proxy: FaultyServer

    def open(self, repeats: Repeats = QUICK) -> ObjectStore:
        return ObjectStore(self.location, repeats)


@pytest.fixture(scope="session")
def s3() -> Iterator[ObjectServer]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def az() -> Iterator[ObjectServer]:
    with azure_server() as server:
        yield server


@pytest.fixture(params=SERVERS)
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place on each of the servers in turn."""
    server: ObjectServer = request.getfixturevalue(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield Place(f"{server.scheme}://{BUCKET}/{secrets.token_hex(4)}", server.proxy)
    server.proxy.reset()

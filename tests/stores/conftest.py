"""A job that has begun, for the tests of its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge.recovery.stores.cut_store import CutStore
from tests.stores.snapshots import begun


@pytest.fixture
def store(tmp_path: Path) -> CutStore:
    return begun(tmp_path)

"""Checks for the tests of packages that extend Backedge.

from backedge.testing import check_store

def test_it_is_a_store(tmp_path):
    check_store(lambda: MyStore(f"mine://{tmp_path}/files"))
"""

from __future__ import annotations

from backedge.recovery.stores.store_guarantees import check_store

__all__ = ["check_store"]

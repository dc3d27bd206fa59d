"""Checks for the tests of packages that extend Backedge.

from itertools import count

from backedge.testing import check_sink, check_source, check_store

def test_it_is_a_source():
    check_source(MySource("queue"), records=range(100))

def test_it_is_a_sink(tmp_path):
    number = count()
    check_sink(lambda: MySink(f"{tmp_path}/{next(number)}"), lambda sink: sink.published())

def test_it_is_a_store(tmp_path):
    check_store(lambda: MyStore(f"mine://{tmp_path}/files"))
"""

from __future__ import annotations

from backedge.engine.io.contracts.sink_contract import check_sink
from backedge.engine.io.contracts.source_contract import check_source
from backedge.recovery.stores.store_guarantees import check_store

__all__ = ["check_sink", "check_source", "check_store"]

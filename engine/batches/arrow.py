"""The parts of pyarrow that files need, imported when first used: a flow without files does not wait for them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

# pyarrow ships no types: what comes from it is `Any`, here and nowhere else by import.


@cache
def arrow() -> Any:
    return import_module("pyarrow")


@cache
def filesystems() -> Any:
    return import_module("pyarrow.fs")


@cache
def parquet() -> Any:
    return import_module("pyarrow.parquet")

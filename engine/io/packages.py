"""Packages that come with an extra of Backedge: imported when first used, so that others do not wait for them."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from backedge.graphs.graph_errors import BadOptionError


@cache
def package(name: str, extra: str) -> Any:
    """A module of such a package."""
    try:
        return import_module(name)
    except ImportError as error:
        raise BadOptionError(f"{name} does not import ({error}): pip install 'backedge[{extra}]'") from error

"""Refuses to run with foreign packages in the place of our own.

`engine`, `graphs` and `recovery` are common names: a folder of that name beside a user's script comes first on
`sys.path` and would be imported instead of ours, to fail much later and far from the cause.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path

OWN_PACKAGES = ("graphs", "recovery", "engine")
"""In the order in which they build on one another."""


class ImportShadowError(ImportError):
    """A package of backedge's own is hidden by a foreign one of the same name.

    Fix: rename the folder or the package that the message names.

    >>> raise ImportShadowError("backedge needs its own package 'graphs' ...")
    Traceback (most recent call last):
    backedge.shadow.ImportShadowError: backedge needs its own package 'graphs' ...
    """


def check_own_packages(home: Path, names: Iterable[str] = OWN_PACKAGES) -> None:
    """Raises `ImportShadowError` unless every package of `names` comes from the folder `home`.

    `home` is the folder that holds `backedge` itself: site-packages, or the checkout of an editable installation.

    >>> check_own_packages(Path(__file__).resolve().parent.parent)
    """
    for name in names:
        expected = home / name
        found = _location(name)
        if found is None:
            raise ImportShadowError(
                f"backedge needs its own package {name!r}, and Python finds none of that name: "
                f"it belongs at {expected}. The installation is "
                "incomplete: python -m pip install --force-reinstall backedge",
                name=name,
            )
        if found != expected.resolve():
            raise ImportShadowError(
                f"backedge needs its own package {name!r} at {expected}, but Python finds a foreign one: {found}. "
                f"It comes first on sys.path, or was imported before. Rename it, or take {found.parent} off sys.path "
                "(PYTHONPATH, the folder of the script, the current folder)",
                name=name,
                path=str(found),
            )


def _location(name: str) -> Path | None:
    """The folder or file that `import name` gives, without importing it."""
    spec = _spec(name)
    if spec is None:
        return None
    # A folder without __init__.py has no origin, and shadows an editable installation all the same.
    folders = list(spec.submodule_search_locations or ())
    found = folders[0] if folders else spec.origin
    return Path(found).resolve() if found else None


def _spec(name: str) -> ModuleSpec | None:
    # A module made by hand may have no spec, for which find_spec would raise a ValueError that names nothing.
    loaded = sys.modules.get(name)
    return loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)

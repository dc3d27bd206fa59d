"""Refuses relative paths in a submitted job.

`ray job submit` runs its command in a temporary copy of the working folder, and other processes of the run in other
copies. Cuts and output written there would disappear with the job, and input that git ignores would be missing in the
copy. So only absolute paths and URIs are accepted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.io import Sink, Source
from backedge.graphs.plan import Plan

_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray sets this for the command of a submitted job, and for no other process."""


class RelativePathError(BadOptionError):
    """A relative path in a submitted job."""


def is_submitted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the command of a submitted job.

    >>> is_submitted({"RAY_ADDRESS": "auto"})
    False
    """
    return _SUBMITTED in environment


def check_path(what: str, path: str, others: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Raise `RelativePathError` for a relative path in a submitted job. `others` names further URIs that would work.

    >>> check_path("--snapshots", "cuts", environment={})
    """
    if not is_submitted(environment) or "://" in path or os.path.isabs(path):
        return
    name = PurePosixPath(path).name or "NAME"
    raise RelativePathError(
        f"{what} {path!r} is relative, but this is a submitted job, which runs in a temporary copy of its folder: "
        f"give the absolute path, such as /FOLDER/{name}, or a URI, file:///FOLDER/{name}{others and others + name}"
    )


def checked_paths(
    plan: Plan, snapshots: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ
) -> Plan:
    """Return the plan; raise `RelativePathError` if a submitted job keeps cuts, reads or writes at a relative path."""
    if snapshots is not None:
        check_path("snapshots", os.fspath(snapshots), environment=environment)
    for operator in plan.operators.values():
        described: Any = operator.function
        if isinstance(described, Source | Sink) and (path := described.relative_path) is not None:
            is_source = operator.kind.is_source
            what = f"{'source' if is_source else 'sink'} {operator.name!r} {'reads' if is_source else 'writes'}"
            check_path(what, path, " or s3://BUCKET/" if is_source else "", environment)
    return plan

"""Paths in a submitted job: relative ones lead nowhere.

`ray job submit` runs its command in a temporary copy of the working folder, and other processes of the run in other
copies. Cuts and output that were written there would be gone with the job, and input would be missing in the copy
where git ignores it. So only an absolute path or a URI will do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from graphs.graph_errors import BadOptionError
from graphs.io import Sink, Source
from graphs.plan import Plan

_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray gives this to the command of a submitted job, and to no other process."""


class RelativePathError(BadOptionError):
    """A relative path in a submitted job."""


def is_submitted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is the command of a submitted job.

    >>> is_submitted({"RAY_ADDRESS": "auto"})
    False
    """
    return _SUBMITTED in environment


def check_path(what: str, path: str, others: str = "", environment: Mapping[str, str] = os.environ) -> None:
    """Raise `RelativePathError` for a relative path in a submitted job. `others` names URIs that would do, too.

    >>> check_path("--snapshots", "cuts", environment={})
    """
    if not is_submitted(environment) or "://" in path or os.path.isabs(path):
        return
    name = PurePosixPath(path).name or "NAME"
    raise RelativePathError(
        f"{what} {path!r} is relative, and this is a submitted job, which runs in a temporary copy of its folder: "
        f"give the absolute path, such as /FOLDER/{name}, or a URI, file:///FOLDER/{name}{others and others + name}"
    )


def checked_paths(
    plan: Plan, snapshots: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ
) -> Plan:
    """The plan; `RelativePathError` if a submitted job keeps cuts, reads or writes at a relative path."""
    if snapshots is not None:
        check_path("snapshots", os.fspath(snapshots), environment=environment)
    for operator in plan.operators.values():
        described: Any = operator.function
        if isinstance(described, Source | Sink) and (path := described.relative_path) is not None:
            is_source = operator.kind.is_source
            what = f"{'source' if is_source else 'sink'} {operator.name!r} {'reads' if is_source else 'writes'}"
            check_path(what, path, " or s3://BUCKET/" if is_source else "", environment)
    return plan

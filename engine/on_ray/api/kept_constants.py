"""The constants of a run that starts: taken from the cut that it continues from, or encoded and kept for its cuts.

Values are compared before anything is claimed or written (`values_of`), and written when nothing else can refuse the
run (`keep`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from backedge.engine.batches.constant_bytes import constant_bytes
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.constant import Constant
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.plan import Plan
from backedge.graphs.task_errors import describe
from backedge.recovery.restore.graph_change import ConstantChange, GraphMismatchError
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.digests import digest_of_constant
from backedge.recovery.stores.task_files import StoredFile


@dataclass(frozen=True)
class Values:
    """The constants of a run, by name: files that the cut names, and the bytes of those that it does not name."""

    files: Mapping[str, StoredFile]
    encoded: Mapping[str, bytes]


def given_values(plan: Plan) -> dict[str, bytes]:
    """The bytes of the constants that were given as values."""
    return {name: _encoded(constant) for name, constant in plan.constants.items() if not constant.is_loaded}


def digests_of(values: Mapping[str, bytes]) -> dict[str, str]:
    """The digests by which cuts name these values."""
    return {name: digest_of_constant(data) for name, data in values.items()}


def constant_change(
    given: Mapping[str, bytes], of_cut: Mapping[str, StoredFile], dropped: Collection[str]
) -> ConstantChange:
    """The change from the constants of a cut to those that a flow gives as values."""
    return ConstantChange({name: file.digest for name, file in of_cut.items()}, digests_of(given), dropped)


def values_of(
    plan: Plan, given: Mapping[str, bytes], of_cut: Mapping[str, StoredFile], dropped: Collection[str]
) -> Values:
    """The constants of a flow that continues from a cut with these. Loaders are called for those that it lacks.

    Raises `GraphMismatchError` if one was given another value than that of the cut, or is not in the flow any more,
    and it is not among those that are dropped.
    """
    kept = {name: file for name, file in of_cut.items() if name not in dropped}
    for problem in constant_change(given, of_cut, dropped).problems(plan):
        raise GraphMismatchError(problem)
    files, encoded = dict(kept), dict[str, bytes]()
    for name, constant in plan.constants.items():
        if name in kept:
            continue
        data = given[name] if name in given else _encoded(constant)
        if name in of_cut and of_cut[name].digest == digest_of_constant(data):
            # It was dropped for this value by an earlier call.
            files[name] = of_cut[name]
        else:
            encoded[name] = data
    return Values(files, encoded)


def _encoded(constant: Constant[Any]) -> bytes:
    what = f"constant {constant.name!r} of flow {constant.flow!r}"
    try:
        value = constant.made()
    except Exception as error:
        error.add_note(f"raised by load= of {what}")
        raise
    try:
        return constant_bytes(value)
    except Exception as error:
        raise BadOptionError(
            f"{what} cannot travel to another process, because its value does not pickle ({describe(error)}): make it "
            "of arrays, tables and plain values"
        ) from error


def keep(values: Values, options: TaskOptions, run: str) -> dict[str, StoredFile]:
    """Keep the new values beside the cuts of a run. Returns the files of all constants."""
    if options.root is None or not values.encoded:
        return dict(values.files)
    store = CutStore(options.root, options.job, options.key)
    return {
        **values.files,
        **dict(zip(values.encoded, store.constants.keep(values.encoded.values(), run), strict=True)),
    }


def held(values: Values, options: TaskOptions) -> dict[str, cluster.Pending]:
    """The values of a run without cuts, as references that last as long as this process."""
    return {name: cluster.put(data) for name, data in values.encoded.items()} if options.root is None else {}

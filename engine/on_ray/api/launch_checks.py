"""Checks before anything runs: whether input, output and cuts are in the right place and usable."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from engine.files.checks import check_sink, check_source, claim_output
from engine.on_ray.api.cut_lookup import find_cut, last_cut
from engine.on_ray.job_store import open_services
from engine.on_ray.run_options import RunOptions
from engine.on_ray.transport.control_messages import TaskOptions
from graphs.graph_errors import BadOptionError
from graphs.ids import Attempt, Epoch
from graphs.kinds import Read, Write
from graphs.plan import Operator, Plan
from recovery.graph_change import GraphChange, change_from, fitted
from recovery.stores.cut_store import CutStore
from recovery.stores.folder_store import local_path
from recovery.stores.store_schemes import scheme_of, store_opener


class RunExistsError(ValueError):
    """The folder for the cuts already holds a run of this name. `fact` is the message without the fix."""

    def __init__(self, fact: str) -> None:
        super().__init__(fact)
        self.fact = fact

    def __str__(self) -> str:
        return f'{self.fact}: continue it with resume="latest", give another folder, or remove this one'


def with_absolute_paths(plan: Plan) -> Plan:
    """The same plan with absolute paths, for processes that run in another folder."""
    return replace(plan, operators={name: _absolute(operator) for name, operator in plan.operators.items()})


def _absolute(operator: Operator) -> Operator:
    if isinstance(operator.kind, Read):
        return replace(operator, kind=Read(operator.kind.source.absolute()))
    if isinstance(operator.kind, Write):
        return replace(operator, kind=Write(operator.kind.sink.absolute()))
    return operator


def check_location(given: str) -> None:
    """Raise an `UnknownStoreError` unless cuts can be kept at a path or URI."""
    store_opener(given)


def storage_location(given: str, hosts: int) -> str:
    """The absolute path or the URI where cuts are kept, which all processes must be able to reach.

    >>> storage_location("file:///shared/cuts", hosts=3), storage_location("s3://bucket/cuts/", hosts=3)
    ('/shared/cuts', 's3://bucket/cuts')
    """
    if "://" not in given and hosts > 1:
        raise BadOptionError(
            f"snapshots={given!r} is a folder of one host, but the cluster has {hosts}: give one that all have "
            "mounted, and confirm this by writing it as file:///FOLDER"
        )
    return local_path(given) if scheme_of(given) == "file" else given.rstrip("/")


class Beginning(NamedTuple):
    """Where a run begins: fresh, or with a cut, whose graph may have changed since.

    `finished`: the cut, if every task had ended in it. All that can be left to do is to publish what a crash kept back.
    """

    is_fresh: bool
    change: GraphChange | None = None
    finished: Epoch | None = None


def beginning_of(plan: Plan, options: TaskOptions, run: RunOptions) -> Beginning:
    """Where the run begins. Raises if the folder holds a run that `resume` does not ask for or fit."""
    if options.root is None:
        return Beginning(is_fresh=True)
    cut = None if isinstance(run.resume, str) else find_cut(options.root, options.job, run.resume, options.key)
    store = CutStore(options.root, options.job, options.key)
    store.probe()
    if not store.holds_a_run:
        return Beginning(is_fresh=True)
    if run.resume == "never":
        raise RunExistsError(f"{store.path} already contains a run of {options.job!r}")
    if run.resume == "latest" and (latest := last_cut(store)) is not None:
        cut = store.manifest_of(latest)
    if cut is None:
        return Beginning(is_fresh=False)
    finished = cut.epoch if all(task.ended for task in cut.outline.tasks.values()) else None
    change = None
    if cut.graph_hash != plan.hash:
        change = change_from(cut.graph_hash, store.graph(cut.graph_hash), run.rename or {}, frozenset(run.drop))
        fitted(cut.outline, plan, change)
    return Beginning(is_fresh=False, change=change, finished=finished)


def check_input(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Raise unless all input exists; return the splits of the sources that list them."""
    sources = (operator for operator in plan.operators.values() if operator.kind.is_source)
    found = {operator.name: check_source(operator) for operator in sources}
    return {name: splits for name, splits in found.items() if splits is not None}


def check_output(plan: Plan, options: TaskOptions, fresh: bool) -> None:
    """Raise unless all output is writable; then claim the output folders for this run.

    Checks before the claim, so that a refused run claims nothing, and after it, when no other run can start any more.
    """
    services = open_services(options, lambda sink, transaction, records: None, Attempt(0))
    sinks = [(operator, services.place(operator)) for operator in plan.operators.values() if operator.kind.is_sink]
    for operator, place in sinks:
        check_sink(operator, place, fresh)
    claim_output(sinks)
    for operator, place in sinks:
        check_sink(operator, place, fresh)

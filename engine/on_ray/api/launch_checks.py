"""Checks before anything runs: whether input, output and cuts are in the right place and usable."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from typing import NamedTuple

from msgspec.structs import replace

from backedge.engine.io.files.checks import check_sink, check_source, claim_output
from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.cut_lookup import cuts_with, find_cut, last_cuts, read_cut
from backedge.engine.on_ray.job_store import open_services
from backedge.engine.on_ray.run_options import RunOptions
from backedge.engine.on_ray.supervisor.settled_input import reader_name, settling_sources
from backedge.engine.on_ray.transport.control_messages import TaskOptions
from backedge.graphs.discovery import FindSplits, ReadSplits
from backedge.graphs.expansion import expand
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.kinds import Read, Write
from backedge.graphs.pipelines import pipelines_of
from backedge.graphs.plan import Operator, Plan
from backedge.graphs.public import public
from backedge.recovery.protocol.chain_view import read_pipelines
from backedge.recovery.restore.graph_change import GraphChange, GraphMismatchError, change_from, dropping_again, fitted
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import local_path
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.run_status import RunStatus
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import scheme_of
from backedge.recovery.stores.task_files import StoredFile

_IMPORTING = "<frozen importlib._bootstrap"
"""Begins the names of the files whose frames are on the stack while a module is imported."""


@public
class RunExistsError(ValueError):
    """The folder for the cuts already holds a run of this name. `fact` is the message without the fix.

    Fix: continue that run with `resume="latest"`, or choose another folder or another name of the flow.
    """

    def __init__(self, fact: str) -> None:
        super().__init__(fact)
        self.fact = fact

    def __str__(self) -> str:
        return f'{self.fact}: continue it with resume="latest", give another folder, or remove this one'


def with_absolute_paths(plan: Plan) -> Plan:
    """The same plan with absolute paths, for processes that run in another folder."""
    return replace(plan, operators={name: _absolute(operator) for name, operator in plan.operators.items()})


def _absolute(operator: Operator) -> Operator:
    kind = operator.kind
    if isinstance(kind, Read | FindSplits):
        return replace(operator, kind=dataclasses.replace(kind, source=kind.source.absolute()))
    if isinstance(kind, Write):
        return replace(operator, kind=Write(kind.sink.absolute()))
    return operator


def with_begun_sources(plan: Plan, options: RunOptions, what: str) -> Plan:
    """The same plan, in which the sources that keep records until no cut needs them know this flow as a reader."""
    found = settling_sources(plan)
    if not found:
        return plan
    if options.snapshots is None:
        raise BadOptionError(
            f"{what} reads {', '.join(map(repr, found.values()))}, which its cuts free: give it snapshots="
        )
    cluster.connect(must_exist=options.detached)
    operators = dict(plan.operators)
    for name, operator in plan.operators.items():
        if name in found and isinstance(operator.kind, Read):
            begun = found[name].begin_run(reader_name(plan.name, name))
            operators[name] = replace(operator, kind=dataclasses.replace(operator.kind, source=begun))
    return replace(plan, operators=operators)


def check_kept(plan: Plan, options: RunOptions, what: str) -> None:
    """Raise unless the operators whose inputs are to be kept exist, and can be run again."""
    if not options.keep_inputs:
        return
    given = f"{what} has keep_inputs={list(options.keep_inputs)!r}, and"
    chains = {
        name: task.operators for task in expand(plan, options.parallelism).tasks.values() for name in task.operators
    }
    for name in options.keep_inputs:
        if name not in plan.operators:
            raise BadOptionError(
                f"{given} no operator {name!r}: its operators are {', '.join(map(repr, plan.operators))}"
            )
        finding = [each for each in chains[name] if isinstance(plan.operators[each].kind, FindSplits | ReadSplits)]
        if finding:
            with_it = "" if name in finding else f", in one task with {name!r}; rebalance() puts them into two"
            raise BadOptionError(
                f"{given} {finding[0]!r} finds what it reads while it runs, so its inputs do not say what it did"
                f"{with_it}: leave {name!r} out"
            )


def check_no_output_arrives(plan: Plan, what: str) -> None:
    """Raise if a source of the flow would find what one of its sinks writes."""
    operators = plan.operators.items()
    sources = {name: each.kind.source for name, each in operators if isinstance(each.kind, ReadSplits)}
    sinks = {name: each.kind.sink for name, each in operators if isinstance(each.kind, Write)}
    for (name, source), (written, sink) in product(sources.items(), sinks.items()):
        if source.would_find(sink):
            raise BadOptionError(
                f"{what} would read again what sink {written!r} writes, because source {name!r} reads all that arrives "
                "there: write to another place, which is not below that of the source"
            )


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


class PipelineBeginning(NamedTuple):
    """Where a pipeline begins: with a cut, whose graph may have changed since, or at the beginning.

    - resume_from: the cut, if the user has chosen it. change: what has changed since the cut, if its graph differs.
    - finished: the cut, if every task had ended in it. All that can be left to do is to publish what a crash kept back.
    """

    plan: Plan
    resume_from: Epoch | None = None
    change: GraphChange | None = None
    finished: Epoch | None = None


class Beginning(NamedTuple):
    """Where a run begins, and its pipelines. `is_fresh`: no run of the job has begun before.

    `constants`: those of its cuts, by name. `loaded`: those whose value in the cuts was loaded in place of one that was
    dropped. `kept`: the status that the last run of the job has kept. `given_up`: pipelines whose cuts are dropped.
    """

    is_fresh: bool
    pipelines: tuple[PipelineBeginning, ...]
    constants: Mapping[str, StoredFile] = {}
    loaded: frozenset[str] = frozenset()
    kept: RunStatus | None = None
    given_up: frozenset[str] = frozenset()

    @property
    def finished(self) -> Epoch | None:
        """The last cut, if there is nothing left to do."""
        ends = [pipeline.finished for pipeline in self.pipelines]
        return None if None in ends else max(end for end in ends if end is not None)


def beginning_of(plan: Plan, options: TaskOptions, run: RunOptions) -> Beginning:
    """Where the run begins. Raises if the folder holds a run that `resume` does not ask for or fit."""
    if options.root is None:
        return Beginning(True, (PipelineBeginning(plan),))
    chosen = None if isinstance(run.resume, str) else find_cut(options.root, options.job, run.resume, options.key)
    store = CutStore(options.root, options.job, options.key)
    store.probe()
    if not store.holds_a_run:
        return Beginning(True, tuple(map(PipelineBeginning, divided(plan, run, frozenset()))))
    if run.resume == "never":
        raise RunExistsError(f"{store.path} already contains a run of {options.job!r}")
    parts = divided(plan, run, frozenset(entry.pipeline for entry in store.chain()))
    asked = {} if chosen is None else cuts_with(store, chosen.epoch)
    cuts = {name: read_cut(store, epoch) for name, epoch in {**last_cuts(store), **asked}.items()}
    if parts[0].pipeline is not None:
        parts = with_former_names(parts, {name: frozenset(cut.parallelism) for name, cut in cuts.items()}, run)
    known = known_names(plan, cuts.values()) | _check_waiting_output(plan, store, asked, run)
    pipelines = tuple(_begin(part, cuts.get(part.pipeline), known, asked, store, run) for part in parts)
    dropped = [cut.dropped for cut in cuts.values()]
    loaded = {name for name, constant in plan.constants.items() if constant.is_loaded and dropped}
    loaded_before = frozenset(loaded.intersection(*dropped))
    gone = frozenset(name for name in cuts if name is not None) - {part.pipeline for part in parts}
    constants = _constants(list(cuts.values()), run)
    return Beginning(False, pipelines, constants, loaded_before, _kept_status(store), gone)


def _kept_status(store: CutStore) -> RunStatus | None:
    try:
        return store.kept_status()
    except (OSError, StoreError):
        return None  # it is information, and the supervisor says why it cannot be read


def _constants(cuts: Sequence[CutDescription], run: RunOptions) -> dict[str, StoredFile]:
    """The constants of these cuts, of different pipelines."""
    found: dict[str, StoredFile] = {}
    for cut in cuts:
        for name, file in cut.constants.items():
            if found.setdefault(name, file).digest != file.digest and name not in run.drop:
                raise GraphMismatchError(
                    f"constant {name!r} has one value in cut {cut.epoch} and another in that of another pipeline: go "
                    f"on with the value of the flow by --drop {name} (drop=)"
                )
    return found


def _begin(
    plan: Plan,
    cut: CutDescription | None,
    known: frozenset[str],
    asked: Mapping[str | None, Epoch],
    store: CutStore,
    run: RunOptions,
) -> PipelineBeginning:
    if cut is None:
        return PipelineBeginning(plan)
    change = None
    renamed, dropped = changes_of(cut, known, run.rename or {}, run.drop)
    if renamed or dropped or cut.graph_hash != plan.hash:
        change = change_from(cut.graph_hash, store.graph(cut.graph_hash), renamed, dropped)
        change = dropping_again(change, plan, run.drop)
        fitted(cut.outline, plan, change)
    finished = cut.epoch if all(task.ended for task in cut.outline.tasks.values()) else None
    return PipelineBeginning(plan, asked.get(plan.pipeline), change, finished)


def _check_waiting_output(
    plan: Plan, store: CutStore, asked: Mapping[str | None, Epoch], run: RunOptions
) -> frozenset[str]:
    """Raise unless the flow has the sinks of what is published first, or their output is dropped. Returns the sinks."""
    found: set[str] = set()
    sinks = {name for name, operator in plan.operators.items() if operator.kind.is_sink}
    for name, reader in read_pipelines(store.numbered()).items():
        restored = asked.get(name, reader.continues_from)
        waiting = reader.published_before(restored).keys()
        found |= waiting
        for sink in sorted(waiting - sinks - set(run.drop)):
            raise GraphMismatchError(
                f"epoch {reader.last_cut}, the latest cut, lists output of sink {sink!r}, which is to be published "
                f"before the run goes back to epoch {restored}, and the flow has no such sink: give that output up "
                f"with --drop {sink} (drop=), or resume with a flow that has the sink"
            )
    return frozenset(found)


def known_names(plan: Plan, cuts: Collection[CutDescription]) -> frozenset[str]:
    """The names that drop= and rename= may contain: those of the cuts, and of what was given up before them."""
    names = ({*cut.parallelism, *cut.constants, *cut.dropped} for cut in cuts)
    return frozenset(plan.constants).union(*names)


def changes_of(
    cut: CutDescription, known: frozenset[str], renames: Mapping[str, str], drops: Collection[str]
) -> tuple[dict[str, str], frozenset[str]]:
    """The operators of a cut that are renamed or dropped; a name that is not `known` is left in, and refused later.

    What was renamed or dropped before the cut was taken is not again: the same command continues its own cuts. See
    `dropping_again`, too.
    """
    renamed = {name: new for name, new in renames.items() if name in cut.parallelism or not known & {name, new}}
    dropped = frozenset(drops) - cut.dropped - cut.constants.keys()
    return renamed, frozenset(name for name in dropped if name in cut.parallelism or name not in known)


def divided(plan: Plan, run: RunOptions, former: Collection[str | None]) -> tuple[Plan, ...]:
    """The pipelines that a flow is run as: what its former cuts were taken of decides, unless `scope` does.

    `former` are the pipelines in the chain of the job; None stands for the whole job.
    """
    what, named = f"flow {plan.name!r}", sorted(name for name in former if name is not None)
    is_whole = run.scope == "job" or plan.stop_when is not None
    if run.scope == "pipeline" and plan.stop_when is not None:
        raise BadOptionError(
            f"{what} has stop_when, which is about cuts of the whole flow, and scope='pipeline': give it scope='job'"
        )
    if is_whole and named:
        why = "scope='job'" if run.scope == "job" else "stop_when"
        raise BadOptionError(
            f"{what} has {why}, and its cuts were taken of pipelines ({', '.join(named)}): leave that out, or give the "
            "run another folder"
        )
    parts = (plan,) if is_whole else pipelines_of(plan, is_divided=bool(named))
    if None in former and len(parts) > 1:
        if run.scope == "pipeline":
            raise BadOptionError(
                f"{what} has scope='pipeline', and its cuts were taken of the whole flow: give it scope='job', or "
                "another folder"
            )
        return (plan,)
    return parts


def with_former_names(
    parts: Sequence[Plan], former: Mapping[str | None, frozenset[str]], run: RunOptions
) -> tuple[Plan, ...]:
    """The pipelines, named after the former ones that had their operators (`former`: name -> operators of its cut).

    Raises `GraphMismatchError` if two former pipelines are connected now, one has come apart, or one is gone.
    """
    renamed, dropped = run.rename or {}, frozenset(run.drop)
    operators = {name: {renamed.get(each, each) for each in had - dropped} for name, had in former.items()}
    found: list[Plan] = []
    taken: dict[str | None, Plan] = {}
    for part in parts:
        matches = [name for name, had in operators.items() if had & part.operators.keys()]
        if len(matches) > 1:
            raise GraphMismatchError(
                f"pipelines {', '.join(map(repr, matches))} had cuts of their own, and are connected in this flow: "
                "keep them apart, or start from the beginning in another folder"
            )
        if matches and matches[0] in taken:
            raise GraphMismatchError(
                f"pipeline {matches[0]!r} had cuts that hold operators of two pipelines of this flow: keep them "
                "connected, drop operators of one with drop=, or start from the beginning in another folder"
            )
        if matches:
            part = replace(part, pipeline=matches[0])
        elif operators.get(part.pipeline):
            part = replace(part, pipeline=f"{part.pipeline}+")
        taken[part.pipeline] = part
        found.append(part)
    for name, had in operators.items():
        if had and name not in taken:
            raise GraphMismatchError(
                f"pipeline {name!r} had cuts, and this flow has none of its operators: {', '.join(sorted(had))}; give "
                "up their state with drop=, or keep them"
            )
    return tuple(found)


def check_no_import(what: str) -> None:
    """Raise if the run is started by the import of a module.

    The processes of the run import the modules of its functions. If that started another run, whose processes did the
    same, there would be no end to it.
    """
    frame, module = inspect.currentframe(), ""
    while frame is not None:
        if frame.f_code.co_name == "<module>":
            module = module or frame.f_globals["__name__"]
        elif frame.f_code.co_filename.startswith(_IMPORTING):
            raise BadOptionError(
                f"{what} is started while module {module!r} is imported, and the processes of the run import it, too: "
                "start it under  if __name__ == '__main__':  and write the flow above that"
            )
        frame = frame.f_back


def check_input(plan: Plan) -> dict[str, tuple[str, ...]]:
    """Raise unless all input exists; return the splits of the sources that list them."""
    sources = (operator for operator in plan.operators.values() if operator.kind.is_source)
    found = {operator.name: check_source(operator) for operator in sources}
    return {name: splits for name, splits in found.items() if splits is not None}


def check_output(plan: Plan, options: TaskOptions, fresh: bool, *, is_replaced: bool = False) -> None:
    """Raise unless all output is writable; then claim the output folders for this run.

    If output is to be replaced, also raise unless all sinks can remove what they have published.

    Checks before the claim, so that a refused run claims nothing, and after it, when no other run can start any more.
    """
    services = open_services(options, lambda sink, transaction, records: None, Attempt(0))
    sinks = [(operator, services.place(operator)) for operator in plan.operators.values() if operator.kind.is_sink]
    for operator, place in sinks:
        if is_replaced and not operator.function.can_withdraw(place):
            raise BadOptionError(
                f"sink {operator.name!r} ({type(operator.function).__name__}) cannot remove what it has published: "
                "leave replace_output out, which publishes again what was published after the cut"
            )
        check_sink(operator, place, fresh)
    claim_output(sinks)
    for operator, place in sinks:
        check_sink(operator, place, fresh)


@contextmanager
def released_if_it_fails(plan: Plan, options: TaskOptions) -> Generator[None]:
    """Release the output that a run without cuts has claimed, if its start fails: nobody can resume it."""
    try:
        yield
    except BaseException:
        services = open_services(options, lambda sink, transaction, records: None, Attempt(0))
        for operator in plan.operators.values() if options.root is None else ():
            if operator.kind.is_sink:
                with suppress(Exception):  # why the start has failed is what must be told
                    services.release(operator)
        raise

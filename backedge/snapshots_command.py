"""`backedge snapshots`: list the cuts of a job, show one, compare two, delete one. Only `delete` writes anything."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from msgspec import to_builtins
from msgspec.structs import asdict, replace

from backedge.arguments import key_from
from backedge.engine.on_ray.api.cut_lookup import last_cuts
from backedge.engine.on_ray.api.kept_constants import constant_change, given_values
from backedge.engine.on_ray.api.launch_checks import changes_of, known_names
from backedge.flows import WrongCallError, flow_at, settings_in
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.ids import Epoch, TaskId
from backedge.graphs.pipelines import pipelines_of
from backedge.graphs.plan import Plan
from backedge.graphs.wording import counted, printable
from backedge.inspecting.cut_contents import CutContents
from backedge.inspecting.cut_diff import CutDiff, diff_of
from backedge.inspecting.jobs import Jobs, cut_of, living
from backedge.printing import print_table, refuse, shortened
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.restore.graph_change import (
    Difference,
    GraphChange,
    change_from,
    difference,
    dropping_again,
    fitted,
)
from backedge.recovery.restore.plan import fitting, plan_restore
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.job_identity import jobs_in
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.older_cuts import with_divisible_cut
from backedge.recovery.stores.store_errors import StoreError
from backedge.recovery.stores.store_schemes import store_at
from backedge.recovery.stores.task_files import StoredFile
from backedge.run_flags import new_names

Facts = dict[str, Any]

KEYS_SHOWN = 20
SHOWN_CHARACTERS = 60

REFUSED = (WrongCallError, GraphError, StoreError, OSError)
"""A `GraphError`: the folder's name can be no job's."""


def list_cuts(options: argparse.Namespace) -> int:
    """`backedge snapshots list`: all cuts, oldest first. Exits with 1 if a job cannot be read, 2 if there is none."""
    cuts: list[Facts] = []
    faults: list[Exception] = []
    key = key_from(options.key_file)
    for job in _jobs(options):
        try:
            cuts += _cuts(CutStore(options.snapshots, job, key))
        except REFUSED as fault:
            # The cuts of other jobs are no worse for it.
            faults.append(fault)
    for fault in faults:
        refuse("snapshots", fault)
    if faults and not cuts:
        return 2
    _print_cuts(cuts, options)
    return 1 if faults else 0


def _print_cuts(cuts: list[Facts], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"cuts": cuts}))
        return
    rows = [("job", "epoch", "attempt", "time", "tasks", "bytes", "in loops", "savepoint", "restorable")]
    for facts in cuts:
        loops = ", ".join(f"{loop} {_records(log)}" for loop, log in facts["loops"].items())
        restorable = "yes" if facts["restorable"] else f"no: {facts['fault']}"
        time_s, savepoint = facts["time"].replace("T", " ")[:19], facts["savepoint"] or "-"
        numbers = str(facts["epoch"]), str(facts["attempt"]), time_s, str(facts["tasks"]), f"{facts['bytes']:,}"
        of_pipeline = "" if facts["pipeline"] is None else f" ({facts['pipeline']})"
        rows.append((facts["job"] + of_pipeline, *numbers, loops or "-", savepoint, restorable))
    if len(rows) == 1:
        print(printable(f"no cut is complete in {options.snapshots}"))
    else:
        print_table(rows)


def show_cut(options: argparse.Namespace) -> int:
    """`backedge snapshots show EPOCH`: its tasks and files. Everything is verified; 1 if something does not hold."""
    store = _one(options)
    described = cut_of(store, options.epoch)
    facts = _facts(store, _entry(store, described.epoch))
    try:
        store.verify(described.epoch)
    except StoreError as fault:
        facts.update(restorable=False, fault=str(fault))
    facts["of_tasks"] = [_of_task(described, task) for task in described.tasks]
    if options.json:
        print(json.dumps(facts))
    else:
        _print_cut(facts)
    return 0 if facts["restorable"] else 1


def check_flow(options: argparse.Namespace) -> int:
    """`backedge snapshots check MODULE:NAME`: how the flow differs from that of a cut; 1 if the cut does not fit."""
    plan = flow_at(options.flow, settings_in(options.settings)).plan()
    options.job = plan.name
    store = _one(options)
    epochs = list(last_cuts(store).values()) if options.epoch is None else [Epoch(options.epoch)]
    if not epochs:
        raise WrongCallError(f"no cut is complete in {store.path}, so the flow can be run as it is")
    found = [(epoch, _difference_from(store, epoch, plan, options)) for epoch in epochs]
    for epoch, of_cut in found:
        if options.json:
            print(
                json.dumps({"job": plan.name, "epoch": epoch, "restorable": not of_cut.problems, **to_builtins(of_cut)})
            )
        else:
            for line in _difference_lines(plan.name, epoch, of_cut):
                print(printable(line))
    return 1 if any(of_cut.problems for _, of_cut in found) else 0


def _difference_from(store: CutStore, epoch: Epoch, plan: Plan, options: argparse.Namespace) -> Difference:
    """How a flow differs from that of a cut: if the cut is of one pipeline, how its pipeline does."""
    cut = store.manifest_of(epoch)
    known = known_names(plan, [store.manifest_of(last) for last in {epoch, *last_cuts(store).values()}])
    constants = constant_change(given_values(plan), cut.constants, frozenset[str](options.drop))
    renamed, dropped = changes_of(cut, known, new_names(options.rename), options.drop)
    if _entry(store, epoch).pipeline is not None:
        now = {renamed.get(name, name) for name in cut.parallelism}
        parts = pipelines_of(plan, is_divided=True)
        plan = next((part for part in parts if now & part.operators.keys()), plan)
    change = change_from(cut.graph_hash, store.graph(cut.graph_hash), renamed, dropped)
    change = dropping_again(change, plan, options.drop)
    found = difference(cut.outline, plan, change, constants)
    if options.parallelism is None or found.problems:
        return found
    is_changed = renamed or dropped or cut.graph_hash != plan.hash
    problem = _indivisible(store, epoch, expand(plan, options.parallelism), change if is_changed else None)
    return found if problem is None else replace(found, problems=(problem,))


def _indivisible(store: CutStore, epoch: Epoch, deployment: Deployment, change: GraphChange | None) -> str | None:
    """Why a cut cannot be restored with these tasks; None if it can."""

    def restore(cut: Epoch) -> None:
        outline = fitted(store.manifest_of(cut).outline, deployment.plan, change)
        plan_restore(outline, fitting(outline, deployment))

    try:
        restore(epoch)
    except RescaleError as error:
        pipeline = _entry(store, epoch).pipeline
        cuts = [cut for cut in store.cuts() if _entry(store, cut).pipeline == pipeline]
        return str(with_divisible_cut(error, epoch, cuts, restore))
    return None


def compare_cuts(options: argparse.Namespace) -> int:
    """`backedge snapshots diff JOB A B`: what has changed from one cut to another. Nothing is unpickled."""
    alive = living(is_needed=True) if options.snapshots is None else None
    store = Jobs(options.snapshots, key_from(options.key_file), alive).store(options.job)
    of_pipelines = [_entry(store, cut_of(store, epoch).epoch).pipeline for epoch in (options.before, options.after)]
    if len(set(of_pipelines)) > 1:
        raise WrongCallError(
            f"cut {options.before} is of pipeline {of_pipelines[0]} and cut {options.after} of {of_pipelines[1]}: "
            "compare two of one pipeline; `backedge snapshots list` shows which"
        )
    found = diff_of(*(CutContents(store, cut_of(store, epoch)) for epoch in (options.before, options.after)))
    if options.json:
        print(json.dumps({"job": options.job, **to_builtins(found)}))
    else:
        _print_diff(found)
    return 0


def _print_diff(diff: CutDiff) -> None:
    print(f"from cut {diff.before} to cut {diff.after}")
    rows = [("what", str(diff.before), str(diff.after))]
    rows += [(f"records of {name}", f"{old:,}", f"{new:,}") for name, (old, new) in diff.records.items()]
    rows += [(f"position of {split}", _known(old), _known(new)) for split, (old, new) in diff.positions.items()]
    rows += [(f"records in loop {loop}", _known(old), _known(new)) for loop, (old, new) in diff.loops.items()]
    if len(rows) > 1:
        print_table(rows)
    if not diff.state:
        print("the state is the same")
    for state in diff.state:
        keys = f"{counted(state.added, 'key')} added, {state.removed:,} removed, {state.changed:,} changed"
        other = f"; {state.other:,} timers, waiting inputs or states of tasks differ" if state.other else ""
        unread = f"; {counted(state.unread, 'value')} cannot be read, and may differ" if state.unread else ""
        print(printable(f"{state.operator}: {keys}{other}{unread}"))
        listed = list(state.keys.items())[:KEYS_SHOWN]
        if listed:
            print_table(
                [
                    ("  key", "before", "after"),
                    *((f"  {key}", *(shortened(end, SHOWN_CHARACTERS) for end in ends)) for key, ends in listed),
                ]
            )
        if len(state.keys) > KEYS_SHOWN:
            print(f"  and others; --json lists the first {len(state.keys):,}")


def _known(number: int | None) -> str:
    return "-" if number is None else f"{number:,}"


def delete_cut(options: argparse.Namespace) -> int:
    """`backedge snapshots delete JOB EPOCH`: remove a cut, and no file that another cut needs."""
    alive = living(is_needed=options.snapshots is None, is_searched=True)
    jobs = Jobs(options.snapshots, key_from(options.key_file), alive)
    store = jobs.store(options.job)
    cut = cut_of(store, options.epoch)
    _check_deletable(jobs, store, cut, is_forced=options.force)
    store.drop(cut.epoch)
    left = store.cuts()
    if options.json:
        print(json.dumps({"job": options.job, "deleted": cut.epoch, "cuts": left}))
    else:
        print(printable(f"cut {cut.epoch} of {options.job} is deleted; left: {', '.join(map(str, left)) or 'none'}"))
    return 0


def _check_deletable(jobs: Jobs, store: CutStore, cut: CutDescription, *, is_forced: bool) -> None:
    """Raise if the cut is the latest, unless forced, or if a run writes on top of it.

    A new epoch always begins on top of the latest cut. So what is neither the latest nor the base of an open epoch will
    never become the base of one.
    """
    epoch, run = cut.epoch, jobs.is_alive(store.job, store)
    latest = set(last_cuts(store).values())
    if run is not None:
        if epoch in latest or epoch == run.last_epoch:
            raise WrongCallError(f"cut {epoch} is the latest of {store.job}, whose run is alive and needs it")
        above = [other.epoch for other in run.epochs if other.state == "open" and other.base == epoch]
        if above:
            raise WrongCallError(
                f"epoch {above[0]} is being written on top of cut {epoch}: delete it when that is complete"
            )
    elif epoch in latest and not is_forced:
        raise WrongCallError(
            f"cut {epoch} is the latest of {store.job}: without it, resume='latest' has nothing to continue from, and "
            "a run must name an earlier cut; --force deletes it all the same"
        )


def _difference_lines(job: str, epoch: Epoch, found: Difference) -> Iterator[str]:
    for name in found.added:
        yield f"added: operator {name}, which starts without state"
    for name, new_name in found.renamed.items():
        yield f"renamed: operator {name} is {new_name} now"
    for name, (former, now) in found.upgraded.items():
        yield f"upgraded: the state of operator {name} from version {former} to {now}"
    for name in found.dropped:
        yield f"dropped: the state of operator {name} is given up"
    yield from (f"added: constant {name}" for name in found.added_constants)
    yield from (f"dropped: the value of constant {name} is given up" for name in found.dropped_constants)
    yield from (f"added: edge {name}" for name in found.added_edges)
    yield from (f"removed: edge {name}" for name in found.removed_edges)
    yield from (f"problem: {problem}" for problem in found.problems)
    verdict = "cannot be resumed with this flow" if found.problems else "can be resumed with this flow"
    yield f"cut {epoch} of {job} {verdict}"


def _jobs(options: argparse.Namespace) -> list[str]:
    """The job that is asked for, or all that there are."""
    jobs = jobs_in(store_at(options.snapshots))
    if not jobs:
        raise WrongCallError(
            f"--snapshots {options.snapshots} holds no job: give the folder or URI that `backedge run` wrote to"
        )
    if options.job is not None and options.job not in jobs:
        raise WrongCallError(f"job {options.job!r} is not in {options.snapshots}: it holds {', '.join(jobs)}")
    return jobs if options.job is None else [options.job]


def _one(options: argparse.Namespace) -> CutStore:
    jobs = _jobs(options)
    if len(jobs) == 1:
        return CutStore(options.snapshots, jobs[0], key_from(options.key_file))
    raise WrongCallError(f"--snapshots {options.snapshots} holds several jobs: give --job, one of {', '.join(jobs)}")


def _cuts(store: CutStore) -> Iterator[Facts]:
    """The cuts that still exist. The chain also records those that retention has dropped."""
    for entry in store.existing():
        yield _facts(store, entry)


def _facts(store: CutStore, entry: Manifest) -> Facts:
    facts: Facts = {"job": store.job, "pipeline": entry.pipeline, "epoch": entry.epoch, "attempt": entry.attempt}
    facts |= {"time": "", "tasks": 0, "bytes": 0}
    facts |= {"policy": None, "savepoint": None, "loops": {}, "restorable": False, "fault": None}
    try:
        cut = store.manifest_of(entry.epoch)
        written_s = store.written_s(entry)
        missing = [file.name for file in cut.files if _size(store, file) != file.size]
    except (StoreError, OSError) as fault:
        return facts | {"fault": str(fault)}
    return facts | {
        "time": "" if written_s is None else _local_time(written_s),
        "tasks": len(cut.tasks),
        "bytes": cut.size,
        "policy": cut.mode.value,
        "savepoint": cut.savepoint,
        "loops": {loop: {"batches": log.batches, "records": log.records} for loop, log in cut.logs.items()},
        "restorable": not missing,
        "fault": f"{missing[0]} is not there as it was written" if missing else None,
    }


def _entry(store: CutStore, epoch: Epoch) -> Manifest:
    return next(entry for entry in store.chain() if isinstance(entry, Manifest) and entry.epoch == epoch)


def _local_time(written_s: float) -> str:
    try:
        return datetime.fromtimestamp(written_s).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""  # a file can be given any time


def _size(store: CutStore, file: StoredFile) -> int | None:
    facts = store.facts_of(file)
    return None if facts is None else facts.size


def _of_task(cut: CutDescription, task: TaskId) -> Facts:
    files = cut.tasks[task]
    return {
        "task": str(task),
        "epoch": files.epoch,
        "ended": files.ended,
        "state_rows": files.state_rows,
        "loops": {log.loop: {"batches": log.batches, "records": log.records} for log in files.logs},
        "transactions": list(files.transactions),
        "files": [asdict(file) for file in files.all_files],
        "state_layers": len(files.below) + 1,
    }


def _rows(task: Facts) -> str:
    """How many rows of state the cut has written itself, and whether they tell only what changed."""
    below = task["state_layers"] - 1
    return f"{task['state_rows']:,}" + (f" on top of {counted(below, 'earlier cut')}" if below else "")


def _records(log: Facts) -> str:
    if log["records"] is None:
        return "1 batch" if log["batches"] == 1 else f"{log['batches']} batches"
    return counted(log["records"], "record")


def _print_cut(facts: Facts) -> None:
    verdict = "every file is as it was written" if facts["restorable"] else f"not restorable: {facts['fault']}"
    kept = f", kept as {facts['savepoint']}" if facts["savepoint"] else ""
    of_pipeline = "" if facts["pipeline"] is None else f", pipeline {facts['pipeline']}"
    where = f"epoch {facts['epoch']} of {facts['job']}{of_pipeline}, attempt {facts['attempt']}"
    print(printable(f"{where}, {facts['policy']}, {facts['time']}{kept}"))
    print(printable(f"{counted(facts['tasks'], 'task')}, {counted(facts['bytes'], 'byte')}; {verdict}"))
    rows = [("task", "state rows", "in loops", "bytes", "")]
    for task in facts["of_tasks"]:
        loops = ", ".join(f"{loop} {_records(log)}" for loop, log in task["loops"].items())
        size = sum(file["size"] for file in task["files"])
        rows.append((task["task"], _rows(task), loops or "-", f"{size:,}", "ended" if task["ended"] else ""))
    print_table(rows)

"""`backedge jobs` and `backedge status`: which jobs there are, and what one of them is doing.

0: done. 1: a job could not be read, and the others are shown. 2: there is no such job, or no place to look.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence

from backedge.arguments import key_from
from backedge.graphs.wording import counted, one_line, printable
from backedge.inspecting.jobs import Jobs, check_folder, living
from backedge.printing import amount, duration, local_time, print_table, refuse, share, size
from backedge.recovery.stores.run_status import ChannelStatus, EpochStatus, LoopStatus, OperatorStatus, RunStatus

EPOCHS_SHOWN = 8
CHANNELS_SHOWN = 12
DONE, UNREADABLE = range(2)


def list_jobs(options: argparse.Namespace) -> int:
    """`backedge jobs`: the jobs of a folder, and those that are alive on the cluster."""
    check_folder(options.snapshots)
    jobs = Jobs(options.snapshots, key_from(options.key_file), living(is_needed=options.snapshots is None))
    found, faults = jobs.all()
    for fault in faults:
        refuse("jobs", fault)
    if options.json:
        print(json.dumps({"jobs": [_facts(status) for status in found]}))
    elif found:
        print_table([("job", "state", "attempt", "cut", "cuts", "told", "snapshots"), *map(_row, found)])
    else:
        print(printable(f"no job in {options.snapshots or 'the cluster'}"))
    return UNREADABLE if faults else DONE


def _facts(status: RunStatus) -> dict[str, object]:
    names = ("job", "state", "is_live", "at_s", "attempt", "last_epoch", "cuts", "snapshots")
    return {name: getattr(status, name) for name in names}


def _row(status: RunStatus) -> Sequence[str]:
    epoch = "-" if status.last_epoch is None else str(status.last_epoch)
    told = "now" if status.is_live else local_time(status.at_s)
    return status.job, status.state, str(status.attempt), epoch, str(status.cuts), told, status.snapshots or "-"


def show_status(options: argparse.Namespace) -> int:
    """`backedge status JOB`: its tasks, loops, epochs and failures."""
    alive = living(is_needed=options.snapshots is None)
    status = Jobs(options.snapshots, key_from(options.key_file), alive).one(options.job)
    if options.json:
        print(json.dumps(status.to_json()))
    else:
        _print_status(status, time.time())
    return DONE


def _print_status(status: RunStatus, now_s: float) -> None:
    for line in head_lines(status, now_s):
        print(printable(line))
    if status.operators:
        print()
        heads = ("operator", "tasks", "in", "out", "in/s", "out/s", "busy", "held")
        print_table([heads, *map(_operator_row, status.operators)])
    counts = [row for operator in status.operators for row in _counted_rows(operator)]
    for name, resource in status.resources.items():
        counts += [(name, "processes that have it open", f"{resource.open:,}", "-")] if status.is_live else []
        counts += [(name, "times opened, in all attempts", f"{resource.opened:,}", "-")]
    if not status.is_over:
        counts = [row for operator in status.operators for row in _call_rows(operator)] + counts
    if counts:
        print()
        print_table([("operator or resource", "counts of the latest attempt", "total", "mean"), *counts])
    loops = [_loop_row(loop, status) for loop in status.loops]
    if loops:
        print()
        heads = ("loop", "records inside", "bytes", "longest wait", "in the last cut", "rounds")
        print_table([heads, *loops])
    waiting = sorted((c for c in status.channels if c.backlog_bytes), key=lambda c: c.backlog_bytes, reverse=True)
    if waiting and not status.is_over:
        print()
        heads = ("channel", "backlog", "bytes", "waiting", "credit")
        print_table([heads, *map(_channel_row, waiting[:CHANNELS_SHOWN])])
        if len(waiting) > CHANNELS_SHOWN:
            print(f"and {counted(len(waiting) - CHANNELS_SHOWN, 'channel')} with less")
    if status.epochs:
        print()
        heads = ("epoch", "state", "took", "align", "write", "manifest", "written", "in loops", "slowest task")
        print_table([heads, *map(_epoch_row, status.epochs[-EPOCHS_SHOWN:])])
    for line in _trouble(status):
        print(printable(line))


def head_lines(status: RunStatus, now_s: float) -> Iterator[str]:
    """The run in a sentence or two."""
    cut = "no cut yet" if status.last_epoch is None else f"cut {status.last_epoch}"
    took = "" if status.seconds is None else f", {duration(status.seconds)}"
    figures = f"{counted(status.records, 'record')}, {counted(status.hops, 'hop')}, {counted(status.cuts, 'cut')}"
    yield f"{status.job}: {status.state}, attempt {status.attempt}, {cut}{took}; {figures}"
    if not status.is_live:
        told = f"; figures of {local_time(status.at_s)}" if status.run else ""
        # The clock of their host may be ahead of ours.
        ago = f", {duration(now_s - status.at_s)} ago" if status.run and now_s >= status.at_s else ""
        yield f"from the store in {status.snapshots}{told}{ago}"
    if status.reason:
        yield f"reason: {one_line(status.reason)}"


def _operator_row(operator: OperatorStatus) -> Sequence[str]:
    tasks = operator.tasks
    read, sent = (task.in_per_s for task in tasks), (task.out_per_s for task in tasks)
    shares = (task.busy for task in tasks), (task.held for task in tasks)
    return (
        " > ".join(operator.operators),
        str(len(tasks)),
        f"{sum(task.records_in for task in tasks):,}",
        f"{sum(task.records_out for task in tasks):,}",
        _pace(read) + (f" of {operator.rate}" if operator.rate else ""),
        _pace(sent),
        *(share(max(_known(part), default=None)) for part in shares),
    )


def _call_rows(operator: OperatorStatus) -> Iterator[Sequence[str]]:
    """The calls of a chain that have no answer."""
    running, waiting = sum(task.calls_running for task in operator.tasks), sum(t.calls_waiting for t in operator.tasks)
    if running or waiting:
        yield " > ".join(operator.operators), "calls running + waiting", f"{running:,} + {waiting:,}", "-"


def _counted_rows(operator: OperatorStatus) -> Iterator[Sequence[str]]:
    """What the operators of a chain have counted in this attempt; of what was observed the number and the mean."""
    for name, by_class in operator.counted.items():
        for counter, total in by_class.counters.items():
            yield name, counter, amount(total), "-"
        for histogram, found in by_class.histograms.items():
            yield name, histogram, f"{found.count:,}", amount(found.sum / found.count if found.count else None)


def _pace(of_tasks: Iterable[float | None]) -> str:
    known = _known(of_tasks)
    return amount(sum(known) if known else None)


def _known(figures: Iterable[float | None]) -> list[float]:
    return [figure for figure in figures if figure is not None]


def _loop_row(loop: LoopStatus, status: RunStatus) -> Sequence[str]:
    cut = next((epoch for epoch in reversed(status.epochs) if epoch.state == "complete"), None)
    log = None if cut is None else cut.loops.get(loop.name)
    logged = "-" if cut is None else "0 records" if log is None else _log(log.records, log.batches, log.bytes)
    rounds = ", ".join(f"{number}: {records:,}" for number, records in loop.rounds.items())
    inside, waiting = (f"{loop.records:,}", duration(loop.waiting_s)) if status.is_live else ("-", "-")
    in_round = f"in round {loop.round}" if loop.round else rounds or "-"
    return loop.name, inside, size(loop.bytes) if status.is_live else "-", waiting, logged, in_round


def _log(records: int | None, batches: int, bytes: int) -> str:
    held = counted(batches, "batch", "es") if records is None else counted(records, "record")
    return f"{held}, {size(bytes)}"


def _channel_row(channel: ChannelStatus) -> Sequence[str]:
    credit = "never full"
    if channel.credit_bytes is not None:
        credit = f"{size(channel.credit_bytes)} of {size(channel.window_bytes)}"
    ends = f"{channel.sender} -> {channel.receiver}"
    return ends, f"{channel.backlog:,}", size(channel.backlog_bytes), duration(channel.waiting_s), credit


def _epoch_row(epoch: EpochStatus) -> Sequence[str]:
    logged = ", ".join(f"{name} {_log(log.records, log.batches, log.bytes)}" for name, log in epoch.loops.items())
    state = epoch.state + (f", {epoch.savepoint}" if epoch.savepoint else "")
    if epoch.state == "complete" and not epoch.is_kept:
        state += ", dropped"
    times = (epoch.seconds, epoch.align_s, epoch.write_s, epoch.manifest_s)
    slowest = epoch.slowest or "-"
    return str(epoch.epoch), state, *map(duration, times), size(epoch.written_bytes), logged or "-", slowest


def _trouble(status: RunStatus) -> Iterator[str]:
    """What an open epoch waits for, why others were given up, and what each failure was."""
    told = [*_of_epochs(status), *_of_failures(status)]
    if told:
        yield ""
    yield from told


def _of_epochs(status: RunStatus) -> Iterator[str]:
    for epoch in status.epochs[-EPOCHS_SHOWN:]:
        if epoch.state == "open":
            waits = "; ".join(f"{task}: {what}" for task, what in list(epoch.waiting.items())[:5])
            yield f"epoch {epoch.epoch} is open and waits for {waits or 'its manifest'}"
        elif epoch.state == "given up":
            yield f"epoch {epoch.epoch} was given up: {one_line(epoch.reason)}"


def _of_failures(status: RunStatus) -> Iterator[str]:
    for failure in status.failures[-EPOCHS_SHOWN:]:
        restored = "the beginning" if failure.restored is None else f"cut {failure.restored}"
        healed = "has not run again yet" if failure.seconds is None else f"ran again after {duration(failure.seconds)}"
        in_loops = f" with {counted(failure.in_loops, 'record')} in loops" if failure.in_loops else ""
        lost = ""
        if failure.lost_records is not None:
            lost = f"; done again: {counted(failure.lost_records, 'record')} of {duration(failure.lost_s)}"
        when, why = local_time(failure.at_s), one_line(failure.reason)
        yield f"{when}: attempt {failure.attempt} failed: {why}; {healed}, from {restored}{in_loops}{lost}"

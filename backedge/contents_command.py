"""`backedge state` and `backedge inflight`: what is in a cut of a job. They only read, and unpickle nothing.

0: done. 1: the key is not in the state. 2: there is no such job, cut, operator or loop, or its files are damaged.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

from backedge.arguments import key_from
from backedge.graphs.wording import counted, one_line
from backedge.inspecting.cut_contents import CutContents, StateEntry, key_matcher
from backedge.inspecting.jobs import Jobs, cut_of, living
from backedge.printing import print_table, shortened

SHOWN_MAX = 200
SHOWN_CHARACTERS = 100
DONE, NO_SUCH_KEY = range(2)


def contents_of(options: argparse.Namespace, is_there: Callable[[CutContents], bool]) -> CutContents:
    """The contents of the cut that the command line names, or of the last one in which something is there."""
    # A folder says where the cuts are; without one, the run that is alive does.
    alive = living(is_needed=True) if options.snapshots is None else None
    store = Jobs(options.snapshots, key_from(options.key_file), alive).store(options.job)
    return CutContents(store, cut_of(store, options.epoch, lambda cut: is_there(CutContents(store, cut))))


def show_state(options: argparse.Namespace) -> int:
    """`backedge state JOB OPERATOR [KEY]`: the state of an operator by key, or of one key."""
    contents = contents_of(options, lambda contents: options.operator in contents.operators)
    wanted = None if options.key is None else key_matcher(options.key)
    entries = (e for e in contents.state(options.operator) if wanted is None or e.key in wanted)
    found = _print_state(contents, options, entries)
    if found or wanted is None:
        return DONE
    where = f"cut {contents.cut.epoch} of {options.job}"
    print(one_line(f"backedge state: {options.operator} has no key {options.key} in {where}"), file=sys.stderr)
    return NO_SUCH_KEY


def _print_state(contents: CutContents, options: argparse.Namespace, entries: Iterator[StateEntry]) -> int:
    if options.json:
        told = [_facts(entry) for entry in entries]
        print(
            json.dumps({"job": options.job, "epoch": contents.cut.epoch, "operator": options.operator, "state": told})
        )
        return len(told)
    rows = [("key", "value", "task", "kind")]
    count = 0
    for entry in entries:
        count += 1
        if count <= SHOWN_MAX:
            key, value = (shortened(text, SHOWN_CHARACTERS) for text in (entry.key, entry.value))
            rows.append((key, value, entry.task, entry.kind))
    if count or options.key is None:
        print(f"cut {contents.cut.epoch}: {'1 entry' if count == 1 else f'{count:,} entries'}")
    if count:
        print_table(rows)
    if count > SHOWN_MAX:
        print(f"and {count - SHOWN_MAX:,} more; --json prints all")
    return count


def _facts(entry: StateEntry) -> dict[str, Any]:
    return {"task": entry.task, "kind": entry.kind, "key": _value(entry.key), "value": _value(entry.value)}


def _value(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def show_in_flight(options: argparse.Namespace) -> int:
    """`backedge inflight JOB LOOP`: the records that were in a loop when the cut was taken."""
    contents = contents_of(options, lambda contents: options.loop in contents.loops)
    records = list(contents.in_flight(options.loop))
    if options.json:
        told = [
            {"receiver": r.receiver, "sender": r.sender, "edge": r.edge, "rounds": r.rounds, "record": _value(r.record)}
            for r in records
        ]
        print(json.dumps({"job": options.job, "epoch": contents.cut.epoch, "loop": options.loop, "records": told}))
        return DONE
    print(f"cut {contents.cut.epoch}: {counted(len(records), 'record')} in flight")
    # Those that have gone round most often are the oldest.
    oldest = sorted(records, key=lambda record: record.rounds or 0, reverse=True)[:SHOWN_MAX]
    if oldest:
        rows = [(_rounds(r.rounds), shortened(r.record, SHOWN_CHARACTERS), r.sender or "-", r.receiver) for r in oldest]
        print_table([("rounds", "record", "sender", "receiver"), *rows])
    if len(records) > SHOWN_MAX:
        print(f"and {len(records) - SHOWN_MAX:,} more; --json prints all")
    return DONE


def _rounds(rounds: int | None) -> str:
    return "-" if rounds is None else str(rounds)

"""`backedge prepare`: raw input made ready for a flow, from the words on the command line to an exit code.

0: prepared. 2: it could not be read, was not understood, or may not be replaced; what was there stays.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from backedge.flows import WrongCallError
from backedge.graphs.wording import counted


def prepare_input(options: argparse.Namespace) -> int:
    from backedge.recovery.spark.prepare.prepare_input import check_places, check_tasks, prepare
    from backedge.recovery.spark.sessions.spark_session import session_for

    clean = expressions_in(options.clean)
    # Before Spark is started, which takes seconds.
    check_tasks(options.tasks)
    check_places(options.source, options.target, options.format)
    unique = [name.strip() for name in options.unique.split(",")] if options.unique else []
    with session_for("backedge prepare", options.master) as spark:
        prepared = prepare(
            spark,
            options.source,
            options.target,
            key=options.key,
            schema=options.schema,
            format=options.format,
            unique=unique,
            where=options.where,
            clean=clean,
            tasks=options.tasks,
        )
    print(json.dumps(prepared.to_json()) if options.json else told(prepared.to_json(), options.target), flush=True)
    return 0


def expressions_in(pairs: Sequence[str]) -> dict[str, str]:
    """The expressions that --set gives, by column.

    >>> expressions_in(["cents=round(amount * 100)"])
    {'cents': 'round(amount * 100)'}
    """
    found: dict[str, str] = {}
    for pair in pairs:
        column, equals, expression = (part.strip() for part in pair.partition("="))
        if not (column and equals and expression):
            raise WrongCallError(f"--set {pair!r} sets nothing: write COLUMN=SQL, such as --set name=upper(name)")
        if column in found:
            raise WrongCallError(f"--set gives {column} twice: leave out one of them")
        found[column] = expression
    return found


def told(prepared: Mapping[str, Any], target: str) -> str:
    """What was prepared, in a few lines.

    >>> rejected = {"malformed": 2, "null": 0}
    >>> facts = {"rows_in": 1002, "rows_out": 1000, "rejected": rejected, "key": "id", "files": [1, 2], "tasks": 2}
    >>> print(told({**facts, "data": "/data/orders/data"}, "orders"))
    1,002 rows in, 1,000 out, 2 rejected (2 malformed)
      /data/orders/data: 2 files by the key groups of 'id', for 2 tasks
      orders/rejected: rejected rows with their reasons
    """
    reasons = {reason: count for reason, count in prepared["rejected"].items() if count}
    why = f" ({', '.join(f'{count:,} {reason}' for reason, count in reasons.items())})" if reasons else ""
    rejected = f"{sum(reasons.values()):,} rejected{why}"
    files, tasks = counted(len(prepared["files"]), "file"), counted(prepared["tasks"], "task")
    layout = f"{files} by the key groups of {prepared['key']!r}, for {tasks}" if prepared["key"] else files
    lines = [f"{counted(prepared['rows_in'], 'row')} in, {prepared['rows_out']:,} out, {rejected}"]
    lines.append(f"  {prepared['data']}: {layout}")
    lines += [f"  {target}/rejected: rejected rows with their reasons"] if reasons else []
    return "\n".join(lines)

"""What a manifest says of the rows in a task's files, and what they hold. An audit and a restore compare the two.

A manifest repeats some of what is in the files, so that one need not open them for it: a restore is planned from it,
the chain lists its transactions, and the page shows its figures. Each is a value of JSON, by the folder of its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from backedge.recovery.restore.outline import RoundsOutline, rounds_outline
from backedge.recovery.stores.names import Parts, table_folder
from backedge.recovery.stores.record_tables import rounds_in, transactions_in
from backedge.recovery.stores.task_files import LogFigures, TaskFiles


def said_of(task: TaskFiles, loops: Mapping[str, str] | None = None) -> dict[Parts, Any]:
    """Table folder -> what the manifest says of a task's own files there.

    Names of transactions; whether a task's own state is there; the outline of rounds; the figures of a log, and, if the
    edges in `loops` are given, the edges whose batches it holds.
    """
    found: dict[Parts, Any] = {}
    for name in task.transactions:
        # A forged manifest may name anything, so the name is not parsed as that of a transaction.
        found.setdefault(table_folder("transactions", name.rsplit(".", 3)[0]), []).append(name)
    for facts in task.operators:
        if facts.has_whole:
            found[table_folder("state", facts.name)] = True
    for log in task.logs:
        edges = {channel.edge for channel in task.logged if (loops or {}).get(channel.edge, channel.edge) == log.loop}
        found[table_folder("log", log.loop)] = [log.batches, log.size, log.records, sorted(edges)]
    if task.rounds is not None:
        found[table_folder("rounds", None)] = _as_json(task.rounds)
    return found


def _as_json(rounds: RoundsOutline | None) -> Any:
    return None if rounds is None else [list(rounds.current), rounds.in_a_round]


def held_in(
    table: str, parts: Iterable[Any], load: Callable[[bytes], Any], records_of: Callable[[bytes], int | None]
) -> Any:
    """What the rows of one file hold of that; None for other tables. `parts` are tables with its rows, in order.

    `load` reads a pickle, `records_of` counts the records of a batch. Raises an exception of any class if the rows are
    not of a store.
    """
    match table:
        case "transactions":
            return [transaction.name for part in parts for transaction in transactions_in(part)]
        case "state":
            return any("whole" in part["kind"].to_pylist() for part in parts) or None
        case "rounds":
            (part,) = parts
            return _as_json(rounds_outline(rounds_in(part, load)))
        case "log":
            edges = set[str]()

            def batches() -> Iterator[tuple[bytes, int]]:
                for part in parts:
                    edges.update(part["edge"].to_pylist())
                    yield from zip(part["payload"].to_pylist(), part["skip"].to_pylist(), strict=True)

            figures = log_figures("", batches(), records_of)
            return [figures.batches, figures.size, figures.records, sorted(edges)]
        case _:
            return None


def log_figures(
    loop: str, batches: Iterable[tuple[bytes, int]], records_of: Callable[[bytes], int | None]
) -> LogFigures:
    """The figures of a log, from each batch and the number of its records that were processed before the cut."""
    count = size = total = 0
    is_known = True
    for payload, skip in batches:
        records = records_of(payload)
        count, size, total = count + 1, size + len(payload), total + (records or 0) - skip
        is_known &= records is not None
    return LogFigures(loop, count, size, total if is_known else None)

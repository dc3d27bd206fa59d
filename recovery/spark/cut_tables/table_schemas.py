"""Schemas of the tables of a cut, and their version.

Every table begins with the epoch and attempt of the row's cut, so one table can hold many cuts. docs/tables.md
explains each column.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = 2
"""Version of the tables. It changes when a column is removed or changes its meaning."""

_CUT = "epoch bigint, attempt bigint"
_TASK = "task string, task_index int"
_ENDS = "edge string, sender string, sender_index int, receiver string, receiver_index int"

TABLES: Mapping[str, str] = {
    "cuts": f"{_CUT}, number bigint, mode string, savepoint string, graph_hash string, parallelism map<string,int>, "
    "manifest string",
    "tasks": f"{_CUT}, {_TASK}, captured_epoch bigint, filed bigint, ended boolean, state_rows bigint, actor string, "
    "overtook boolean",
    "operators": f"{_CUT}, {_TASK}, operator string, kind string, whole_can_move boolean, records bigint",
    "files": f"{_CUT}, {_TASK}, `table` string, `of` string, name string, size bigint, digest string, layer int",
    "graph_channels": f"{_CUT}, {_ENDS}, is_back boolean, within_actor boolean",
    "channels": f"{_CUT}, {_TASK}, direction string, {_ENDS}, restored boolean, is_back boolean, `count` bigint, "
    "digest bigint, ended boolean, log_count bigint, overtook boolean",
    "log": f"{_CUT}, loop string, {_TASK}, position bigint, {_ENDS}, restored boolean, seq bigint, "
    "digest_before bigint, digest_after bigint, skip bigint, payload binary",
    "in_flight": f"{_CUT}, loop string, {_ENDS}, seq bigint, record string, hops bigint",
    "state": f"{_CUT}, operator string, task_index int, kind string, key_group int, key_int bigint, key_str string, "
    "`key` string, value_int bigint, value_float double, value_str string, value_bytes binary, `value` string, "
    "data binary",
    "state_layers": f"{_CUT}, operator string, task_index int, kind string, key_group int, key_int bigint, "
    "key_str string, `key` string, value_int bigint, value_float double, value_str string, value_bytes binary, "
    "`value` string, data binary, layer int",
    "positions": f"{_CUT}, operator string, task_index int, split string, position_int bigint, data binary",
    "transactions": f"{_CUT}, operator string, task_index int, name string, prepared_epoch bigint, "
    "prepared_attempt bigint, records bigint",
    "rounds": f"{_CUT}, {_TASK}, phase string, current string, data binary",
    "answers": f"{_CUT}, operator string, segment bigint, answered_attempt bigint, question string, `answer` string, "
    "set_aside boolean, cost double",
}
"""Table -> its columns and types, as Spark DDL."""

FILES: Mapping[str, str] = {
    "log": f"position bigint, {_ENDS}, restored boolean, seq bigint, digest_before bigint, digest_after bigint, "
    "skip bigint, payload binary",
    "state": "kind string, key_group int, key_int bigint, key_str string, value_int bigint, value_float double, "
    "value_str string, value_bytes binary, data binary",
    "rows": "kind string, key_group int, key_int bigint, key_str string, `key` string, `value` string",
    "transactions": "name string, epoch bigint, attempt bigint, records bigint",
    "rounds": "phase string, current string, data binary",
    "answers": "question string, set_aside boolean, cost double, data binary",
}
"""Table on disk -> the columns read from its files; of "rows", what `table_rows.py` makes of them.

Those of "answers" are groups of the journal, which no manifest lists.
"""

RENAMED: Mapping[str, Mapping[str, str]] = {"transactions": {"epoch": "prepared_epoch", "attempt": "prepared_attempt"}}
"""Table on disk -> columns renamed because their names clash with those of the cut."""


def columns_of(ddl: str) -> list[str]:
    """The column names in a DDL string.

    >>> columns_of("epoch bigint, `of` string, parallelism map<string,int>")
    ['epoch', 'of', 'parallelism']
    """
    return [part.split()[0].strip("`") for part in ddl.split(", ")]

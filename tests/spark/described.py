"""A cut with an edge of every kind, as an audit describes it, for what is drawn of it."""

from __future__ import annotations

from typing import Any

from backedge.recovery.spark.report.verdict import CutVerdict, InvariantResult, StatementResult

AGAIN = "split.false->attempts.in"
OPERATORS = [("orders", "source"), ("parse", "map"), ("attempts", "stateful_map"), ("split", "split"), ("done", "sink")]
EDGES = [
    ("orders.out->parse.in", "orders", "parse", None),
    ("parse.out->attempts.in", "parse", "attempts", None),
    ("attempts.out->split.in", "attempts", "split", None),
    ("split.true->done.in", "split", "done", None),
    (AGAIN, "split", "attempts", "again"),
    ("orders.out->done.late", "orders", "done", None),
]


def channel(edge: str, *, restored: bool = False, within: bool = False, **figures: int) -> dict[str, Any]:
    name, sender, receiver, loop = next(one for one in EDGES if one[0] == edge)
    ends = {"edge": name, "sender": sender, "sender_index": 0, "receiver": receiver, "receiver_index": 0}
    return {**ends, "is_back": loop is not None, "restored": restored, "within_actor": within, **figures}


CHANNELS = (
    channel("parse.out->attempts.in", sent=1200, consumed=1200, logged=0, records=0),
    channel(AGAIN, sent=9, consumed=7, logged=2, records=40, within=True),
    channel(AGAIN, consumed=1, logged=3, records=5, restored=True),
    channel("split.true->done.in", sent=4, consumed=4, logged=0, records=0),
)


def cut(epoch: int = 7, **changes: Any) -> CutVerdict:
    graph = {
        "operators": [{"name": name, "kind": kind} for name, kind in OPERATORS],
        "edges": [
            {"name": name, "sender": sender, "receiver": receiver, "loop": loop}
            for name, sender, receiver, loop in EDGES
        ],
    }
    given: dict[str, Any] = {
        "epoch": epoch,
        "attempt": 1,
        "policy": "aligned",
        "savepoint": None,
        "previous": None,
        "graph_hash": "abc",
        "graph": graph,
        "parallelism": {"attempts": 3, "orders": 1},
        "tasks": [{"task": "orders/0", "operators": ["orders", "parse"]}],
        "channels": CHANNELS,
        "sizes": {"log_records": 45, "channels": 3},
        "statements": [StatementResult(1, "nothing is received that was not sent", 0, "4 channels")],
        "invariants": [InvariantResult("money", 0)],
    }
    return CutVerdict(**{**given, **changes})

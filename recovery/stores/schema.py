"""Schemas of all documents of a job: its identity, the entries of its chain, manifests, graphs.

A document is checked once, when it is opened, so its readers index it without further checks. Numbers are limited to
the range of the table columns that hold them. Readers check the rules that go beyond shapes, for example that a
manifest lists each task once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from graphs.plan import Routing
from graphs.routing import KEY_GROUPS
from recovery.messages import Mode
from recovery.run_status import status_in
from recovery.stores.digests import digest_shape
from recovery.stores.shapes import (
    Shape,
    ShapeError,
    boolean,
    hexadecimal,
    list_of,
    one_of,
    optional,
    record,
    row,
    shown,
    table,
    text,
    whole,
)

DOCUMENT_BYTES_MAX = 256 << 20
"""Size limit of a document, enough for a manifest of about 500,000 channels."""

IDENTITY_BYTES_MAX = 1 << 16

_count = whole(0, (1 << 63) - 1)
_index = whole(0, (1 << 31) - 1)
_number = whole(1, (1 << 63) - 1)
_key_group = whole(0, KEY_GROUPS - 1)
_digest = whole(0, (1 << 32) - 1)
_sha256 = hexadecimal(64)
_mode = one_of(*(mode.value for mode in Mode if mode not in {Mode.PROBE, Mode.UNALIGNED_PROBE}))


def _document(shapes: Mapping[str, Shape]) -> Shape:
    return record({"format": _count, **shapes})


IDENTITY = _document({"job": text, "job_id": text})

# -- the chain ---------------------------------------------------------------------------------------------------

_TRANSACTIONS = list_of(row(text, _index, list_of(text)))
_FILE = record({"name": text, "size": whole(0, DOCUMENT_BYTES_MAX), "sha256": _sha256})
_LINK = {"number": _number, "parent": optional(_sha256), "claimant": text}
_ENTRIES: Mapping[str, Mapping[str, Shape]] = {
    "attempt": {
        "kind": text,
        "attempt": _count,
        "restored": optional(_count),
        "sizes": list_of(row(text, _number)),
        "replaces": optional(_count),
        "begun": list_of(row(text, _number)),
        "manifest": optional(_FILE),
        **_LINK,
    },
    "manifest": {
        "kind": text,
        "epoch": _count,
        "attempt": _count,
        "mode": _mode,
        "savepoint": optional(text),
        "request": optional(text),
        "files": list_of(row(text, _index, optional(_count))),
        "transactions": _TRANSACTIONS,
        "kept": optional(list_of(_count)),
        "states": list_of(row(text, _index, list_of(row(_count, optional(_count), _count, _count)))),
        "manifest": _FILE,
        **_LINK,
    },
}


_MAY_HAVE: Mapping[str, Mapping[str, Shape]] = {
    "attempt": {"pipeline": text},
    "manifest": {"pipeline": text, "stops": one_of(True), "given_up": list_of(text)},
}


def _entry(more: Mapping[str, Shape]) -> Shape:
    shapes = {kind: record({**entry, **more}, _MAY_HAVE[kind]) for kind, entry in _ENTRIES.items()}
    kinds = one_of(*shapes)

    def check(value: Any) -> None:
        found = cast("dict[str, Any]", value) if type(value) is dict else {}
        kind = found.get("kind")
        try:
            kinds(kind)
        except ShapeError as error:
            raise error.below(".kind") from None
        shapes[cast(str, kind)](value)

    return check


ENTRY = _entry({"format": _count, "job_id": text})
PAST = _document(
    {
        "job_id": text,
        "ordinal": _number,
        "number": _number,
        "sha256": _sha256,
        "links": list_of(_entry({"sha256": _sha256})),
    }
)

# -- manifests ---------------------------------------------------------------------------------------------------

_ENDS = {"edge": text, "sender": row(text, _index), "receiver": row(text, _index), "restored": boolean}
_CHANNEL = {
    "direction": one_of("in", "out"),
    "channel": record(_ENDS),
    "is_back": optional(boolean),
    "count": _count,
    "digest": _digest,
    "ended": optional(boolean),
    "log_count": optional(_count),
}
_OPERATOR = {
    "name": text,
    "whole_can_move": boolean,
    "has_whole": boolean,
    "kind": optional(text),
    "records": _count,
    "splits": list_of(row(text, hexadecimal())),
}


def _listed_file(more: Mapping[str, Shape]) -> Shape:
    return record({"name": text, "size": _count, "digest": digest_shape, **more})


_groups = row(_key_group, _key_group)
_LAYER = {
    "attempt": _count,
    "filed": optional(_count),
    "epoch": _count,
    "base": optional(_count),
    "files": list_of(_listed_file({"groups": _groups})),
}
_TASK = {
    "task": text,
    "index": _index,
    "attempt": _count,
    "filed": optional(_count),
    "epoch": _count,
    "ended": boolean,
    "overtook": boolean,
    "operators": list_of(record(_OPERATOR)),
    "files": list_of(_listed_file({"groups": optional(_groups)})),
    "transactions": list_of(text),
    "channels": list_of(record(_CHANNEL)),
    "logs": list_of(record({"loop": text, "batches": _count, "size": _count, "records": optional(_count)})),
    "state_rows": _count,
    "rounds": optional(record({"current": list_of(_count), "in_a_round": boolean})),
    "base": optional(_count),
    "below": list_of(record(_LAYER)),
}
_DEPLOYED_CHANNEL = {
    "edge": text,
    "sender": text,
    "sender_index": _index,
    "receiver": text,
    "receiver_index": _index,
    "is_back": boolean,
    "within_actor": boolean,
}
_DEPLOYED_TASK = {"task": text, "index": _index, "operators": list_of(text), "actor": text}

_MANIFEST: Mapping[str, Shape] = {
    "job": text,
    "job_id": text,
    "parent": record({"number": _count, "sha256": optional(_sha256)}),
    "epoch": _count,
    "attempt": _count,
    "mode": _mode,
    "savepoint": optional(text),
    "graph_hash": text,
    "parallelism": table(text, whole(1, (1 << 31) - 1)),
    "deployment": record({"tasks": list_of(record(_DEPLOYED_TASK)), "channels": list_of(record(_DEPLOYED_CHANNEL))}),
    "codecs": table(text, _count),
    "tasks": list_of(record(_TASK)),
    "transactions": _TRANSACTIONS,
}
_IF_ANY: Mapping[str, Shape] = {"constants": table(text, _listed_file({})), "dropped": list_of(text)}


def _manifest(value: Any) -> None:
    """A manifest. Only those of flows with constants name any, and only those of runs that gave up state say so."""
    there = {part: shape for part, shape in _IF_ANY.items() if part in value}
    _document({**_MANIFEST, **there})(value)


MANIFEST: Shape = _manifest


# -- graphs ------------------------------------------------------------------------------------------------------

_GRAPH = record(
    {
        "name": text,
        "operators": list_of(
            record(
                {
                    "name": text,
                    "kind": text,
                    "state_version": _number,
                    "inputs": list_of(text),
                    "outputs": list_of(text),
                    "numbered": boolean,
                    "source": optional(text),
                    "sink": optional(text),
                }
            )
        ),
        "edges": list_of(
            record(
                {
                    "name": text,
                    "sender": text,
                    "output": text,
                    "receiver": text,
                    "input": text,
                    "routing": one_of(*(routing.value for routing in Routing)),
                    "by": optional(text),
                    "loop": optional(text),
                    "max_rounds": optional(_count),
                    "endless": boolean,
                }
            )
        ),
    }
)


def _graph(value: Any) -> None:
    """A graph whose names are unique and whose edges connect its operators."""
    _GRAPH(value)
    for what in ("operators", "edges"):
        names: list[str] = [part["name"] for part in value[what]]
        if len(set(names)) < len(names):
            raise ShapeError("has two of one name", f".{what}")
    operators = {operator["name"] for operator in value["operators"]}
    for place, edge in enumerate(value["edges"]):
        for end in ("sender", "receiver"):
            if edge[end] not in operators:
                raise ShapeError(f"is {shown(edge[end])}, which is not an operator", f".edges[{place}].{end}")


GRAPH = _document({"job_id": text, "graph_hash": text, "graph": _graph})


def _status(value: Any) -> None:
    status_in(value)


STATUS = _document({"job_id": text, "status": _status})

# -- inputs that are kept ----------------------------------------------------------------------------------------

INPUT_PIECE = _document(
    {
        "job_id": text,
        "task": row(text, _index),
        "attempt": _count,
        "epoch": _count,
        "number": _number,
        "flow": _sha256,
        "sha256": _sha256,
    }
)

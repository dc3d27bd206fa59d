"""Schemas of all documents of a job: its identity, the entries of its chain, manifests, graphs.

A document is checked once, when it is opened, so its readers index it without further checks. They check the rules that
go beyond shapes, for example that a manifest lists each task once.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from backedge.graphs.plan import Routing
from backedge.recovery.stores.channel_tables import check_columns
from backedge.recovery.stores.manifests_of_format_12 import upgraded
from backedge.recovery.stores.run_status import status_in
from backedge.recovery.stores.shapes import Count, Index, Number, Sha256, Shape, ShapeError, Text, shape_of, shown
from backedge.recovery.stores.task_files import StoredFile, TaskFiles

DOCUMENT_BYTES_MAX = 256 << 20
"""Size limit of a document, enough for a manifest of `CHANNELS_MAX` channels."""

IDENTITY_BYTES_MAX = 1 << 16

Tasks = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
ModeName = Literal["aligned", "unaligned", "between_rounds"]


class _Part(Struct, forbid_unknown_fields=True):
    """An object with exactly these fields."""


class _Document(_Part):
    format: Count


class _Identity(_Document):
    job: Text
    job_id: Text


IDENTITY = shape_of(_Identity)

# -- the chain ---------------------------------------------------------------------------------------------------

Transactions = list[tuple[Text, Index, list[Text]]]


class _ManifestFile(_Part):
    name: Text
    size: Annotated[int, Meta(ge=0, le=DOCUMENT_BYTES_MAX)]
    sha256: Sha256


class _Link(_Part):
    number: Number
    parent: Sha256 | None
    claimant: Text
    attempt: Count
    pipeline: Text | None


class _Start(_Link, tag_field="kind", tag="attempt"):
    restored: Count | None
    sizes: list[tuple[Text, Number]]
    replaces: Count | None
    begun: list[tuple[Text, Number]]
    manifest: _ManifestFile | None


class _Cut(_Link, tag_field="kind", tag="manifest"):
    epoch: Count
    mode: ModeName
    savepoint: Text | None
    request: Text | None
    files: list[tuple[Text, Index, Count | None]]
    transactions: Transactions
    kept: list[Count] | None
    states: list[tuple[Text, Index, list[tuple[Count, Count | None, Count, Count]]]]
    manifest: _ManifestFile
    stops: bool
    given_up: list[Text]


class _StartEntry(_Start, tag_field="kind", tag="attempt"):
    format: Count
    job_id: Text


class _CutEntry(_Cut, tag_field="kind", tag="manifest"):
    format: Count
    job_id: Text


class _PastStart(_Start, tag_field="kind", tag="attempt"):
    sha256: Sha256


class _PastCut(_Cut, tag_field="kind", tag="manifest"):
    sha256: Sha256


class _Past(_Document):
    job_id: Text
    ordinal: Number
    number: Number
    sha256: Sha256
    links: list[_PastStart | _PastCut]


ENTRY = shape_of(_StartEntry | _CutEntry)
PAST_SHAPE = shape_of(_Past)

# -- manifests ---------------------------------------------------------------------------------------------------


class _DeployedTask(_Part):
    task: Text
    index: Index
    operators: list[Text]
    actor: Text


class _DeployedChannels(_Part):
    edge: Text
    sender: Text
    receiver: Text
    is_back: bool
    senders: list[Index]
    receivers: list[Index]
    within_actor: list[Index]

    def __post_init__(self) -> None:
        check_columns(len(self.senders), (self.receivers,), (self.within_actor,))


class _Deployment(_Part):
    tasks: list[_DeployedTask]
    channels: list[_DeployedChannels]


class _Parent(_Part):
    number: Count
    sha256: Sha256 | None


class _Manifest(_Document):
    job: Text
    job_id: Text
    parent: _Parent
    epoch: Count
    attempt: Count
    mode: ModeName
    savepoint: Text | None
    graph_hash: Text
    parallelism: dict[Text, Tasks]
    deployment: _Deployment
    codecs: dict[Text, Count]
    tasks: list[TaskFiles]
    transactions: Transactions
    constants: dict[Text, StoredFile]
    dropped: list[Text]


def _manifest(document: Any) -> None:
    """A manifest of this format or of format 12."""
    document = upgraded(document)
    shape_of(_Manifest)(document)
    for place, task in enumerate(document["tasks"]):
        if "is_settled" in task:
            raise ShapeError("has a field 'is_settled', which no manifest has", f".tasks[{place}]")


MANIFEST_SHAPE: Shape = _manifest

# -- graphs ------------------------------------------------------------------------------------------------------


class _GraphOperator(_Part):
    name: Text
    kind: Text
    state_version: Number
    inputs: list[Text]
    outputs: list[Text]
    numbered: bool
    source: Text | None
    sink: Text | None


class _GraphEdge(_Part):
    name: Text
    sender: Text
    output: Text
    receiver: Text
    input: Text
    routing: Routing
    by: Text | None
    loop: Text | None
    max_rounds: Count | None
    endless: bool


class _Graph(_Part):
    name: Text
    operators: list[_GraphOperator]
    edges: list[_GraphEdge]


class _GraphDocument(_Document):
    job_id: Text
    graph_hash: Text
    graph: _Graph


def _graph(document: Any) -> None:
    """A graph whose names are unique and whose edges connect its operators."""
    shape_of(_GraphDocument)(document)
    graph = document["graph"]
    for what in ("operators", "edges"):
        names: list[str] = [part["name"] for part in graph[what]]
        if len(set(names)) < len(names):
            raise ShapeError("has two of one name", f".graph.{what}")
    operators = {operator["name"] for operator in graph["operators"]}
    for place, edge in enumerate(graph["edges"]):
        for end in ("sender", "receiver"):
            if edge[end] not in operators:
                raise ShapeError(f"is {shown(edge[end])}, which is not an operator", f".graph.edges[{place}].{end}")


GRAPH: Shape = _graph


class _Status(_Document):
    job_id: Text
    status: Any


def _status(document: Any) -> None:
    shape_of(_Status)(document)
    status_in(document["status"])


STATUS_SHAPE: Shape = _status

# -- inputs that are kept ----------------------------------------------------------------------------------------


class _InputPiece(_Document):
    job_id: Text
    task: tuple[Text, Index]
    attempt: Count
    epoch: Count
    number: Number
    flow: Sha256
    sha256: Sha256


INPUT_PIECE = shape_of(_InputPiece)


# -- answers that are kept ------------------------------------------------------------------------------------------


class _AnswerGroup(_Document):
    job_id: Text
    name: Text
    operator: Text
    sha256: Sha256


ANSWER_GROUP = shape_of(_AnswerGroup)

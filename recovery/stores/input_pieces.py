"""The inputs of tasks that a run keeps for `backedge replay`, in pieces, below the folder `inputs` of a job.

    inputs/epoch=7/attempt=2/rank.0-3.piece   what task rank/0 of attempt 2 got after epoch 7, third piece
    inputs/flow-SHA256.pickle                 the flow that attempts ran, by the digest of its bytes

- A piece is a sealed document of one line (`documents.py`), and then bytes whose SHA-256 it names, as it names that of
  the flow. So the rules for keys are those of all documents, and nothing is decoded before it is verified.
- Pieces are no part of a cut, and nothing is restored from them. They survive the death of every process, but are not
  synced. Flows are.
- A piece is filed under the last epoch that its task captured, which may have been aborted. It follows the last
  complete cut up to that epoch, and is removed with that cut. Flows stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.stores.documents import check_content, opened_content, sealed_content, sha256
from backedge.recovery.stores.names import (
    INPUTS,
    attempt_folder,
    epoch_folder,
    input_piece,
    kept_flow,
    number_in,
    path_of,
)
from backedge.recovery.stores.schema import INPUT_PIECE
from backedge.recovery.stores.store_calls import exists, full_name, remove_below
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.store_protocol import Store

FIRST = "-1.piece"
NO_CUT = Epoch(0)
"""What a run that begins with nothing follows."""


class PieceId(NamedTuple):
    """The place of a piece. Numbers begin with 1 after each epoch."""

    task: TaskId
    attempt: Attempt
    epoch: Epoch
    number: int

    @property
    def name(self) -> str:
        return path_of(input_piece(self.epoch, self.attempt, self.task, self.number))


class Piece(NamedTuple):
    """The verified content of a piece. `flow` is the digest of the flow that its attempt ran."""

    id: PieceId
    flow: str
    data: bytes


class InputPieces:
    def __init__(self, store: Store, job_id: str, key: bytes | None) -> None:
        self._store = store
        self._job_id = job_id
        self._key = key

    def keep_flow(self, data: bytes) -> str:
        """Keep a flow, if it is not there yet; return its digest."""
        digest = sha256(data)
        name = path_of(kept_flow(digest))
        if not exists(self._store, name):
            # Whole and durable at once: a torn one would count as kept.
            self._store.create(name, data)
        return digest

    def flow(self, digest: str) -> bytes:
        """The flow with this digest, which a piece named."""
        name = path_of(kept_flow(digest))
        try:
            data = self._store.read(name)
        except FileNotFoundError as error:
            raise SnapshotCorruptError(
                f"{full_name(self._store, name)} is missing, the flow of a run that kept inputs: restore it from a "
                "backup"
            ) from error
        check_content(data, digest, full_name(self._store, name))
        return data

    def write(self, id: PieceId, flow: str, data: bytes) -> None:
        document = {
            "job_id": self._job_id,
            "task": list(id.task),
            "attempt": id.attempt,
            "epoch": id.epoch,
            "number": id.number,
            "flow": flow,
        }
        self._store.write({id.name: sealed_content(document, data, self._key, INPUT_PIECE)})

    def read(self, id: PieceId) -> Piece | None:
        try:
            return self._opened(id.name)
        except FileNotFoundError:
            return None

    def _opened(self, name: str) -> Piece:
        path = full_name(self._store, name)
        document, data = opened_content(self._store.read(name), self._key, path, INPUT_PIECE)
        id = PieceId(
            TaskId(*document["task"]), Attempt(document["attempt"]), Epoch(document["epoch"]), document["number"]
        )
        if (document["job_id"], id.name) != (self._job_id, name):
            raise SnapshotCorruptError(f"{path} was written as another piece of inputs: restore the original file")
        return Piece(id, document["flow"], data)

    def first_after(self, epoch: Epoch) -> Iterator[Piece]:
        """The first piece of each task and attempt after this epoch, later attempts first."""
        for attempt in reversed(self._attempts(epoch_folder(epoch))):
            for name in sorted(self._store.list(path_of((INPUTS, *attempt_folder(attempt, epoch))))):
                if name.endswith(FIRST):
                    yield self._opened(name)

    def has_some(self) -> bool:
        """Whether pieces may be there."""
        return any(number_in(folder, "epoch") is not None for folder in self._store.folders(INPUTS))

    def remove(self, is_dead: Callable[[Epoch, Attempt], bool]) -> None:
        for folder in self._store.folders(INPUTS):
            number = number_in(folder, "epoch")
            for attempt in () if number is None else self._attempts(folder):
                epoch = Epoch(number or 0)
                if is_dead(epoch, attempt):
                    remove_below(self._store, path_of((INPUTS, *attempt_folder(attempt, epoch))))

    def _attempts(self, folder: str) -> list[Attempt]:
        numbers = [number_in(name, "attempt") for name in self._store.folders(f"{INPUTS}/{folder}")]
        return sorted(Attempt(number) for number in numbers if number is not None)

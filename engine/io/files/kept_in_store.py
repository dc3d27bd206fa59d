"""Output that the run itself keeps until it is delivered, in the store of its cuts.

    prepared/NAME    a transaction that is durable and waits for the cut that lists it
    committed/NAME   its records, of a sink that keeps them; else an empty note that they were delivered

- A transaction is in the second place before it leaves the first, and lookups use the same order. So a transaction that
  is in neither was lost.
- A file holds a whole transaction: a seal, and the batches, each behind its length. The seal is a digest of the name of
  the transaction and of all batches, with a key if the run has one. It is verified before anything is decoded. So a
  batch cannot be left out, repeated, or moved to another transaction by anybody who has no key.
- Without a key, a local folder that other users may write to is refused each time it is opened (`folder_store.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import pickle
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from backedge.engine.batches.columns import (
    COLUMNS_BYTE,
    Columns,
    Records,
    as_records,
    decode_columns,
    encode_columns,
    joined,
)
from backedge.engine.io.files.file_errors import DamagedOutputError, OutputError, UnknownTransactionError
from backedge.engine.io.files.former_places import note_place, noted_places
from backedge.engine.io.files.kept_output import Deliver, receiver, together_of
from backedge.engine.io.files.names import name_of, path_name, turn_of
from backedge.engine.io.files.output_claims import refuse_other_output
from backedge.engine.io.files.parts import pickled_batch
from backedge.engine.io.files.writers import Receive
from backedge.graphs.io import DeliverySink, Rollback, Withdrawal
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.store_calls import full_name
from backedge.recovery.stores.store_protocol import Store

_PREPARED = "prepared"
_COMMITTED = "committed"
_LENGTH = struct.Struct("<Q")
_SEAL_BYTES = 32


class KeptInStore:
    """The place of one sink. `store` holds nothing else."""

    def __init__(self, operator: str, store: Store, to_driver: Deliver, key: bytes = b"") -> None:
        self._operator = operator
        self._store = store
        self._to_driver = to_driver
        self._key = key

    def validate(self, fresh: bool) -> None:
        if fresh:
            refuse_other_output(self._operator, self._store.location, self._names(_COMMITTED))

    def open(self, sink: DeliverySink[Any]) -> StoreWriter:
        receive = receiver(self._operator, sink, self._to_driver)
        return StoreWriter(self._operator, self._store, receive, self._key, sink.keeps, together_of(sink) is not None)

    def note_place(self, place: str) -> None:
        note_place(self._store, place)

    def noted_places(self) -> Sequence[str]:
        return noted_places(self._store.location)

    def roll_back(self, rollback: Rollback, sink: DeliverySink[Any]) -> None:
        """Remove leftovers; of a sink that does not keep its records, also the notes that they were delivered."""
        dead = [_place(_PREPARED, name) for name in self._names(_PREPARED) if rollback.removes(name)]
        if not sink.keeps:
            dead += [_place(_COMMITTED, name) for name in self._names(_COMMITTED) if rollback.forgets(name)]
        if rollback.is_over:
            dead += [name for folder in (_PREPARED, _COMMITTED) for name in self._files(folder) if _is_unfinished(name)]
        self._store.remove(dead)

    @property
    def can_withdraw(self) -> bool:
        """Whether a transaction moves in one step. Elsewhere, a task that was presumed dead may write it again."""
        return isinstance(self._store, FolderStore)

    def withdraw(self, later: Withdrawal) -> None:
        """Remove records that were committed after a cut. What is prepared goes first: a task may be committing it."""
        if not self.can_withdraw:
            raise OutputError(
                f"sink {self._operator!r} keeps its records in a store, from which they cannot be removed"
            )
        for folder in (_PREPARED, _COMMITTED):
            self._store.remove([_place(folder, name) for name in self._names(folder) if later.removes(name)])

    def committed(self, read: dict[str, list[Any]]) -> list[Any]:
        """All records that were committed, in the order of epochs, attempts and tasks.

        `read` has what was read before, by transaction: given again, only new files are read.
        """
        names = sorted(self._names(_COMMITTED), key=turn_of)
        for name in names:
            if name not in read:
                read[name] = records_in(self._store, _COMMITTED, name, self._key)
        return [record for name in names for record in read[name]]

    def prepared(self) -> dict[str, list[Any]]:
        """What was prepared and is not committed, by transaction."""
        return {name: records_in(self._store, _PREPARED, name, self._key) for name in self._names(_PREPARED)}

    def _names(self, folder: str) -> list[str]:
        return [name_of(name) for name in map(_last, self._files(folder)) if not _is_unfinished(name)]

    def _files(self, folder: str) -> Iterable[str]:
        return self._store.list(folder)


class StoreWriter:
    """One task of such a sink. The open transaction is in memory."""

    def __init__(self, sink: str, store: Store, receive: Receive, key: bytes, keeps: bool, is_together: bool) -> None:
        self._sink = sink
        self._store = store
        self._receive = receive
        self._key = key
        self._keeps = keeps
        self._is_together = is_together
        self._open: list[bytes] = []
        self._prepared_last: str | None = None

    def write(self, records: Records) -> None:
        if len(records):
            if self._is_together and isinstance(records, Columns):
                self._open.append(encode_columns(records, 0))
            else:
                self._open.append(pickled_batch(self._sink, records))

    def prepare(self, name: str) -> bool:
        """Make the open transaction durable under this name. False if it is empty."""
        if not self._open:
            places = (_place(folder, name) for folder in (_PREPARED, _COMMITTED))
            return name == self._prepared_last or any(self._store.facts(place) is not None for place in places)
        self._write(_PREPARED, name, _sealed(self._open, name, self._key))
        self._open, self._prepared_last = [], name
        return True

    def commit(self, name: str) -> None:
        self.commit_together([name])

    def commit_together(self, names: Sequence[str]) -> Collection[str]:
        """Publish them. Kept records are stored, then handed over, each time; others are handed over and then noted."""
        for some in [names] if self._is_together else [[name] for name in names]:
            self._commit(some)
        return ()

    def _commit(self, names: Sequence[str]) -> None:
        written: dict[str, Records] = {}
        for name in names:
            prepared = _place(_PREPARED, name)
            try:
                data = self._store.read(prepared)
                written[name] = _records(data, full_name(self._store, prepared), name, self._key)
                if self._keeps:
                    self._keep(name, data)
            except FileNotFoundError:
                self._commit_again(name)
        if written:
            self._receive(written)
        if not self._keeps:
            for name in written:
                self._write(_COMMITTED, name, [])
            self._store.remove([_place(_PREPARED, name) for name in written])

    def _keep(self, name: str, data: bytes) -> None:
        prepared, committed = _place(_PREPARED, name), _place(_COMMITTED, name)
        if isinstance(self._store, FolderStore):
            self._store.move(prepared, committed)
        else:
            self._write(_COMMITTED, name, [data])
            self._store.remove([prepared])

    def _commit_again(self, name: str) -> None:
        committed = _place(_COMMITTED, name)
        if self._store.facts(committed) is None:
            raise UnknownTransactionError(
                f"sink {self._sink!r} was asked to commit transaction {name!r}, which is neither prepared nor "
                f"published in {self._store.location}: restore what was removed, or start a new run elsewhere"
            )
        # The task that published it may have died before that was durable.
        self._store.make_durable([committed])
        if self._keeps:
            self._receive({name: records_in(self._store, _COMMITTED, name, self._key)})

    def close(self) -> None:
        self._open = []

    def _write(self, folder: str, name: str, pieces: list[bytes]) -> None:
        place = _place(folder, name)
        self._store.write_pieces(place, pieces)
        self._store.make_durable([place])


def records_in(store: Store, folder: str, name: str, key: bytes) -> list[Any]:
    """The records of a transaction in a folder. Its seal is verified before anything is decoded."""
    place = _place(folder, name)
    return as_records(_records(store.read(place), full_name(store, place), name, key))


def _records(data: bytes, path: str, name: str, key: bytes) -> Records:
    seal, rest = data[:_SEAL_BYTES], memoryview(data)[_SEAL_BYTES:]
    if not hmac.compare_digest(seal, _seal([rest], name, key)):
        raise DamagedOutputError(
            f"{path} is not what was written as transaction {name!r}: it is torn or altered, or "
            "written with another key or version; restore it from a backup, or start a new run"
        )
    batches: list[Records] = []
    while rest:
        (length,) = _LENGTH.unpack(rest[: _LENGTH.size])
        payload = rest[_LENGTH.size :][:length]
        batches.append(decode_columns(payload)[0] if payload[0] == COLUMNS_BYTE else pickle.loads(payload))
        rest = rest[_LENGTH.size + length :]
    return joined(batches)


def _sealed(batches: Iterable[bytes], name: str, key: bytes) -> list[bytes]:
    pieces = [piece for batch in batches for piece in (_LENGTH.pack(len(batch)), batch)]
    return [_seal(pieces, name, key), *pieces]


def _seal(pieces: Iterable[bytes | memoryview], name: str, key: bytes) -> bytes:
    named = name.encode(errors="surrogatepass")
    digest = hashlib.blake2b(_LENGTH.pack(len(named)) + named, digest_size=_SEAL_BYTES, key=key)
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _place(folder: str, name: str) -> str:
    return f"{folder}/{path_name(name)}"


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _is_unfinished(name: str) -> bool:
    """Whether an interrupted write to a local folder has left this file. No transaction has a hidden name."""
    return _last(name).startswith(".")

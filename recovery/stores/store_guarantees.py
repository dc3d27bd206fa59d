"""The guarantees of a store (`store_protocol.py`) as checks: a few calls before a run, and all of them for its author.

Each check raises `StoreContractError` with the number of the guarantee. They write below a folder of a random name and
remove it in the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event

from backedge.recovery.stores.store_calls import create_exclusively, remove_below
from backedge.recovery.stores.store_errors import StoreContractError
from backedge.recovery.stores.store_protocol import Store

_PROBE = "probe"
_RACERS = 8
_RACES = 15
_TURNS = 40
_LARGE_BYTES = 12_000_000
_NAMES = ("a", "a.b/c", "epoch=7/table=x/100%25", "two words", "lang/ä-\N{CJK UNIFIED IDEOGRAPH-6F22}", "n" * 200)


def probe_store(store: Store) -> None:
    """Check with a few calls that a store gives the guarantees of a run. Takes milliseconds where calls do."""
    place = store.below(f"{_PROBE}-{secrets.token_hex(8)}")
    try:
        _check_creation(place, place)
        _check_reads(place, place)
    except FileNotFoundError as error:
        raise _broken("2", f"a file that was written is missing ({error})") from error
    finally:
        place.remove(["created", "written"])


def check_store(open_store: Callable[[], Store]) -> None:
    """Check all guarantees of a store; raises `StoreContractError` for the first that it does not give.

    `open_store` opens the store as each process of a run would: it is called several times, and the stores must share
    their files. Writes, races and removes; takes a few seconds.

    >>> import tempfile
    >>> from backedge.recovery.stores.folder_store import FolderStore
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     check_store(lambda: FolderStore(folder))
    """
    folder = f"{_PROBE}-{secrets.token_hex(8)}"

    def opened() -> Store:
        return open_store().below(folder)

    opened().prepare(is_signed=True)
    try:
        _check_creation(opened(), opened())
        _check_reads(opened(), opened())
        _check_names(opened(), opened())
        _check_large(opened(), opened())
        _check_races(opened)
        _check_whole(opened)
        _check_removal(opened(), opened())
    except FileNotFoundError as error:
        raise _broken("2", f"a file that was written is missing ({error})") from error
    finally:
        remove_below(opened(), "")


def _check_creation(ours: Store, other: Store) -> None:
    _expect(ours.create("created", b"ours"), "3", "`create` returned False for a free name")
    _expect(other.read("created") == b"ours", "2", "a file was not there after `create` had returned")
    _expect(not other.create("created", b"theirs"), "3", "`create` returned True for a name that is taken")
    _expect(ours.read("created") == b"ours", "3", "`create` replaced a file that existed")
    # A reply was lost, and the request is repeated: the file says who won.
    _expect(create_exclusively(ours, "created", b"ours"), "3", "a repeated `create` cannot be resolved by reading back")
    _expect(not create_exclusively(other, "created", b"theirs"), "3", "two processes take one file for their own")


def _check_reads(ours: Store, other: Store) -> None:
    for data in (b"first, and longer", b"", b"0123456789"):
        ours.write({"written": data})
        ours.make_durable(["written"])
        _expect(other.read("written") == data, "2", "a file was not read as it had just been written")
        facts = other.facts("written")
        size = None if facts is None else facts.size
        _expect(size == len(data), "2", f"`facts` says {size} bytes, and {len(data)} were written")
    _expect(other.read("written", 3, 4) == b"3456", "1", "a part of a file is not what was asked for")
    _expect(other.read("written", 8, 100) == b"89", "1", "a part that goes beyond the end is not what is there")
    _expect(other.read("written", 0, 11) == b"0123456789", "1", "a read that asks for more than the file is not whole")
    with other.open("written") as file:
        _expect(file.read() == b"0123456789", "1", "`open` does not give the file")
    _expect(other.facts("missing") is None, "2", "`facts` knows a file that was never written")
    _expect(_is_missing(other, "missing"), "2", "`read` of a missing file does not raise FileNotFoundError")


def _check_names(ours: Store, other: Store) -> None:
    files = {f"names/{name}": name.encode() for name in _NAMES}
    ours.write(files)
    for name, data in files.items():
        _expect(other.read(name) == data, "2", f"a file named {name!r} was not read as it had been written")
        folder, _, rest = name.partition("/")
        _expect(other.below(folder).read(rest) == data, "2", f"`below({folder!r})` has not the file {rest!r}")
    unknown = set(other.list("names")) - set(files)
    _expect(not unknown, "2", f"`list` names {sorted(unknown)}, which were never written under these names")
    folders = set(other.folders("names")) - {"a.b", "epoch=7", "lang"}
    _expect(not folders, "2", f"`folders` names {sorted(folders)}, which do not exist")


def _check_large(ours: Store, other: Store) -> None:
    data = secrets.token_bytes(_LARGE_BYTES)
    ours.write({"large": data})
    _expect(other.read("large") == data, "1", f"a file of {_LARGE_BYTES:,} bytes was not read as it had been written")
    _expect(other.read("large", 9_999_990, 20) == data[9_999_990:10_000_010], "1", "a part of it is another one")


def _check_races(opened: Callable[[], Store]) -> None:
    stores = [opened() for _ in range(_RACERS)]
    for race in range(_RACES):
        outcomes = _race(stores, f"race/{race}")
        won = [index for index, outcome in enumerate(outcomes) if outcome is True]
        _expect(len(won) <= 1, "3", f"{len(won)} of {_RACERS} calls of `create` for one name succeeded")
        _expect(len(won) == 1, "3", f"none of {_RACERS} calls of `create` for one name succeeded: {outcomes}")
        _expect(stores[0].read(f"race/{race}") == b"%d" % won[0], "3", "the file is not that of the call that won")


def _race(stores: list[Store], name: str) -> list[bool | OSError]:
    """Create one file through each of these stores at once. A loser may get an error instead of False."""
    start = Barrier(len(stores))

    def create(index: int) -> bool | OSError:
        start.wait()
        try:
            return create_exclusively(stores[index], name, b"%d" % index)
        except OSError as error:
            return error

    with ThreadPoolExecutor(len(stores)) as pool:
        return list(pool.map(create, range(len(stores))))


def _check_whole(opened: Callable[[], Store]) -> None:
    writer, reader, is_over = opened(), opened(), Event()
    versions = [bytes([number]) * (400_000 + 100_000 * number) for number in range(4)]
    writer.write({"whole": versions[0]})

    reads = turn = 0

    def read() -> bool:
        nonlocal reads
        while not is_over.is_set():
            if reader.read("whole") not in versions:
                return False
            reads += 1
        return True

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            # On a busy machine the writer may be done before the reader begins.
            while min(turn, reads) < _TURNS and not reading.done():
                writer.write({"whole": versions[turn % 4]})
                turn += 1
        finally:
            is_over.set()
        _expect(reading.result(), "1", "a read got a part of a file, or a mixture of two")


def _check_removal(ours: Store, other: Store) -> None:
    ours.write({"removed/now": b"x", "removed/later": b"x"})
    ours.remove(["removed/now", "removed/never"])
    _expect(_is_missing(other, "removed/now"), "2", "a file is still read after it was removed")
    _expect(other.read("removed/later") == b"x", "2", "another file was removed")
    _expect(ours.create("removed/now", b"y"), "3", "the name of a file that was removed is not free")


def _is_missing(store: Store, name: str) -> bool:
    try:
        store.read(name)
    except FileNotFoundError:
        return True
    return False


def _expect(holds: bool, guarantee: str, fault: str) -> None:
    if not holds:
        raise _broken(guarantee, fault)


def _broken(guarantee: str, fault: str) -> StoreContractError:
    return StoreContractError(
        f"the store does not give guarantee {guarantee} of the protocol of stores: {fault}; without it, a run could "
        "lose cuts or be taken over unnoticed, so keep snapshots elsewhere, or repair the store"
    )

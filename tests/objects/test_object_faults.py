"""Requests that fail, against real servers: a cut is neither lost nor doubled, and no entry is given up too early."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from backedge import OutcomeUnknownError
from backedge.graphs.ids import Attempt
from backedge.recovery.protocol.orders import AttemptStart
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.object_client import Repeats
from backedge.recovery.stores.object_store import PIECE_BYTES
from backedge.recovery.stores.store_calls import create_exclusively
from tests.faults.evidence import Evidence
from tests.gates import HANG_S
from tests.objects.conftest import IMPATIENT, QUICK, Place
from tests.objects.faulty_http import Kind
from tests.stores.snapshots import begin, complete

# They start servers.
pytestmark = pytest.mark.slow

ALWAYS = 1_000


@pytest.mark.parametrize("kind", ["lost reply", "lost request", "cut", 409, 503])
def test_a_creation_succeeds_whatever_happens_to_its_first_request(place: Place, kind: Kind):
    fault = place.proxy.plan("PUT", "/entry", kind)
    store = place.open()
    assert store.create("entry", b"ours"), kind
    assert fault.happened == 1
    assert store.read("entry") == b"ours"
    assert not store.create("entry", b"theirs")


def test_a_creation_whose_reply_is_lost_is_not_taken_for_that_of_another(place: Place, evidence: Evidence):
    fault = place.proxy.plan("PUT", "/entry", "lost reply", times=2)
    assert place.open().create("entry", b"ours")
    assert fault.happened == 1, "the object is read before anything is sent again"
    assert not place.open().create("entry", b"theirs"), "nor is another's taken for ours"
    assert fault.happened == 2
    second = place.proxy.plan("PUT", "/another", "lost reply")
    unread = place.proxy.plan("GET", "/another", 503, times=ALWAYS)
    with pytest.raises(OutcomeUnknownError, match="unknown"):
        place.open().create("another", b"ours")
    assert second.happened == 1 and unread.happened > 1
    place.proxy.reset()
    assert create_exclusively(place.open(), "another", b"ours"), "the same call again"
    evidence.happened("replies to a conditional creation that were lost", fault.happened + second.happened)
    evidence.same([place.open().read("entry"), place.open().read("another")], [b"ours", b"ours"])


def test_a_refusal_with_412_is_read_back(place: Place):
    fault = place.proxy.plan("PUT", "/entry", 412)
    assert place.open().create("entry", b"ours"), "the name was free after all"
    assert fault.happened == 1


def test_a_conflict_that_does_not_end_leaves_the_name_free(place: Place):
    fault = place.proxy.plan("PUT", "/entry", 409, times=ALWAYS)
    with pytest.raises(OSError, match="entry") as raised:
        place.open().create("entry", b"ours")
    assert not isinstance(raised.value, OutcomeUnknownError)
    assert fault.happened == QUICK.times + 1


def test_a_creation_that_lands_after_its_caller_gave_up_was_never_called_failed(place: Place):
    late = place.proxy.plan("PUT", "/entry", "late")
    refused = place.proxy.plan("PUT", "/entry", 503, times=ALWAYS)
    store = place.open()
    with pytest.raises(OutcomeUnknownError):
        store.create("entry", b"ours")
    assert late.happened == 1 and refused.happened == QUICK.times
    place.proxy.release()
    assert late.has_landed.wait(HANG_S)
    assert store.read("entry") == b"ours"
    assert create_exclusively(store, "entry", b"ours")
    assert not create_exclusively(store, "entry", b"theirs")


def test_a_definite_refusal_after_a_lost_request_settles_nothing(place: Place):
    first = place.proxy.plan("PUT", "/entry", "late")
    second = place.proxy.plan("PUT", "/entry", 403)
    with pytest.raises(OutcomeUnknownError):
        place.open().create("entry", b"ours")
    assert (first.happened, second.happened) == (1, 1)
    only = place.proxy.plan("PUT", "/other", 403)
    with pytest.raises(PermissionError, match="rights"):
        place.open().create("other", b"ours")
    assert only.happened == 1


@pytest.mark.parametrize("kind", ["lost reply", "lost request", 503])
def test_a_write_is_repeated(place: Place, kind: Kind):
    fault = place.proxy.plan("PUT", "/file", kind)
    store = place.open()
    store.write({"file": b"x" * 1000, "other": b"y"})
    assert fault.happened == 1
    assert (store.read("file"), store.read("other")) == (b"x" * 1000, b"y")


@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_large_write_survives_a_lost_reply_of_each_of_its_requests(place: Place, method: str):
    if method == "POST" and place.location.startswith("az"):
        method = "PUT"  # Azure ends an upload by a PUT of the list of its blocks
        fault = place.proxy.plan("PUT", "comp=blocklist", "lost reply")
    else:
        fault = place.proxy.plan(method, "/large", "lost reply", times=2)
    store, data = place.open(Repeats(times=3, pause_s_first=0.001)), bytes(range(256)) * (PIECE_BYTES // 200)
    store.write({"large": data})
    assert fault.happened == fault.times
    assert store.read("large") == data


@pytest.mark.parametrize("kind", ["lost reply", "slow", "cut", 503])
def test_a_read_is_repeated(place: Place, kind: Kind):
    store = place.open(IMPATIENT if kind == "slow" else QUICK)
    store.write({"file": bytes(range(250)) * 4})
    fault = place.proxy.plan("GET", "/file", kind)
    assert store.read("file") == bytes(range(250)) * 4
    assert fault.happened == 1
    head = place.proxy.plan("HEAD", "/file", "lost reply")
    facts = store.facts("file")
    assert facts is not None and facts.size == 1000 and head.happened == 1


def test_a_store_that_keeps_failing_is_an_error_that_names_the_object(place: Place):
    store = place.open()
    store.write({"file": b"x"})
    fault = place.proxy.plan("GET", "/file", 503, times=ALWAYS)
    with pytest.raises(OSError, match="SlowDown") as raised:
        store.read("file")
    assert raised.value.filename == store.location + "/file"
    assert fault.happened > QUICK.times


def test_of_two_runs_that_claim_the_next_entry_one_wins(place: Place, evidence: Evidence):
    begin(CutStore(place.open(), "job"))
    lost = place.proxy.plan("PUT", "chain/", "lost reply", times=3)
    busy = place.proxy.plan("PUT", "chain/", 409, times=3)
    for number in range(2, 8):
        runs = [CutStore(place.open(), "job") for _ in range(2)]
        start = Barrier(2)

        def claim(run: int, runs: list[CutStore] = runs, start: Barrier = start, number: int = number) -> bool:
            start.wait()
            return runs[run].create(number, AttemptStart(Attempt(number), None, f"run {run}"))

        with ThreadPoolExecutor(2) as pool:
            won = list(pool.map(claim, range(2)))
        assert sorted(won) == [False, True]
        entry = CutStore(place.open(), "job").chain()[-1]
        assert isinstance(entry, AttemptStart) and entry.claimant == f"run {won.index(True)}"
        evidence.happened("claims of one entry by two runs at once", 1)
        evidence.survived("entries of the run that won", 1)
    assert (lost.happened, busy.happened) == (3, 3)


def test_a_long_chain_is_opened_many_entries_at_a_time(place: Place, monkeypatch: pytest.MonkeyPatch):
    store = CutStore(place.open(), "job")
    begin(store)
    for number in range(2, 41):
        assert store.create(number, AttemptStart(Attempt(number), None, "same"))
    gap = place.proxy.plan("GET", "chain/00000030", "lost reply")
    assert CutStore(place.open(), "job").chain() == store.chain()
    assert gap.happened == 1


def test_a_cut_is_complete_only_if_its_files_are_there(place: Place):
    store = CutStore(place.open(), "job")
    begin(store)
    complete(store, 1)
    fault = place.proxy.plan("PUT", "epoch=2", 503, times=ALWAYS)
    with pytest.raises(OSError, match="SlowDown"):
        complete(store, 2)
    assert fault.happened > QUICK.times
    place.proxy.reset()
    complete(store, 2)
    assert CutStore(place.open(), "job").cut(store.chain()[-1].epoch).epoch == 2

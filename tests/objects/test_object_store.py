"""The store of objects gives every guarantee, and a run is refused where a server does not."""

from __future__ import annotations

import json
import secrets

import pytest

from backedge import StoreContractError, StoreError
from backedge.command import main
from backedge.graphs.ids import Epoch
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.object_client import Repeats
from backedge.recovery.stores.object_store import PIECE_BYTES, ObjectStore
from backedge.recovery.stores.store_schemes import store_at
from backedge.testing import check_store
from tests.objects.conftest import Place
from tests.stores.layered import Cuts
from tests.stores.snapshots import held

# It starts servers.
pytestmark = pytest.mark.slow


def test_it_gives_every_guarantee(place: Place):
    check_store(lambda: place.open(Repeats()))


@pytest.mark.usefixtures("no_cluster")
def test_a_cut_is_deleted_in_it_without_what_later_cuts_are_on_top_of(place: Place, capsys: pytest.CaptureFixture[str]):
    cuts = Cuts(place.location)
    cuts.complete(1, held({"a": 1, "b": 2}))
    cuts.complete(2, held({"a": 10}), base=1)
    cuts.complete(3, held({"c": 3}))
    words = ["snapshots", "delete", "job", "--snapshots", place.location, "--json"]
    assert main([*words, "3"]) == 2
    assert "cut 3 is the latest" in capsys.readouterr().err
    before = set(store_at(place.location).list("job"))
    assert main([*words, "1"]) == 0
    assert json.loads(capsys.readouterr().out)["cuts"] == [2, 3]
    assert set(store_at(place.location).list("job")) < before
    CutStore(place.location, "job").verify(Epoch(2))
    assert cuts.values(2) == {"a": 10, "b": 2}


def test_a_large_object_is_read_and_verified_piece_by_piece(place: Place):
    store, data = place.open(Repeats()), secrets.token_bytes(PIECE_BYTES + 1000)
    store.write({"large": data})
    with store.open("large") as file:
        file.seek(PIECE_BYTES - 10)
        assert file.read(20) == data[PIECE_BYTES - 10 : PIECE_BYTES + 10]
        store.write({"large": b"another version"})
        file.seek(0)
        with pytest.raises(OSError, match="large"):
            file.read()


def test_an_object_that_is_removed_while_it_is_read_is_not_there(place: Place):
    store = place.open()
    store.write({"file": b"bytes"})
    with store.open("file") as file:
        store.remove(["file"])
        with pytest.raises(FileNotFoundError, match="file"):
            file.read()


@pytest.mark.parametrize("place", ["s3"], indirect=True)  # requests to Azure have a signature of these headers
def test_a_server_that_ignores_conditions_is_refused_by_name(place: Place):
    place.proxy.dropped_headers = {"if-none-match"}
    with pytest.raises(StoreContractError, match="guarantee 3"):
        CutStore(place.location, "job").probe()


def test_a_server_without_conditional_writes_is_refused_by_name(place: Place):
    CutStore(place.location, "job")
    fault = place.proxy.plan("PUT", "created", 501)
    with pytest.raises(StoreContractError, match=r"guarantee 3.*NotImplemented"):
        CutStore(place.location, "job").probe()
    assert fault.happened == 1


@pytest.mark.parametrize("location", ["s3://", "s3:///path", "gs://bucket/a/../b", "az://container//b"])
def test_a_location_that_names_no_place_is_refused(location: str):
    with pytest.raises(StoreError, match=r"write (s3|gs|az)://"):
        ObjectStore(location)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "http://", "http://host:port", "ftp://host", "http://host/a b"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    for location, variable in (("s3://b/cuts", "AWS_ENDPOINT_URL"), ("az://b/cuts", "AZURE_STORAGE_ENDPOINT")):
        with pytest.raises(StoreError, match=rf"{variable}={endpoint}.*http://HOST:PORT"):
            ObjectStore(location)


def test_a_bucket_that_does_not_exist_is_named(place: Place):
    scheme = place.location.partition("://")[0]
    with pytest.raises(StoreError, match=rf"{scheme}://missing"):
        CutStore(f"{scheme}://missing/cuts", "job")


def test_denied_access_says_which_rights_are_needed(place: Place):
    fault = place.proxy.plan("GET", "prepare", 403)
    with pytest.raises(StoreError, match=r"AccessDenied.*rights"):
        CutStore(place.location, "job")
    assert fault.happened == 1


def test_missing_credentials_are_named(place: Place, monkeypatch: pytest.MonkeyPatch):
    # The host's role is asked for at an address that answers at once, with a refusal.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"{place.proxy.url}/169.254.169.254")
    monkeypatch.setenv("AZURE_MSI_ENDPOINT", f"{place.proxy.url}/metadata/identity")
    with pytest.raises(StoreError, match=r"credentials.*set A"):
        place.open().prepare(is_signed=True)

"""Which Ray of this machine is joined, and so receives the token of this user: only one of this user or of root."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from backedge.engine.on_ray.attaching import (
    SeveralClustersError,
    Started,
    address_to_join,
    belongs_to,
    noted_address,
    running_here,
)
from tests.every import every

OWN = os.getuid()
ANOTHER = OWN + 1
NOBODY_ELSE = frozenset({OWN})


@pytest.fixture
def listening() -> Iterator[str]:
    """The address of a process of this user."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def raylet(address: str, uid: int) -> Started:
    return Started(("/opt/ray/raylet", "--x=1", f"--gcs-address={address}"), uid)


def test_a_daemon_of_another_user_is_not_believed(listening: str):
    assert running_here([raylet(listening, ANOTHER)], NOBODY_ELSE) == set()
    assert running_here([raylet(listening, OWN)], NOBODY_ELSE) == {listening}


def test_a_daemon_with_its_words_in_a_title_is_found(listening: str):
    assert running_here([Started((f"raylet --gcs-address={listening} --y=2",), OWN)], NOBODY_ELSE) == {listening}


@every("address", ["192.0.2.9:6379", "ray.example:6379", "localhost:6379", "None", "", "6379"])
def test_an_address_that_is_none_of_this_machine_is_not_believed(address: str):
    assert running_here([raylet(address, OWN)], NOBODY_ELSE) == set()


def test_a_port_at_which_another_user_listens_gets_nothing(listening: str, tmp_path: Path):
    """As after a crash of a Ray whose note was left behind."""
    assert belongs_to({OWN}, listening)
    assert not belongs_to({ANOTHER}, listening)
    port = int(listening.rpartition(":")[2])
    table = tmp_path / "tcp"
    rows = [f"0: 00000000:{port:04X} 00000000:0000 0A 0:0 00:0 0 {uid} 0 1 1" for uid in (OWN, ANOTHER)]
    table.write_text("\n".join(["head", *rows]))
    assert not belongs_to({OWN}, listening, [str(table)]), "one of several is another user's"


@pytest.mark.parametrize("tables", [(), None])
def test_where_nobody_listens_any_more_is_no_cluster(tables: tuple[str, ...] | None):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert belongs_to({OWN}, address, *([] if tables is None else [tables]))
    assert not belongs_to({OWN}, address, *([] if tables is None else [tables]))


def test_only_a_note_of_this_user_is_followed(listening: str, tmp_path: Path):
    note = tmp_path / "ray_current_cluster"
    note.write_text(f"{listening}\n")
    note.chmod(0o644)
    assert noted_address(str(note), NOBODY_ELSE) == listening
    assert noted_address(str(note), {ANOTHER}) is None
    assert noted_address(str(tmp_path / "none"), NOBODY_ELSE) is None
    (link := tmp_path / "link").symlink_to(note)
    assert noted_address(str(link), NOBODY_ELSE) is None
    os.mkfifo(pipe := tmp_path / "pipe")
    assert noted_address(str(pipe), NOBODY_ELSE) is None
    note.chmod(0o666)
    assert noted_address(str(note), NOBODY_ELSE) is None, "everybody may have written it"


def test_the_noted_cluster_is_joined_although_others_run():
    both = {"10.0.0.1:1", "10.0.0.1:2"}
    assert address_to_join("10.0.0.1:2", lambda: both) == "10.0.0.1:2"
    assert address_to_join(None, set) is None
    with pytest.raises(SeveralClustersError, match=r"10\.0\.0\.1:1 or 10\.0\.0\.1:2"):
        address_to_join(None, lambda: both)

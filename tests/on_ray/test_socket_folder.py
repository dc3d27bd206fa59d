"""A folder for sockets: it goes with its maker, and takes with it what others have put into it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backedge.engine.on_ray.transport import socket_folder
from backedge.engine.on_ray.transport.mailbox import Keys, Mailbox
from backedge.engine.on_ray.transport.socket_folder import SocketFolder

MAKES_ONE = """
import sys
from backedge.engine.on_ray.transport.socket_folder import SocketFolder
print(SocketFolder().path, flush=True)
sys.stdin.read()
"""
MAKERS, FOLDERS = 4, 50


@pytest.fixture(autouse=True)
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where folders are made during a test, with a short path."""
    with tempfile.TemporaryDirectory(prefix="folders-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


def test_a_folder_is_removed_with_the_sockets_of_others():
    folder = SocketFolder()
    bind(folder.path / "late")
    folder.remove()
    folder.remove()
    assert not folder.path.exists()
    with pytest.raises(FileNotFoundError):
        bind(folder.path / "too late")


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next_that_is_made(parent: Path):
    with subprocess.Popen(
        [sys.executable, "-c", MAKES_ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        theirs = Path(maker.stdout.readline().strip())
        assert theirs.parent == parent
        bind(theirs / "socket")
        SocketFolder().remove()
        assert theirs.is_dir(), "its maker is alive"
        maker.send_signal(signal.SIGKILL)
        maker.wait()
    assert theirs.is_dir()
    SocketFolder().remove()
    assert not theirs.exists()


def test_nothing_but_abandoned_folders_of_sockets_is_removed(parent: Path):
    files = [parent / "backedge-abc" / "box", parent / f"{socket_folder.PREFIX}abc" / "deeper" / "file"]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    (parent / f"{socket_folder.PREFIX}file").touch()
    (parent / f"{socket_folder.PREFIX}link").symlink_to(files[0].parent)
    before = sorted(parent.rglob("*"))
    SocketFolder().remove()
    assert sorted(parent.rglob("*")) == before


def test_root_leaves_the_folders_of_other_users_alone(parent: Path, monkeypatch: pytest.MonkeyPatch):
    theirs = parent / f"{socket_folder.PREFIX}abc"
    theirs.mkdir()
    monkeypatch.setattr(socket_folder.os, "geteuid", lambda: theirs.stat().st_uid + 1)
    SocketFolder().remove()
    assert theirs.is_dir()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(parent))
    SocketFolder().remove()
    assert not theirs.exists()


@pytest.mark.slow
def test_processes_that_make_folders_at_the_same_time_keep_theirs(parent: Path):
    def make_many(_: int) -> int:
        folders = [SocketFolder() for _ in range(FOLDERS)]
        kept = sum(folder.path.is_dir() for folder in folders)
        for folder in folders:
            folder.remove()
        return kept

    with ThreadPoolExecutor(MAKERS) as pool:
        assert list(pool.map(make_many, range(MAKERS))) == [FOLDERS] * MAKERS
    assert list(parent.iterdir()) == []


def test_a_file_system_without_locks_keeps_every_folder(monkeypatch: pytest.MonkeyPatch):
    def has_none(descriptor: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(socket_folder.fcntl, "flock", has_none)
    one, other = SocketFolder(), SocketFolder()
    assert one.path.is_dir() and other.path.is_dir()
    one.remove()
    other.remove()
    assert not one.path.exists() and not other.path.exists()


def test_a_mailbox_in_the_folder_of_another_leaves_it_to_its_maker():
    folder = SocketFolder()
    box = Mailbox("here", None, Keys.new(), folder.path)
    assert len(list(folder.path.iterdir())) == 2
    box.all_are_connected()
    box.close()
    assert folder.path.is_dir()
    folder.remove()
    assert not folder.path.exists()


def test_the_longest_path_of_a_socket_fits(parent: Path, monkeypatch: pytest.MonkeyPatch):
    longest = parent / ("x" * (socket_folder.PARENT_LENGTH_MAX - len(str(parent)) - 1))
    too_long = Path(f"{longest}x")
    for folder in (longest, too_long):
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        Mailbox("here", None, Keys.new()).close()
        made = SocketFolder()
        assert made.path.parent == (longest if folder == longest else Path("/tmp"))
        made.remove()

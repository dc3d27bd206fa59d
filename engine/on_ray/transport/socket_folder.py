"""A folder for Unix sockets that only this user can enter, and that no death of a process leaves behind for good.

- The process that makes a folder removes it. Other processes may put sockets into it and be killed at any moment: they
  have nothing to remove, and no socket can be bound in a folder that is gone.
- The maker locks its folder. The lock ends with its process, however that ends, and each new folder first removes those
  of this user on its host that nobody has locked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from pathlib import Path

PREFIX = "backedge-sockets-"
# The path of a socket may have 107 bytes: 25 of them for the folder's own name, and 16 for that of a socket.
PARENT_LENGTH_MAX = 60


class SocketFolder:
    """A folder of this process, until it is removed.

    >>> folder = SocketFolder()
    >>> folder.path.is_dir(), oct(folder.path.stat().st_mode & 0o777)
    (True, '0o700')
    >>> folder.remove()
    >>> folder.path.exists()
    False
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir())
        if len(str(parent)) > PARENT_LENGTH_MAX:
            parent = Path("/tmp")
        _remove_abandoned(parent)
        self.path, self._lock = _made_and_locked(parent)

    def remove(self) -> None:
        """Remove the folder with its sockets; connections that were made through them stay."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def _made_and_locked(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process has taken it for abandoned
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = path.exists()
        except BlockingIOError:
            is_ours = False
        except OSError:
            is_ours = True  # this file system has no locks, so nobody takes the folder for abandoned
        if is_ours:
            return path, lock
        os.close(lock)


def _remove_abandoned(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # it is gone, or another user's
        try:
            # Root may open those of other users, who could put a link to anything in the place of theirs.
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)
        except OSError:
            continue  # its maker is alive
        finally:
            os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder into which processes that are being killed may still put sockets."""
    while True:
        try:
            for path in folder.iterdir():
                path.unlink(missing_ok=True)
            folder.rmdir()
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                continue
        return

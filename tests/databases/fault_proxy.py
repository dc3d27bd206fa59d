"""A proxy between clients and a PostgreSQL server, on a Unix socket, that strikes at a step of the protocol.

It sees the statements that pass. At the one that a `Strike` waits for it holds the message back ("before"), or lets it
through, waits until the server has answered, and holds the answer back ("after"). Then it does what the strike says,
with the process id of the client, and cuts the connection.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tests.gates import HANG_S

Side = Literal["before", "after"]


def only_cut(client: int) -> None:
    """The connection is cut, and nothing else."""


@dataclass
class Strike:
    """Strikes once, at the `number`-th time that a client sends `statement`."""

    statement: str
    side: Side
    action: Callable[[int], object] = only_cut
    number: int = 1
    has_happened: threading.Event = field(default_factory=threading.Event)


class FaultProxy:
    """Strikes come in turn: the next one waits until the last one has happened."""

    def __init__(self, server_socket: str, *strikes: Strike) -> None:
        self.folder = tempfile.mkdtemp(prefix="pgx-", dir="/tmp")
        self.strikes = list(strikes)
        self._server_socket = server_socket
        self._lock = threading.Lock()
        self._next = 0
        self._left = strikes[0].number if strikes else 0
        self._listener = socket.socket(socket.AF_UNIX)
        path = Path(self.folder, ".s.PGSQL.5432")
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._is_over = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def dsn(self) -> str:
        return f"host={self.folder} user=tests dbname=postgres"

    @property
    def happened(self) -> int:
        self._wait_for_strikes()
        return sum(strike.has_happened.is_set() for strike in self.strikes)

    def _wait_for_strikes(self) -> None:
        """Wait for those that have begun: a client may be done before the server that it lost is up again."""
        for strike in self.strikes[: self._next]:
            strike.has_happened.wait(HANG_S)

    def plan(self, strike: Strike) -> None:
        """Strike from here on."""
        with self._lock:
            if self._next == len(self.strikes):
                self._left = strike.number
            self.strikes.append(strike)

    def close(self) -> None:
        self._wait_for_strikes()
        self._is_over = True
        # A blocked accept ends by a connection.
        with socket.socket(socket.AF_UNIX) as last:
            last.connect(str(Path(self.folder, ".s.PGSQL.5432")))
        self._accepting.join(HANG_S)
        self._listener.close()
        shutil.rmtree(self.folder)

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._is_over:
                client.close()
                return
            _Link(self, client, self._server_socket).start()

    def due(self, message: bytes) -> Strike | None:
        """The strike that waits for this message."""
        with self._lock:
            if self._next == len(self.strikes):
                return None
            strike = self.strikes[self._next]
            if strike.statement.encode() not in message:
                return None
            self._left -= 1
            if self._left > 0:
                return None
            self._next += 1
            self._left = self.strikes[self._next].number if self._next < len(self.strikes) else 0
            return strike


class _Link:
    def __init__(self, proxy: FaultProxy, client: socket.socket, server_socket: str) -> None:
        self._proxy = proxy
        self._client = client
        self._server_socket = server_socket
        self._server = socket.socket(socket.AF_UNIX)
        self._after: Strike | None = None

    def start(self) -> None:
        try:
            self._server.connect(self._server_socket)
        except OSError:
            # The server is down: so is this.
            self._client.close()
            self._server.close()
            return
        threading.Thread(target=self._to_server, daemon=True).start()
        threading.Thread(target=self._to_client, daemon=True).start()

    def _to_server(self) -> None:
        try:
            while message := self._client.recv(1 << 16):
                strike = self._proxy.due(message)
                if strike is not None and strike.side == "before":
                    self._strike(strike)
                    return
                self._after = strike
                self._server.sendall(message)
        except OSError:
            pass
        self._cut()

    def _to_client(self) -> None:
        try:
            while message := self._server.recv(1 << 16):
                if self._after is not None:
                    self._strike(self._after)
                    return
                self._client.sendall(message)
        except OSError:
            pass
        self._cut()

    def _strike(self, strike: Strike) -> None:
        pid, _, _ = struct.unpack("3i", self._client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        try:
            strike.action(pid)
            strike.has_happened.set()
        finally:
            self._cut()

    def _cut(self) -> None:
        for end in (self._client, self._server):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # it is cut already
            finally:
                end.close()


def kill_client(client: int) -> None:
    """SIGKILL to the client."""
    if client == os.getpid():
        raise ValueError("the client is the test itself")
    os.kill(client, 9)

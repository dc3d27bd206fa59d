"""A proxy in front of a server of objects that makes requests fail, and counts the failures."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import SHUT_RDWR
from typing import Literal
from urllib.parse import unquote

from tests.gates import HANG_S

Kind = Literal["lost reply", "lost request", "late", "slow", "cut", 403, 409, 412, 501, 503]

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


@dataclass
class Fault:
    """What happens to the next `times` requests of a method whose path holds `name`.

    - lost reply: the server carries it out, and the connection is closed without an answer
    - lost request: the connection is closed, and the server gets nothing
    - late: the connection is closed, and the server gets it when the test releases it
    - slow: the server carries it out, and the answer is held until the proxy closes
    - cut: half of the answer's body arrives
    - a number: this status, and the server gets nothing
    """

    method: str
    name: str
    kind: Kind
    times: int = 1
    happened: int = 0
    # Set once the server has carried out a late request.
    has_landed: threading.Event = field(default_factory=threading.Event)


class FaultyServer:
    """Listens on a port of its own and forwards to a server."""

    def __init__(self, host: str, port: int) -> None:
        self.upstream = (host, port)
        self.dropped_headers: set[str] = set()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._released = threading.Event()
        self.creations = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def plan(self, method: str, name: str, kind: Kind, times: int = 1) -> Fault:
        fault = Fault(method, name, kind, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def reset(self) -> None:
        """Release what is held, and forget all plans."""
        with self._lock:
            self._faults, self.dropped_headers = [], set()
            self._released.set()
            self._released = threading.Event()

    def release(self) -> None:
        """Let late requests through."""
        self._released.set()

    def close(self) -> None:
        self.reset()
        self._server.shutdown()
        self._server.server_close()

    def due(self, method: str, path: str) -> tuple[Fault | None, threading.Event]:
        with self._lock:
            for fault in self._faults:
                if fault.happened < fault.times and fault.method == method and fault.name in path:
                    fault.happened += 1
                    return fault, self._released
            return None, self._released


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    proxy: FaultyServer

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that give up are what the tests are about."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        proxy = self.server.proxy
        fault, released = proxy.due(self.command, unquote(self.path))
        kind = None if fault is None else fault.kind
        if isinstance(kind, int):
            self._refuse(kind)
        elif kind == "lost request":
            self.close_connection = True
        elif kind == "late":
            self.connection.shutdown(SHUT_RDWR)
            self.close_connection = True
            released.wait(HANG_S)
            self._forward(body)
            fault.has_landed.set()
        else:
            response, data = self._forward(body)
            if kind == "slow":
                released.wait(HANG_S)
            if kind in ("lost reply", "slow"):
                self.close_connection = True
            else:
                self._answer(response, data, is_cut=kind == "cut")

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

    def _forward(self, body: bytes) -> tuple[HTTPResponse, bytes]:
        proxy = self.server.proxy
        connection = HTTPConnection(*proxy.upstream, timeout=HANG_S)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in proxy.dropped_headers:
                    connection.putheader(name, value)
            # moto looks for the object first and writes it then: two creations at once would both succeed.
            with proxy.creations:
                connection.endheaders(body or None)
                response = connection.getresponse()
                return response, response.read()
        finally:
            connection.close()

    def _answer(self, response: HTTPResponse, data: bytes, is_cut: bool) -> None:
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        size = response.getheader("content-length") or "0" if self.command == "HEAD" else str(len(data))
        self.send_header("content-length", size)
        self.end_headers()
        if is_cut:
            self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if is_cut else data)

    def _refuse(self, status: int) -> None:
        code = {403: "AccessDenied", 409: "ConditionalRequestConflict", 412: "PreconditionFailed"}
        code |= {501: "NotImplemented", 503: "SlowDown"}
        data = f"<Error><Code>{code[status]}</Code><Message>planned by the test</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

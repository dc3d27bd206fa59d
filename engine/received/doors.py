"""Where records arrive for a log: an HTTP endpoint, a socket of lines, or a generator. JSON only: nothing is unpickled.

- A door is opened on the loopback address unless another one is given, and then it wants a token.
- A browser names the page that a request comes from (`Origin`). Without a token such requests are refused: any page
  could otherwise send records to this machine.
- The size of a body, or of a line, is bounded.
"""

from __future__ import annotations

import asyncio
import hmac
import pickle
import threading
import traceback
import zlib
from contextlib import suppress
from functools import partial
from json import dumps
from typing import Any, Protocol, cast

from aiohttp import web
from msgspec import DecodeError, Struct, json

from backedge.engine.received.received_log import FullError, NotKeptError, ReceivedLog, TooLargeError
from backedge.engine.received.segments import decoded, encoded

RETRY_AFTER_S = 1
READ_BYTES = 1 << 16
LIST_BEGINS = b"["
MEMBERS_MAX = 64


class DoorSpec(Struct, frozen=True):
    """Where to listen, for bodies or lines of at most `body_bytes_max` bytes. `kind`: "http", "lines" or "generator".

    `make`: the function that makes the generator, pickled.
    """

    kind: str
    host: str
    port: int
    token: str | None
    body_bytes_max: int
    make: bytes = b""


class Door(Protocol):
    """Where records arrive. `address`: where, once it is open."""

    address: str

    async def open(self) -> None:
        """Begin to listen. Raises an `OSError` if that is not possible."""

    async def close(self) -> None:
        """Stop listening."""


class TooLongError(ValueError):
    """A body that is larger than the door takes."""


class MalformedError(ValueError):
    """A body or a line that is not JSON."""


def records_in(body: bytes, *, may_be_list: bool = True) -> bytes:
    """The records of a body as lines: those of a JSON list, or else one in each line.

    >>> records_in(b'[{"a": 1}, 2]'), records_in(b'{"a": 1}'), records_in(b"[1, 2]", may_be_list=False)
    (b'{"a":1}\\n2\\n', b'{"a":1}\\n', b'[1,2]\\n')
    """
    try:
        is_list = may_be_list and body.lstrip()[:1] == LIST_BEGINS
        return encoded(json.decode(body) if is_list else decoded(body))
    except (DecodeError, RecursionError, UnicodeDecodeError) as error:
        form = "a JSON list of records, or one record in each line" if may_be_list else "one record in each line"
        raise MalformedError(f"this cannot be read ({error}): send {form}, as JSON") from error


def unpacked(body: bytes, coding: str, bytes_max: int) -> bytes:
    """A body as it was before it was packed: all of it, or an error.

    >>> from gzip import compress
    >>> unpacked(compress(b"1 ") + compress(b"2"), "gzip", 100), unpacked(b"3", "", 100)
    (b'1 2', b'3')
    """
    if coding in ("", "identity") or not body:
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise MalformedError(f"the body is packed as {coding}: send it as it is, or packed by gzip")
    # Some pack by deflate without the header that this has.
    form = zlib.MAX_WBITS | 16 if coding != "deflate" else zlib.MAX_WBITS if body[0] & 15 == 8 else -zlib.MAX_WBITS
    found, left = b"", body
    for _ in range(MEMBERS_MAX):
        unpacking = zlib.decompressobj(form)
        try:
            found += unpacking.decompress(left, bytes_max + 1)
        except zlib.error as error:
            raise MalformedError(f"the body cannot be unpacked ({error}): send it again") from error
        if len(found) > bytes_max:
            raise TooLongError(f"the body has more than {bytes_max:,} bytes when it is unpacked: send less at a time")
        if not unpacking.eof:
            # What there is of it may be lines, too.
            raise MalformedError("the body ends before what it has packed: send it again")
        left = unpacking.unused_data
        if not left:
            return found
    raise MalformedError(f"the body was packed in more than {MEMBERS_MAX} parts: pack it as one")


def lines_of(records: list[Any]) -> bytes:
    """Records of a program as lines. `ValueError` for NaN and the infinite, which would become null, and for keys of a
    dict that become the same text, of which a reader would find one.

    >>> lines_of([{"a": None}, (1, 2.5)])
    b'{"a":null}\\n[1,2.5]\\n'
    """
    lines = encoded(records)
    if b"null" in lines:
        try:
            dumps(records, allow_nan=False, skipkeys=True, default=lambda value: None)
        except ValueError as error:
            raise ValueError(f"a list that it yielded has a number that JSON does not have: {error}") from None
    if encoded(decoded(lines)) != lines:
        raise ValueError("a list that it yielded has a dict with two keys that become the same text")
    return lines


class HttpDoor:
    """POST records to /: answered with 200 when they are durable. GET / says how much is kept, and for whom."""

    def __init__(self, spec: DoorSpec, log: ReceivedLog) -> None:
        self.address = ""
        self._spec = spec
        self._log = log
        self._runner: web.AppRunner | None = None

    async def open(self) -> None:
        app = web.Application(client_max_size=self._spec.body_bytes_max)
        app.add_routes([web.post("/", self._take), web.get("/", self._show)])
        # aiohttp takes the beginning of a packed body for all of it.
        self._runner = web.AppRunner(app, access_log=None, auto_decompress=False)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._spec.host, self._spec.port, reuse_address=True).start()
        host, port = self._runner.addresses[0][:2]
        self.address = f"http://{host}:{port}/"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _take(self, request: web.Request) -> web.Response:
        if (refusal := self._refusal(request)) is not None:
            return refusal
        try:
            coding = request.headers.get("Content-Encoding", "").strip().lower()
            lines = records_in(unpacked(await request.read(), coding, self._spec.body_bytes_max))
            if lines:
                await self._log.keep(lines)
        except MalformedError as error:
            return _error(400, error)
        except (TooLargeError, TooLongError) as error:
            return _error(413, error)
        except FullError as error:
            return _error(429, error, {"Retry-After": str(RETRY_AFTER_S)})
        except NotKeptError as error:
            return _error(503, error, {"Retry-After": str(RETRY_AFTER_S)})
        return web.json_response({"records": lines.count(b"\n")})

    async def _show(self, request: web.Request) -> web.Response:
        state, header = self._log.state, self._log.state.header
        shown = {"first": header.first, "last": header.segment, "bytes": header.bytes, "bytes_max": state.bytes_max}
        return self._refusal(request) or web.json_response({**shown, "readers": state.needs})

    def _refusal(self, request: web.Request) -> web.Response | None:
        token = self._spec.token
        if token is None and "Origin" in request.headers:
            return _error(403, "requests of web pages are refused: give the endpoint a token")
        if token is not None and not is_token(request.headers.get("Authorization", ""), f"Bearer {token}"):
            return _error(401, "send the token of the endpoint, as in  Authorization: Bearer TOKEN")
        return None


def is_token(given: str, wanted: str) -> bool:
    """Whether this is the token. A header may hold bytes that are no text."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), wanted.encode())


def _error(status: int, error: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": str(error)}, status=status, headers=headers)


class LinesDoor:
    """A socket of lines, one record of JSON in each. It answers with the number of lines that are durable, as it grows.

    A sender waits while the log is full: nothing more is read from its connection. The first line is the token, if
    there is one. A line that is no record is answered with the reason, and ends the connection.
    """

    def __init__(self, spec: DoorSpec, log: ReceivedLog) -> None:
        self.address = ""
        self._spec = spec
        self._log = log
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        spec = self._spec
        self._server = await asyncio.start_server(self._serve, spec.host, spec.port, limit=spec.body_bytes_max)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._take(reader, writer)
        except (MalformedError, NotKeptError, TooLargeError) as error:
            with suppress(ConnectionError):
                writer.write(f"error: {error}\n".encode())
                await writer.drain()
        except ConnectionError:
            pass  # the sender knows which lines are durable
        finally:
            writer.close()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        spec, count, rest = self._spec, 0, b""
        if spec.token is not None and not is_token((await _line(reader)).decode(errors="replace"), spec.token):
            raise MalformedError("the first line must be the token of the endpoint")
        while data := await reader.read(READ_BYTES):
            whole, end, rest = (rest + data).rpartition(b"\n")
            if len(rest) > spec.body_bytes_max:
                raise MalformedError(f"a line has more than {spec.body_bytes_max:,} bytes: send shorter ones")
            if whole or end:
                await self._log.keep_in_time(records_in(whole + end, may_be_list=False))
                # An empty line is one as well: the sender counts those that it has sent.
                count += whole.count(b"\n") + 1
                writer.write(f"{count}\n".encode())
                await writer.drain()
        if rest:
            # It may be the beginning of a longer one.
            raise MalformedError("the last line has no line feed at its end, so it was not kept: end each with one")


async def _line(reader: asyncio.StreamReader) -> bytes:
    try:
        return (await reader.readuntil()).strip()
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return b""


class GeneratorDoor:
    """Calls a function of the user's, and keeps the lists that it yields. It goes on when a list is durable.

    One that raises is called again after a pause, and so is each when the process starts again; one that ends is not.
    """

    def __init__(self, spec: DoorSpec, log: ReceivedLog) -> None:
        self.address = "a generator"
        self._make = spec.make
        self._log = log
        self._is_closed = threading.Event()

    async def open(self) -> None:
        run = partial(self._run, asyncio.get_running_loop())
        threading.Thread(target=run, name="generator", daemon=True).start()

    async def close(self) -> None:
        self._is_closed.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        make = pickle.loads(self._make)
        while not self._is_closed.is_set():
            try:
                for records in make():
                    if not isinstance(records, list):
                        raise TypeError(f"it yielded {records!r}: yield a list of records")
                    lines = lines_of(cast("list[Any]", records))
                    asyncio.run_coroutine_threadsafe(self._log.keep_in_time(lines), loop).result()
                return
            except Exception:  # noqa: BLE001 - it calls code of the user's
                traceback.print_exc()
                self._is_closed.wait(RETRY_AFTER_S)

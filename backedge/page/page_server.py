"""Serves the live page over HTTP, on this machine only and to those who know its token.

- It listens on the loopback address. The address that is printed contains a random token behind a `#`, which browsers
  send to no server. The page keeps it for its own origin, which includes the port, and sends it as a header with each
  request for data. A cookie would be sent to every server of this machine.
- Requests that name another host are refused, so that no foreign page can reach it under a name of its own.
- Nothing here changes a cut, and a run only with `--control`. A button sends a POST with the token. A page of another
  origin, as that of another port of this machine, cannot send such a header, and none can show this one in a frame.
- The page loads nothing from anywhere else (Content-Security-Policy).
- Statuses are pushed as server-sent events. What blocks runs in threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from importlib.resources import files
from typing import Any

from aiohttp import web

from backedge.engine.on_ray.run_spec import RequestFailedError
from backedge.engine.received.doors import is_token
from backedge.flows import WrongCallError
from backedge.graphs.graph_errors import GraphError
from backedge.page.page_source import PageSource
from backedge.recovery.stores.store_errors import StoreError

HOST = "127.0.0.1"
PUSH_S = 1.0
TOKEN_BYTES = 16
ASSETS = {"app.js": "text/javascript", "style.css": "text/css"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'"
)
NOT_FOUND = (WrongCallError, GraphError, StoreError)
TOKEN_HEADER = "Backedge-Token"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Steer = Callable[[str, str, str], str]
"""Does to a run what a button says, with the text beside the button; returns what was done, and blocks until then."""


class PageServer:
    """The page of some jobs. `address` is where to open it, once it serves."""

    def __init__(self, source: PageSource, port: int = 0, steer: Steer | None = None) -> None:
        self._source = source
        self._steer = steer
        self._port = port
        self._token = secrets.token_urlsafe(TOKEN_BYTES)
        self._loop = asyncio.new_event_loop()
        self._is_over = asyncio.Event()
        self.address = ""

    def start(self) -> None:
        """Serve in a thread of its own. Raises `OSError` if the port is taken."""
        started: threading.Event = threading.Event()
        fault: list[OSError] = []
        threading.Thread(target=self._run, args=(started, fault), name="page", daemon=True).start()
        started.wait()
        if fault:
            why = os.strerror(fault[0].errno or 0)
            raise OSError(f"the page cannot be served at port {self._port} ({why}): give another one") from fault[0]

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._is_over.set)

    def _run(self, started: threading.Event, fault: list[OSError]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve(started))
        except OSError as error:
            fault.append(error)
        finally:
            started.set()
            self._loop.close()

    async def _serve(self, started: threading.Event) -> None:
        runner = web.AppRunner(self._app(), shutdown_timeout=1.0, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, HOST, self._port)
            await site.start()
            _, self._port = runner.addresses[0][:2]
            self.address = f"http://{HOST}:{self._port}/#token={self._token}"
            started.set()
            await self._is_over.wait()
        finally:
            await runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        if self._steer is not None:
            app.add_routes([web.post("/api/runs/{run}/{action}", partial(self._act, self._steer))])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/assets/{name}", self._asset),
                web.get("/api/control", self._told(lambda request: self._steer is not None)),
                web.get("/api/jobs", self._told(lambda request: self._source.jobs())),
                web.get("/api/jobs/{job}/status", self._told(lambda r: self._source.status(_word(r, "job")))),
                web.get("/api/jobs/{job}/events", self._events),
                web.get("/api/jobs/{job}/cuts/{epoch}", self._told(lambda r: self._source.cut(*_cut(r)))),
                web.get(
                    "/api/jobs/{job}/cuts/{epoch}/state/{name}",
                    self._told(lambda r: self._source.state(*_cut(r), _word(r, "name"), _search(r))),
                ),
                web.get(
                    "/api/jobs/{job}/cuts/{epoch}/inflight/{name}",
                    self._told(lambda r: self._source.in_flight(*_cut(r), _word(r, "name"), _search(r))),
                ),
                web.get(
                    "/api/jobs/{job}/cuts/{epoch}/positions",
                    self._told(lambda r: self._source.positions(*_cut(r), _search(r))),
                ),
                web.get(
                    "/api/jobs/{job}/cuts/{epoch}/transactions",
                    self._told(lambda r: self._source.transactions(*_cut(r), _search(r))),
                ),
                web.get(
                    "/api/jobs/{job}/cuts/{epoch}/diff/{before}",
                    self._told(
                        lambda r: self._source.diff(_word(r, "job"), _number(r, "before"), _cut(r)[1], _search(r))
                    ),
                ),
            ]
        )
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.host not in (f"{HOST}:{self._port}", f"localhost:{self._port}"):
            raise web.HTTPForbidden(text="this page is served under its own address only\n")
        if request.path.startswith("/api/") and not is_token(request.headers.get(TOKEN_HEADER, ""), self._token):
            error = "open the address that `backedge` has printed: it contains the token"
            return web.json_response({"error": error}, status=403)
        return await handler(request)

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return _asset("index.html", "text/html")

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in ASSETS:
            raise web.HTTPNotFound
        return _asset(name, ASSETS[name])

    def _told(self, ask: Callable[[web.Request], Any]) -> Handler:
        """A handler that answers with JSON."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                return web.json_response(await asyncio.to_thread(ask, request))
            except NOT_FOUND as error:
                return web.json_response({"error": str(error)}, status=404)
            except OSError as error:
                return web.json_response({"error": str(error)}, status=503)

        return handle

    async def _act(self, steer: Steer, request: web.Request) -> web.StreamResponse:
        """Do what a button of this page asks for."""
        if request.headers.get("Origin") != f"http://{request.host}":
            raise web.HTTPForbidden(text="only the buttons of this page steer a run\n")
        asked = _word(request, "run"), _word(request, "action")
        try:
            given = (await request.text()).strip()
            told = await _returned(partial(steer, *asked, given))
        except (*NOT_FOUND, RequestFailedError, OSError, ValueError) as error:
            # To be refused is an outcome, and no error of the page, which browsers would make of another status.
            return web.json_response({"error": str(error)})
        return web.json_response({"done": told})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """The status of a job, whenever it has changed."""
        job, last = _word(request, "job"), ""
        headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        while not self._is_over.is_set():
            try:
                told = json.dumps(await asyncio.to_thread(self._source.status, job))
                event = "status"
            except (*NOT_FOUND, OSError) as error:
                told, event = json.dumps({"error": str(error)}), "fault"
            try:
                await response.write(b": alive\n\n" if told == last else f"event: {event}\ndata: {told}\n\n".encode())
            except ConnectionError:
                break
            last = told
            try:
                await asyncio.wait_for(self._is_over.wait(), PUSH_S)
            except TimeoutError:
                continue
        return response


async def _returned(act: Callable[[], str]) -> str:
    """What a button returns. It may wait for long, in a thread that keeps neither the page nor this process busy."""
    outcome: Future[str] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(act())
        except Exception as error:  # noqa: BLE001  # raised where the answer is waited for
            outcome.set_exception(error)

    threading.Thread(target=run, name="steering", daemon=True).start()
    return await asyncio.wrap_future(outcome)


def _asset(name: str, kind: str) -> web.Response:
    text = files("backedge.page").joinpath("assets", name).read_text(encoding="utf-8")
    headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
    return web.Response(text=text, content_type=kind, headers={**headers, "Referrer-Policy": "no-referrer"})


def _word(request: web.Request, name: str) -> str:
    return request.match_info[name]


def _search(request: web.Request) -> str:
    return request.query.get("search", "")


def _cut(request: web.Request) -> tuple[str, int]:
    return request.match_info["job"], _number(request, "epoch")


def _number(request: web.Request, name: str) -> int:
    epoch = request.match_info[name]
    if not (epoch.isascii() and epoch.isdigit() and len(epoch) < 19):
        raise WrongCallError(f"{epoch!r} is not the number of a cut")
    return int(epoch)

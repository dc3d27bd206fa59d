"""Servers on loopback, for examples that call something outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeAlias

from aiohttp import web

Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def serve(handler: Handler) -> str:
    """Serve from a thread of this process, as long as it lives. Returns the address."""
    address: Future[str] = Future()

    async def serve_for_ever() -> None:
        runner = web.ServerRunner(web.Server(handler))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        address.set_result(f"http://127.0.0.1:{runner.addresses[0][1]}")
        await asyncio.Event().wait()

    threading.Thread(target=asyncio.run, args=(serve_for_ever(),), name="server", daemon=True).start()
    return address.result()

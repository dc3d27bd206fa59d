"""A chat endpoint on loopback that answers what a test has written, in this order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from aiohttp import web

from backedge.engine.operators.async_calls import in_event_loop


class Answer(NamedTuple):
    """A response. Its body is JSON or text; None: it never comes."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = {}


def says(text: str, **fields: Any) -> Answer:
    """A completion of one message."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return Answer({"choices": [choice], **fields})


class ChatServer:
    """`requests` are the headers and the body of each request. The last answer is repeated."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.requests: list[tuple[Mapping[str, str], Any]] = []
        self.url = ""
        self._is_over = asyncio.Event()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append((request.headers, await request.json()))
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if answer.body is None:
            await self._is_over.wait()
        text = isinstance(answer.body, str)
        make = web.Response(text=answer.body) if text else web.json_response(answer.body)
        make.set_status(answer.status)
        make.headers.update(answer.headers)
        return make

    async def _serve(self) -> web.ServerRunner:
        runner = web.ServerRunner(web.Server(self._answer))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    @contextmanager
    def serving(self) -> Iterator[ChatServer]:
        runner = in_event_loop(self._serve()).result()
        try:
            yield self
        finally:
            in_event_loop(self._end(runner)).result()

    async def _end(self, runner: web.ServerRunner) -> None:
        self._is_over.set()
        await runner.cleanup()

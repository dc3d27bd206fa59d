"""Serves a stand-in for a language model on loopback, which counts what it is asked: an OpenAI-compatible endpoint.

    python -m examples.cyclic.model_server

It can do one thing, asked as "Sum the squares of 3 5 2": it calls the tool `square` for each number, once more for each
failure, and `ask_person` about a sum above 600. Each reply costs its tokens, which are words here. A request whose
Idempotency-Key was answered gets the same reply and is not charged again.
"""

from __future__ import annotations

import asyncio
import json
import threading
from functools import cache
from typing import Any

from aiohttp import web

from examples.cyclic.loopback import serve

Message = dict[str, Any]

TASK = "Sum the squares of "
ASKED_ABOVE = 600
FAILED = "failed"
SECONDS = 0.005
"""How long a reply takes."""


def next_message(messages: list[Message]) -> Message:
    """What the assistant says next."""
    numbers = [int(word) for word in messages[0]["content"].removeprefix(TASK).split()]
    heard = [message["content"] for message in messages if message["role"] == "tool"]
    squares = [int(content) for content in heard if content.isdigit()]
    total = sum(squares)
    if len(squares) < len(numbers):
        tries = next((n for n, content in enumerate(reversed(heard)) if content != FAILED), len(heard))
        return _call("square", n=numbers[len(squares)], tries=tries + 1)
    if total > ASKED_ABOVE and heard[-1].isdigit():
        return _call("ask_person", answer=total)
    is_withheld = total > ASKED_ABOVE and heard[-1] != "approved"
    return {"role": "assistant", "content": "withheld" if is_withheld else f"The answer is {total}"}


def _call(tool: str, **arguments: int) -> Message:
    function = {"name": tool, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def tokens_of(messages: list[Message]) -> int:
    """How many words there are in these messages. A tool call has two."""
    return sum(len((message["content"] or "a call").split()) for message in messages)


class ModelServer:
    """Answers, and counts. `charged`: the tokens of each request, by its key. `repeated`: how many were known."""

    def __init__(self) -> None:
        self.charged: dict[str, int] = {}
        self.repeated = 0
        self._replies: dict[str, dict[str, Any]] = {}

    def __str__(self) -> str:
        tokens = sum(self.charged.values())
        return f"{len(self.charged)} requests answered for {tokens} tokens, {self.repeated} repeated and not charged"

    async def answer(self, sent: web.BaseRequest) -> web.Response:
        key = sent.headers.get("Idempotency-Key", f"request {len(self.charged)}")
        messages: list[Message] = (await sent.json())["messages"]
        if key in self._replies:
            self.repeated += 1
            return web.json_response(self._replies[key])
        await asyncio.sleep(SECONDS)
        message = next_message(messages)
        usage = {"prompt_tokens": tokens_of(messages), "completion_tokens": tokens_of([message])}
        self.charged[key] = sum(usage.values())
        self._replies[key] = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}
        return web.json_response(self._replies[key])


@cache
def served() -> tuple[ModelServer, str]:
    """The server of this process, which is started once, and its address."""
    server = ModelServer()
    return server, f"{serve(server.answer)}/v1"


if __name__ == "__main__":
    from examples.cyclic.command_line import take_no_options

    take_no_options(__name__)
    print(f"a stand-in for a model answers at {served()[1]} until Ctrl-C, and then says what it was asked", flush=True)
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print(served()[0])

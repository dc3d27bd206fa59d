"""A language model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from http import HTTPStatus
from math import isnan
from typing import Annotated, Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Meta, Struct

from backedge.engine.callees.retry import is_busy, retry
from backedge.engine.operators.async_calls import request_key
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.options import check_count, is_above_zero
from backedge.graphs.public import public

WORDS_MAX = 500
REFUSAL_BYTES_MAX = 16_384
RETRY_AFTER_S_MAX = 300.0
"""A service that is busy for longer is asked again after this time."""

SECRET_MIN = 8
"""Shorter values of headers are no secrets: to remove them from a message would garble it."""

CLOSE_S = 1.0
NOT_TAKEN = {"n": "ask as often as you want answers", "stream": "the whole answer is awaited"}


@public
class Reply(Struct, frozen=True):
    """The answer of a chat endpoint: its first choice. What the server does not tell is None.

    `message` is the assistant's, to be appended to the messages of the next request, tool calls included. The ids of
    the tokens and the logarithms of their probabilities are there if the request asks for them, as with
    `return_token_ids=True` (vLLM) and `logprobs=True`.

    >>> reply = Reply({"role": "assistant", "content": "42"}, finish_reason="stop", completion_tokens=1)
    >>> reply.text, reply.tool_calls
    ('42', [])
    """

    message: dict[str, Any]
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None

    @property
    def text(self) -> str:
        """The content of the message; empty if it has none, as with a tool call."""
        return self.message.get("content") or ""

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        return self.message.get("tool_calls") or []


@public
class ChatError(Exception):
    """A chat endpoint refuses a request, or does not answer, and further tries have not helped.

    `status` is that of the HTTP response, None if there is none; `words` has up to 500 characters of the server's text.

    Fix: correct the request if `status` is 400 to 422; otherwise look at the server, and give `tries=` or `timeout=`. A
    stream with `on_error="dead_letter"` sets such records aside.
    """

    def __init__(self, message: str, status: int | None, words: str, retry_after_s: float | None = None) -> None:
        super().__init__(message, status, words, retry_after_s)
        self.message = message
        self.status = status
        self.words = words
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may be answered later."""
        return self.status is None or is_busy(self.status)


@public
class Chat:
    """An OpenAI-compatible chat endpoint: `await chat(messages)` returns its `Reply`.

    `defaults` are fields of every request, such as `temperature`; keywords of a call replace them. `timeout` bounds
    each of up to `tries` requests, in seconds. Busy servers, lost connections and timeouts are tried again, after the
    time that the server asks for (Retry-After), else after growing pauses. What is left is a `ChatError`.

    The key is `api_key`, or OPENAI_API_KEY in the environment of the process that calls; it is in no message and no
    `repr`. In a call of `map_async` that keeps its answers, the header Idempotency-Key names the request: it
    starts with `idempotency_key()`, and is the same in every attempt.

    A Chat can be a global, travel in a closure, or belong to a class. All that are used in an event loop share its
    connections, which are opened by the first request. `close` or `async with` closes them.

    >>> Chat("http://localhost:8000/v1", "small", temperature=0.2)
    Chat('http://localhost:8000/v1', 'small')
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        tries: int = 5,
        headers: Mapping[str, str] | None = None,
        **defaults: Any,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise BadOptionError(f"Chat got base_url={base_url!r}: give an address such as http://localhost:8000/v1")
        check_count(tries, "tries", "Chat")
        if not is_above_zero(timeout):
            raise BadOptionError(f"Chat has timeout={timeout!r}: give seconds above 0")
        _check_fields(defaults)
        self.model = model
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        # Without what may stand before an @.
        self._shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        self._api_key = api_key
        self._timeout_s = timeout
        self._tries = tries
        self._headers = dict(headers or {})
        self._defaults = defaults

    def __repr__(self) -> str:
        return f"Chat({self._shown!r}, {self.model!r})"

    async def __call__(self, messages: Sequence[Mapping[str, Any]], **fields: Any) -> Reply:
        """Ask for the next message. `fields` of the request, such as `tools`, are passed on as they are."""
        _check_fields(fields)
        asked = {"model": self.model, **self._defaults, **fields, "messages": messages}
        body = msgspec.json.encode(asked, order="deterministic")
        headers = {"Content-Type": "application/json", **self._headers}
        api_key = self._key()
        if api_key and not any(name.lower() == "authorization" for name in headers):
            headers["Authorization"] = f"Bearer {api_key}"
        # One for all tries.
        if key := request_key(body):
            headers["Idempotency-Key"] = key
        return await retry(self._ask, tries=self._tries, after=_retry_after_s)(body, headers)

    async def close(self) -> None:
        """Close the connections of this event loop, after its last request. A later request opens others."""
        opened = _sessions.pop(asyncio.get_running_loop(), None)
        if opened is not None:
            await opened.leave()

    async def __aenter__(self) -> Chat:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _key(self) -> str:
        return (self._api_key or os.environ.get("OPENAI_API_KEY", "")).strip()

    async def _ask(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        limit = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with (
                _session() as session,
                # Another server must get neither the key nor the messages.
                session.post(self._url, data=body, headers=headers, timeout=limit, allow_redirects=False) as response,
            ):
                if response.status != HTTPStatus.OK:
                    refusal = await _read(response.content, REFUSAL_BYTES_MAX)
                    raise self._refusal(response.status, refusal, response.headers.get("Retry-After", ""))
                answer = await response.read()
        except TimeoutError as error:
            raise self._error(f"gives no answer within timeout={self._timeout_s:g} seconds", None, "") from error
        except aiohttp.ClientError as error:
            raise self._error(f"cannot be asked: {type(error).__name__}", None, str(error)) from error
        return self._reply(answer)

    def _reply(self, answer: bytes) -> Reply:
        try:
            read = msgspec.json.decode(answer, type=_Completion)
        except msgspec.MsgspecError as error:
            what = f"answers what is no chat completion ({error})"
            raise self._error(what, HTTPStatus.OK, answer[:REFUSAL_BYTES_MAX].decode(errors="replace")) from error
        choice = read.choices[0]
        content = None if choice.logprobs is None else choice.logprobs.content
        return Reply(
            choice.message,
            choice.finish_reason,
            None if read.usage is None else read.usage.prompt_tokens,
            None if read.usage is None else read.usage.completion_tokens,
            read.prompt_token_ids,
            choice.token_ids,
            None if content is None else [token.logprob for token in content],
        )

    def _refusal(self, status: int, refusal: bytes, retry_after: str) -> ChatError:
        what = f"answers {status}"
        try:
            words = msgspec.json.decode(refusal, type=_Refusal).error.message
        except msgspec.MsgspecError:
            words = refusal.decode(errors="replace")
            if status == HTTPStatus.NOT_FOUND:
                what += " (it has no /chat/completions there: base_url often ends with /v1)"
        if status == HTTPStatus.UNAUTHORIZED and not self._key():
            what += " (this process has no OPENAI_API_KEY: set it in the environment of its workers, or give api_key=)"
        return self._error(what, status, words, seconds_of(retry_after, datetime.now(UTC)))

    def _error(self, what: str, status: int | None, words: str, retry_after_s: float | None = None) -> ChatError:
        for secret in (self._key(), *self._headers.values()):
            if len(secret) >= SECRET_MIN:
                words = words.replace(secret, "...")
        words = " ".join(words.split())[:WORDS_MAX]
        return ChatError(f"{self!r} {what}{words and ': '}{words}", status, words, retry_after_s)


def _check_fields(fields: Mapping[str, Any]) -> None:
    for name, instead in NOT_TAKEN.items():
        if name in fields:
            raise BadOptionError(f"Chat takes no {name}=: {instead}")


def _retry_after_s(error: Exception) -> float | None:
    return error.retry_after_s if isinstance(error, ChatError) else None


def seconds_of(retry_after: str, now: datetime) -> float | None:
    """What a header Retry-After says: seconds, or a date. None if it says nothing.

    >>> now = datetime(2026, 10, 21, 7, 27, 30, tzinfo=UTC)
    >>> seconds_of("1.5", now), seconds_of("Wed, 21 Oct 2026 07:28:00 GMT", now), seconds_of("soon", now)
    (1.5, 30.0, None)
    """
    seconds = None
    with suppress(ValueError):
        seconds = float(retry_after)
    if seconds is None:
        with suppress(ValueError, OverflowError):
            at = parsedate_to_datetime(retry_after)
            # A date without a zone is one of UTC.
            seconds = (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - now.timestamp()
    return None if seconds is None or isnan(seconds) else min(max(0.0, seconds), RETRY_AFTER_S_MAX)


async def _read(content: aiohttp.StreamReader, bytes_max: int) -> bytes:
    try:
        return await content.readexactly(bytes_max)
    except asyncio.IncompleteReadError as error:
        return error.partial


class _Token(Struct):
    logprob: float


class _Tokens(Struct):
    content: list[_Token] | None = None


class _Choice(Struct):
    message: dict[str, Any]
    finish_reason: str | None = None
    logprobs: _Tokens | None = None
    token_ids: list[int] | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(Struct):
    choices: Annotated[list[_Choice], Meta(min_length=1)]
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


class _Reason(Struct):
    message: str


class _Refusal(Struct):
    error: _Reason


class _Session:
    """The connections of one event loop. They stay open while requests run, also after they were left."""

    def __init__(self) -> None:
        # How many requests run at a time is the affair of those who make them.
        self.client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self.running = 0
        self._is_left = False

    async def leave(self) -> None:
        self._is_left = True
        await self.close_if_over()

    async def close_if_over(self) -> None:
        if self._is_left and not self.running:
            await self.client.close()


_sessions: dict[asyncio.AbstractEventLoop, _Session] = {}


@asynccontextmanager
async def _session() -> AsyncGenerator[aiohttp.ClientSession]:
    """The connections of this event loop, for one request."""
    loop = asyncio.get_running_loop()
    opened = _sessions.get(loop)
    if opened is None:
        _close_at_exit()
        _close_others()
        opened = _sessions[loop] = _Session()
    opened.running += 1
    try:
        yield opened.client
    finally:
        opened.running -= 1
        await opened.close_if_over()


def _close_others() -> None:
    """Close the connections of event loops that are over. Nothing is left to wait for."""
    for loop, opened in list(_sessions.items()):
        if loop.is_closed() and _sessions.pop(loop, None):
            with suppress(StopIteration):
                opened.client.close().send(None)


@cache
def _close_at_exit() -> None:
    """The event loop of map_async runs to the end of the process, where aiohttp would complain of open sessions."""

    @atexit.register
    def close() -> None:
        _close_others()
        for loop, opened in _sessions.items():
            if loop.is_running():
                with suppress(TimeoutError):
                    asyncio.run_coroutine_threadsafe(opened.client.close(), loop).result(CLOSE_S)

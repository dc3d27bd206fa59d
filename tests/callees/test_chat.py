"""What a Chat sends, reads and tries again, against a server on loopback."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle
import pytest

import backedge.engine.callees.chat as chat_module
from backedge import BadOptionError, Chat, ChatError, Collect, Flow, Items, Reply, idempotency_key, retry, simulate
from tests.callees.chat_server import Answer, ChatServer, says
from tests.every import every
from tests.gates import HANG_S

ASKED = [{"role": "user", "content": "why?"}]
KEY = "sk-secret-0123456789"
LATE_S = 0.02


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is made."""
    made: list[float] = []

    async def pause(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr(chat_module, "retry", partial(retry, sleep=pause, jitter=float))
    return made


def ask(server: ChatServer, *, fields: Any = None, **options: Any) -> Reply:
    async def main() -> Reply:
        async with Chat(server.url, "small", **options) as chat:
            return await chat(ASKED, **(fields or {}))

    with server.serving():
        return asyncio.run(main())


def refused(server: ChatServer, **options: Any) -> ChatError:
    with pytest.raises(ChatError) as raised:
        ask(server, **options)
    assert KEY not in f"{raised.value}{raised.value.args}"
    return raised.value


def test_a_request_has_the_fields_the_headers_and_the_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = ChatServer(says("because"))
    options = {"temperature": 0.5, "seed": 1, "headers": {"X-Team": "blue"}}
    assert ask(server, fields={"seed": 2, "tools": []}, **options).text == "because"
    ((headers, body),) = server.requests
    assert body == {"model": "small", "messages": ASKED, "temperature": 0.5, "seed": 2, "tools": []}
    assert (headers["Authorization"], headers["X-Team"]) == (f"Bearer {KEY}", "blue")
    assert "Idempotency-Key" not in headers


def test_a_reply_has_all_that_the_server_tells():
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function"}]}
    choice = {"message": message, "finish_reason": "tool_calls", "token_ids": [7, 8]}
    choice["logprobs"] = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]}
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    reply = ask(ChatServer(Answer({"choices": [choice], "usage": usage, "prompt_token_ids": [1, 2, 3]})))
    assert reply == Reply(message, "tool_calls", 3, 2, [1, 2, 3], [7, 8], [-0.5, -1.0])
    assert (reply.text, reply.tool_calls) == ("", message["tool_calls"])
    assert pickle.loads(pickle.dumps(reply)) == reply


@pytest.mark.parametrize(
    ("said", "pause"),
    [
        ("7", 7.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("86400", 300.0),
        ("Wed, 21 Oct 99999999999999 07:28:00 GMT", 0.5),
    ],
)
def test_a_busy_server_is_asked_again_when_it_says(said: str, pause: float, pauses: list[float]):
    server = ChatServer(Answer({}, 429, {"Retry-After": said}), says("yes"))
    assert ask(server).text == "yes"
    assert pauses == [pause]


def test_a_server_in_trouble_is_asked_again_after_longer_and_longer_pauses(pauses: list[float]):
    assert ask(ChatServer(Answer("down", 503), Answer("down", 500), says("yes"))).text == "yes"
    assert pauses == [0.5, 1.0]


def test_what_stays_is_an_error_with_the_words_of_the_server(pauses: list[float]):
    error = refused(ChatServer(Answer({"error": {"message": "overloaded"}}, 503)), tries=3)
    assert (error.status, error.words, len(pauses)) == (503, "overloaded", 2)
    assert error.is_temporary


def test_a_server_that_hangs_is_not_waited_for(pauses: list[float]):
    error = refused(ChatServer(Answer(None)), timeout=LATE_S, tries=2)
    assert (error.status, len(pauses)) == (None, 1)
    assert f"timeout={LATE_S}" in str(error)


def test_a_server_that_is_not_there_is_looked_for_again(pauses: list[float]):
    server = ChatServer(says("yes"))
    with server.serving():
        url = server.url

    async def main() -> None:
        async with Chat(url, "small", tries=3) as chat:
            await chat(ASKED)

    with pytest.raises(ChatError, match="ClientConnectorError"):
        asyncio.run(main())
    assert len(pauses) == 2


@pytest.mark.parametrize("status", [307, 400, 401, 404])
def test_a_refusal_is_not_tried_again(status: int, pauses: list[float]):
    server = ChatServer(Answer(f"no {KEY}  for\nyou {'!' * 10_000}", status, {"Location": "http://127.0.0.1:1/"}))
    error = refused(server, api_key=KEY)
    assert (error.status, len(server.requests), pauses) == (status, 1, [])
    assert error.words.startswith("no ... for you !!!")
    assert len(error.words) == chat_module.WORDS_MAX


def test_a_missing_key_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert "no OPENAI_API_KEY" in str(refused(ChatServer(Answer("who?", 401))))


def test_an_address_without_its_path_is_told_from_a_model_that_is_missing():
    assert "ends with /v1" in str(refused(ChatServer(Answer("404: Not Found", 404))))
    assert "/v1)" not in str(refused(ChatServer(Answer({"error": {"message": "no model 'small'"}}, 404))))


@pytest.mark.parametrize("body", ["no JSON", {"error": "quota"}, {"choices": []}])
def test_an_answer_that_is_none_is_an_error(body: Any):
    error = refused(ChatServer(Answer(body)))
    assert (error.status, error.is_temporary) == (200, False)
    assert "no chat completion" in str(error)


def test_an_error_travels_and_hides_what_stands_before_an_at():
    error = refused(ChatServer(Answer("no", 400)))
    assert pickle.loads(pickle.dumps(error)).args == error.args
    assert repr(Chat("http://me:password@host/v1", "small", api_key=KEY)) == "Chat('http://host/v1', 'small')"


@every(
    ("base_url", "options"),
    [
        ("localhost:8000", {}),
        ("http://h/v1?key=1", {}),
        *(("http://h", fault) for fault in ({"tries": 0}, {"timeout": 0}, {"n": 2}, {"stream": True})),
    ],
)
def test_what_it_cannot_do_is_refused(base_url: str, options: dict[str, Any]):
    with pytest.raises(BadOptionError, match="Chat"):
        Chat(base_url, "small", **options)


THE_CHAT = Chat("http://localhost/v1", "small")


class OfClass:
    async def on_start(self) -> None:
        self.chat = THE_CHAT

    async def __call__(self, record: int) -> str:
        return (await self.chat(ASKED)).text

    async def close(self) -> None:
        await self.chat.close()


async def of_global(record: int) -> str:
    return (await THE_CHAT(ASKED)).text


def in_closure(chat: Chat) -> Callable[[int], Any]:
    async def ask(record: int) -> str:
        return (await chat(ASKED)).text

    return cloudpickle.loads(cloudpickle.dumps(ask))


@pytest.mark.parametrize("kind", ["global", "class", "closure"])
def test_it_works_in_map_async_wherever_it_is_kept(kind: str, monkeypatch: pytest.MonkeyPatch):
    with ChatServer(says("yes")).serving() as server:
        chat = Chat(server.url, "small")
        monkeypatch.setitem(globals(), "THE_CHAT", chat)
        function = {"global": of_global, "class": OfClass, "closure": in_closure(chat)}[kind]
        flow = Flow("chats")
        asked = flow.read(Items([1, 2, 3]), name="questions").map_async(function, name="ask")
        asked.write(Collect(), name="answers")
        assert simulate(flow, seeds=range(2), crashes=1).outputs["answers"] == ["yes"] * 3


def test_a_record_that_is_refused_is_set_aside():
    with ChatServer(Answer("no", 400)).serving() as server:
        flow = Flow("chats")
        asked = flow.read(Items([ASKED]), name="talks").map_async(
            Chat(server.url, "small"), on_error="dead_letter", name="ask"
        )
        asked.write(Collect(), name="answers")
        asked.dead_letters.write(Collect(), name="refused")
        outputs = simulate(flow, seeds=[]).outputs
    assert (outputs["answers"], outputs["refused"]) == ([], [ASKED])


def test_each_request_of_a_kept_call_has_a_name_that_does_not_depend_on_their_order():
    """A service that knows the name of a request gives its answer again: two requests must not have one name."""
    with ChatServer(says("yes")).serving() as server:
        chat, other = Chat(server.url, "small"), [{"role": "user", "content": "how?"}]

        async def ask(is_reversed: bool) -> str | None:
            asked = [chat(ASKED), chat(ASKED), chat(other)]
            await asyncio.gather(*(reversed(asked) if is_reversed else asked))
            return idempotency_key()

        def names(is_reversed: bool) -> dict[str, str]:
            server.requests.clear()
            flow = Flow("chats")
            calls = flow.read(Items([is_reversed]), name="turns")
            calls.map_async(ask, call_key=nothing, name="ask").write(Collect(), name="keys")
            (key,) = simulate(flow, seeds=[]).outputs["keys"]
            found = {headers["Idempotency-Key"]: str(body) for headers, body in server.requests}
            assert len(found) == 3
            assert all(name.startswith(f"{key}-") for name in found)
            return found

        assert names(False) == names(True)


def nothing(record: Any) -> int:
    """One question, whatever the record is."""
    return 0


def test_chats_of_an_event_loop_share_its_connections_until_the_last_request_is_over():
    async def main() -> None:
        chats = [Chat(server.url, "small") for _ in range(2)]
        opened: list[Any] = []
        for chat in chats:
            await chat(ASKED)
            opened.append(chat_module._sessions[asyncio.get_running_loop()])
        assert opened[0] is opened[1]
        async with chat_module._session() as running:
            await chats[0].close()
            assert not running.closed
        assert running.closed
        assert (await chats[1](ASKED)).text == "yes"
        await chats[1].close()

    with ChatServer(says("yes")).serving() as server:
        asyncio.run(main())


SCRIPT = """
import asyncio
from backedge import Chat, Collect, Flow, Items, simulate
chat = Chat({url!r}, "small")
for _ in range(2):
    print(asyncio.run(chat([])).text)
flow = Flow("chats")
flow.read(Items([[]]), name="talks").map_async(chat, name="ask").map(lambda r: r.text).write(Collect(), name="o")
print(simulate(flow, seeds=[]).outputs["o"])
"""


@pytest.mark.slow
def test_a_script_that_closes_nothing_ends_without_complaints():
    with ChatServer(says("yes")).serving() as server:
        script = [sys.executable, "-c", SCRIPT.format(url=server.url)]
        done = subprocess.run(script, capture_output=True, text=True, timeout=HANG_S)
    assert (done.stdout, done.stderr) == ("yes\nyes\n['yes']\n", "")

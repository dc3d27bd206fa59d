"""What the programs of `bench losses` share: how a conversation begins, goes on and ends, and one call of the model.

Each of them is started as `python -m bench.peers.losses_NAME URL FOLDER CONVERSATIONS`, keeps what it needs in FOLDER,
and goes on where it was when it is started again. At its end it prints the numbers of the conversations that its own
storage says have ended, as a list of JSON in the last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache

import aiohttp

Messages = list[str]

AT_A_TIME = 8
"""How many calls a program makes at a time."""

PROCESSES = 2
"""Over how many processes those spread them that have several."""


async def ask(url: str, conversation: int, messages: Messages) -> str:
    """What the model says next."""
    asked = {"conversation": conversation, "messages": messages}
    async with _session().post(url, json=asked) as response:
        response.raise_for_status()
        return (await response.json())["message"]


def has_ended(messages: Messages) -> bool:
    """Whether the model has nothing more to say."""
    return bool(messages) and messages[-1] == "done"


def given() -> tuple[str, str, int]:
    """The arguments of a program: the address of the model, its folder, and how many conversations there are."""
    url, folder, conversations = sys.argv[1:]
    return url, folder, int(conversations)


def tell(ended: Iterable[int]) -> None:
    print(json.dumps(sorted(ended)), flush=True)


@cache
def _session() -> aiohttp.ClientSession:
    """One for the event loop of this process, which has only one that calls."""
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0))

"""Conversations in steps on Ray, by hand, with a cursor that is saved after each step.

This is how synchronous trainers keep their place, such as verl's: a batch of prompts, all of its rollouts, then a
checkpoint with the position in the prompts. What has ended is in the same file as the cursor, so that the two agree.
Actors restart and repeat what they were asked, as "Fault tolerance" in Ray's documentation recommends.
"""

from __future__ import annotations

import json
from pathlib import Path

import ray

from bench.peers.conversations import AT_A_TIME, PROCESSES, Messages, ask, given, has_ended, tell

STEP = 2 * AT_A_TIME


@ray.remote(max_restarts=-1, max_task_retries=-1, max_concurrency=AT_A_TIME // PROCESSES)
class Worker:
    async def converse(self, url: str, conversation: int) -> int:
        messages: Messages = []
        while not has_ended(messages):
            messages.append(await ask(url, conversation, messages))
        return conversation


def main() -> None:
    url, folder, conversations = given()
    ray.init(address="local", include_dashboard=False)
    checkpoint, ended = Path(folder, "checkpoint.json"), list[int]()
    if checkpoint.exists():
        ended = json.loads(checkpoint.read_text())
    workers = [Worker.remote() for _ in range(PROCESSES)]
    for cursor in range(len(ended), conversations, STEP):
        batch = range(cursor, min(cursor + STEP, conversations))
        ended += ray.get([workers[number % PROCESSES].converse.remote(url, number) for number in batch])
        written = checkpoint.with_suffix(".new")
        written.write_text(json.dumps(ended))
        written.replace(checkpoint)
    tell(ended)


if __name__ == "__main__":
    main()

"""Conversations as workflows of DBOS in a queue, whose steps are kept in SQLite.

After "Workflows", "Steps" and "Queues & Concurrency" in DBOS's documentation: the call of the model is a step, a
workflow has the number of its conversation as its id, so that it is not begun twice, and `launch` recovers the ones
that were interrupted.
"""

from __future__ import annotations

import asyncio

from dbos import DBOS, SetWorkflowID

from bench.peers.conversations import AT_A_TIME, Messages, ask, given, has_ended, tell

URL, FOLDER, CONVERSATIONS = given()
DBOS(config={"name": "conversations", "system_database_url": f"sqlite:///{FOLDER}/dbos.sqlite"})


@DBOS.step()
async def model(conversation: int, messages: Messages) -> str:
    return await ask(URL, conversation, messages)


@DBOS.workflow()
async def converse(conversation: int) -> int:
    messages: Messages = []
    while not has_ended(messages):
        messages.append(await model(conversation, messages))
    return conversation


async def main() -> None:
    DBOS.launch()
    await DBOS.register_queue_async("conversations", worker_concurrency=AT_A_TIME, polling_interval_sec=0.1)
    handles = []
    for number in range(CONVERSATIONS):
        with SetWorkflowID(f"conversation-{number}"):
            handles.append(await DBOS.enqueue_workflow_async("conversations", converse, number))
    tell([await handle.get_result() for handle in handles])
    DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main())

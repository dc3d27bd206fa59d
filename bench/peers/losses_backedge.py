"""Conversations as records that go round a loop of Backedge, whose answers are kept."""

from __future__ import annotations

from typing import Any

from backedge import Collect, Flow, Items, run
from bench.peers.conversations import AT_A_TIME, PROCESSES, ask, given, has_ended, tell

Talk = dict[str, Any]


def main() -> None:
    url, folder, conversations = given()

    async def model(talk: Talk) -> Talk:
        said = await ask(url, talk["conversation"], talk["messages"])
        return {"conversation": talk["conversation"], "messages": [*talk["messages"], said]}

    flow = Flow("conversations")
    again = flow.loop("again", of=dict)
    new = flow.read(Items([{"conversation": number, "messages": []} for number in range(conversations)]), name="new")
    said = new.merge(again).map_async(model, concurrency=AT_A_TIME // PROCESSES, name="model")
    ended, more = said.split(lambda talk: has_ended(talk["messages"]), name="has_ended")
    again.feed(more)
    ended.map(lambda talk: talk["conversation"], name="number").write(Collect(), name="ended")
    result = run(
        flow, snapshots=f"{folder}/cuts", resume="latest", parallelism=PROCESSES, max_restarts=100, progress=False
    )
    tell(result.outputs["ended"])


if __name__ == "__main__":
    main()

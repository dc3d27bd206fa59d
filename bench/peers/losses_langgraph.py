"""Conversations as threads of a LangGraph graph, whose SQLite checkpointer saves each step before the next one begins.

After "Durable execution" and "Persistence" in LangGraph's documentation: a thread for each conversation,
`durability="sync"`, and `None` as the input of a thread that is to go on.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.peers.conversations import AT_A_TIME, Messages, ask, given, has_ended, tell


class State(TypedDict):
    conversation: int
    messages: Annotated[Messages, operator.add]


async def main() -> None:
    url, folder, conversations = given()

    async def model(state: State) -> dict[str, Messages]:
        return {"messages": [await ask(url, state["conversation"], state["messages"])]}

    def route(state: State) -> str:
        return END if has_ended(state["messages"]) else "model"

    builder = StateGraph(State)
    builder.add_node("model", model)
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", route)
    places = asyncio.Semaphore(AT_A_TIME)
    async with AsyncSqliteSaver.from_conn_string(f"{folder}/checkpoints.sqlite") as saver:
        graph = builder.compile(checkpointer=saver)

        async def converse(number: int) -> int | None:
            config = {"configurable": {"thread_id": str(number)}}
            async with places:
                state = await graph.aget_state(config)
                # `next` is empty as well if a node has returned and its step has not ended.
                if state.created_at is None:
                    await graph.ainvoke({"conversation": number, "messages": []}, config, durability="sync")
                elif not has_ended(state.values["messages"]):
                    await graph.ainvoke(None, config, durability="sync")
                state = await graph.aget_state(config)
            return number if has_ended(state.values["messages"]) else None

        ended = await asyncio.gather(*map(converse, range(conversations)))
    tell(number for number in ended if number is not None)


if __name__ == "__main__":
    asyncio.run(main())

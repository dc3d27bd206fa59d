"""Conversations as rows of a Ray Data pipeline that notes which of them are written.

After the pages of `CheckpointConfig` and `Dataset.map` in Ray's documentation: the checkpoint has the ids of rows that
are written, and a new run leaves them out. A row is a conversation from its beginning to its end, because no edge leads
back. An actor has as many at a time as a block has rows.
"""

from __future__ import annotations

import ray
from pyarrow import parquet
from ray.data.checkpoint import CheckpointConfig

from bench.peers.conversations import AT_A_TIME, PROCESSES, Messages, ask, given, has_ended, tell


class Converse:
    def __init__(self, url: str) -> None:
        self.url = url

    async def __call__(self, row: dict[str, int]) -> dict[str, int]:
        messages: Messages = []
        while not has_ended(messages):
            messages.append(await ask(self.url, int(row["id"]), messages))
        return row


def main() -> None:
    url, folder, conversations = given()
    ray.init(address="local", include_dashboard=False)
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=f"{folder}/checkpoint", delete_checkpoint_on_success=False
    )
    rows = ray.data.range(conversations, override_num_blocks=-(-conversations * PROCESSES // AT_A_TIME))
    pool = ray.data.ActorPoolStrategy(size=PROCESSES)
    rows.map(Converse, fn_constructor_args=(url,), compute=pool).write_parquet(f"{folder}/ended")
    tell(parquet.read_table(f"{folder}/ended")["id"].to_pylist())


if __name__ == "__main__":
    main()

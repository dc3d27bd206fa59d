"""From a stream of Redis through a loop into keys of all kinds, while processes and the server die."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backedge import Flow, RedisHash, RedisList, RedisStream, run
from backedge.engine.on_ray.supervisor.run_story import Story
from tests.gates import Gate, Gated
from tests.on_ray.flows import begin, until
from tests.redis_keys.conftest import server
from tests.redis_keys.redis_process import RedisProcess

__all__ = ["server"]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]


def halving(url: str, gate: Gate) -> Flow:
    """Even numbers go round and are halved; odd ones are written, into three keys."""
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    source = Gated(RedisStream(url, "numbers", until="now"), gate)
    numbers = flow.read(source, name="numbers").map(lambda entry: int(entry["fields"]["n"]), name="number")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    records = odd.rebalance().map(lambda n: {"n": n}, name="record")
    for sink in (RedisList(url, "list"), RedisHash(url, "hash", field="n"), RedisStream(url, "stream")):
        records.write(sink, name=sink.key)
    return flow


def halved(n: int) -> int:
    return n // (n & -n)


@pytest.mark.parametrize(
    ("count", "kills", "step"), [(2_000, 3, 1), pytest.param(1_000_000, 10, 300, marks=pytest.mark.long)]
)
def test_each_entry_is_once_in_each_key_behind_a_loop(
    server: RedisProcess, tmp_path: Path, count: int, kills: int, step: int
):
    """Some more entries come with each look at the run, until all kills have happened; each second one is followed by
    one of the server.
    """
    server.client.flushdb()
    for first in range(1, count + 1, 1_000):
        with server.client.pipeline() as adding:
            for n in range(first, min(first + 1_000, count + 1)):
                adding.xadd("numbers", {"n": n})
            adding.execute()
    gate, died = Gate(tmp_path / "gate"), 0
    # The stream is one split, which one task of the source reads.
    victims = ("record/0", "numbers/0", "half/1", "parity/1")
    planned = [f"{victims[n % 4]}@epoch={2 + 2 * n}" for n in range(kills)]
    job = begin(
        halving(server.url, gate),
        kills=planned,
        snapshots=tmp_path / "cuts",
        every=0.25,
        parallelism=2,
        max_restarts=20 * kills,
    )

    def have_happened(story: Story) -> bool:
        nonlocal died
        gate.let(gate.allowed + step)
        if len(story.kills) // 2 > died:
            server.kill()
            server.start()
            died += 1
        return len(story.kills) == kills

    until(job, have_happened, f"{planned}")
    gate.open()
    assert job.wait().state == "finished" and died == kills // 2
    wanted = Counter(halved(n) for n in range(1, count + 1))
    client = server.client
    assert Counter(int(fields["n"]) for _, fields in client.xrange("stream")) == wanted
    assert Counter(client.lrange("list", 0, -1)) == {f'{{"n":{n}}}': times for n, times in wanted.items()}
    assert client.hgetall("hash") == {str(n): f'{{"n":{n}}}' for n in wanted}


def test_the_example_of_the_page_runs(server: RedisProcess, tmp_path: Path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "redis.md").read_text()
    made: dict[str, Any] = {}
    exec(compile(page.split("```python\n")[1].split("```")[0], "redis.md", "exec"), made)
    server.client.flushdb()
    _, id = (server.client.xadd("orders", {"amount": amount}) for amount in (3, 300))
    run(made["large_orders"](server.url), snapshots=str(tmp_path / "cuts"), progress=False)
    assert server.client.hgetall("large") == {id: f'{{"id":"{id}","amount":300}}'}

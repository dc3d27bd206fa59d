"""From a topic of Kafka through a loop and back to a topic, while processes die at random steps of the protocol."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from backedge import Flow, KafkaTopic, run
from backedge.engine.on_ray.supervisor.run_story import Story
from tests.gates import Gate, Gated
from tests.kafka.broker import LOADING, NOT_COORDINATOR, NOT_LEADER, TIMED_OUT, Broker, Strike, kill_client
from tests.kafka.clusters import put, values_in
from tests.on_ray.flows import begin, until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("on_ray")]

PARTITIONS = 8

KILLS = ["Fetch", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"]
"""Requests that only tasks send: the death of the supervisor would end the run."""

ERRORS = {
    "Fetch": [NOT_LEADER, TIMED_OUT],
    "Produce": [NOT_LEADER, TIMED_OUT],
    "AddPartitionsToTxn": [LOADING, NOT_COORDINATOR],
    "TxnOffsetCommit": [LOADING, NOT_COORDINATOR],
    "EndTxn": [LOADING, NOT_COORDINATOR],
}
"""Errors that pass."""


def strikes(seed: int, kills: int) -> list[Strike]:
    """Kills at random steps, every third one while a task begins; then an error, and a connection that is cut."""
    rng, found = random.Random(seed), list[Strike]()
    for number in range(kills):
        # Tasks begin where others have just died.
        begins = number % 3 == 1
        step = "InitProducerId" if begins else rng.choice(KILLS)
        found.append(
            Strike(step, rng.choice(["before", "after"]), kill_client, number=1 if begins else rng.randrange(1, 4))
        )
        if number % 3 > 0:
            failing = rng.choice(list(ERRORS))
            found.append(Strike(failing, error=rng.choice(ERRORS[failing])))
            found.append(Strike(rng.choice(list(ERRORS)), rng.choice(["before", "after"])))
    return found


def halving(source: Any, sink: KafkaTopic) -> Flow:
    """Even numbers go round and are halved; odd ones are written."""
    flow = Flow("halving")
    again = flow.loop("again", of=int)
    numbers = flow.read(source, name="numbers").map(lambda record: int(record["value"]), name="number")
    odd, even = numbers.merge(again).split(lambda n: n % 2 == 1, name="parity")
    again.feed(even.rebalance().map(lambda n: n // 2, name="half"))
    odd.rebalance().map(lambda n: {"key": str(n), "value": str(n)}, name="record").write(sink, name="odd")
    return flow


def halved(n: int) -> int:
    return n // (n & -n)


@pytest.mark.parametrize(
    ("count", "kills", "step"), [(5_000, 3, 1), pytest.param(1_000_000, 10, 30, marks=pytest.mark.long)]
)
def test_each_record_of_a_topic_is_once_in_another_behind_a_loop(tmp_path: Path, count: int, kills: int, step: int):
    """Some more records come with each look at the run, until all strikes have happened."""
    planned, gate = strikes(1, kills), Gate(tmp_path / "gate")
    with Broker() as broker:
        for topic in ("numbers", "odd"):
            broker.create(topic, PARTITIONS)
        put(broker.servers, "numbers", map(str, range(1, count + 1)))
        source = Gated(KafkaTopic(broker.servers, "numbers", until="now"), gate)
        broker.plan(*planned)
        flow = halving(source, KafkaTopic(broker.servers, "odd"))
        job = begin(flow, snapshots=tmp_path / "cuts", every=0.25, parallelism=2, max_restarts=20 * kills)

        def have_happened(_: Story) -> bool:
            gate.let(gate.allowed + step)
            return broker.happened == len(planned)

        until(job, have_happened, planned)
        gate.open()
        assert job.wait().state == "finished"
        found = Counter(map(int, values_in(broker.servers, "odd", PARTITIONS)))
    assert found == Counter(halved(n) for n in range(1, count + 1))


class QuickTopic(KafkaTopic):
    """A topic that is looked at for partitions all the time."""

    look_s = 0.1


def test_partitions_that_are_new_are_read_while_two_tasks_read_many_and_are_rescaled(tmp_path: Path):
    with Broker() as broker:
        broker.create("odd", 1)
        broker.create("numbers", 5)
        flow = halving(QuickTopic(broker.servers, "numbers"), KafkaTopic(broker.servers, "odd"))
        job = begin(flow, snapshots=tmp_path / "cuts", every=0.1, actors="task", parallelism=2)
        wanted: list[int] = []

        def arrive(partitions: int, what: str) -> None:
            """A record in each partition, which comes out of the loop."""
            for partition in range(partitions):
                wanted.append(len(wanted) + 1)
                put(broker.servers, "numbers", [str(wanted[-1])], partition)
            until(job, lambda _: len(broker.values("odd")) >= len(wanted), what)

        arrive(5, "five partitions are read by two tasks")
        broker.create("numbers", 7)
        arrive(7, "two new ones are read as well")
        assert job.rescale({"numbers": 3}) > 0
        arrive(7, "three tasks read them")
        assert job.stop().state == "stopped"
        assert sorted(map(int, broker.values("odd"))) == sorted(map(halved, wanted))


def checked_orders(servers: str) -> Flow:
    """The example of the page."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "kafka.md").read_text()
    made: dict[str, Any] = {}
    exec(compile(page.split("```python\n")[1].split("```")[0], "kafka.md", "exec"), made)
    return made["checked_orders"](servers)


def test_the_example_of_the_page_runs(tmp_path: Path):
    with Broker() as broker:
        for topic in ("orders", "checked"):
            broker.create(topic)
        put(broker.servers, "orders", ['{"id": 7, "amount": 3}', '{"id": 8, "amount": 300}'])
        run(checked_orders(broker.servers), snapshots=str(tmp_path / "cuts"), progress=False)
        assert values_in(broker.servers, "checked") == ['{"id": 8, "amount": 300}']

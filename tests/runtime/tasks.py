"""The tasks of a flow, driven by hand: no protocol, no schedule. A test feeds batches and looks at what comes out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backedge import Collect, Flow, Items
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.io.memory import MemoryServices
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.sending import Emitted
from backedge.engine.state.capture import Capture
from backedge.engine.state.keyed_state import KeyedState
from backedge.graphs.expansion import expand
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import OperatorState

States = Mapping[TaskId, Mapping[str, OperatorState]]


def flow_of(step: Callable[[Any], Any]) -> Flow:
    """A flow with one operator in a task of its own, called "op"; its outputs go to sinks in tasks of their own."""
    flow = Flow("one")
    made = step(flow.read(Items([]), name="source").rebalance())
    for name, stream in made.items() if isinstance(made, dict) else [("sink", made)]:
        stream.rebalance().write(Collect(), name=name)
    return flow


class Tasks:
    """All tasks of a flow. Channels carry bytes, as between processes."""

    def __init__(
        self,
        flow: Flow,
        parallelism: int = 1,
        restored: States | None = None,
        services: MemoryServices | None = None,
        keyed_state: type[KeyedState] = KeyedState,
        seed: int = 0,
    ) -> None:
        self.flow = flow
        self.services = services or MemoryServices({})
        self.deployment = expand(flow.plan(), parallelism)
        self.runtimes: dict[TaskId, TaskRuntime] = {}
        for id, task in self.deployment.tasks.items():
            runtime = TaskRuntime(task, self.deployment, self.services, seed, keyed_state)
            runtime.open(None if restored is None else restored[id])
            self.runtimes[id] = runtime

    def home(self, operator: str, index: int = 0) -> TaskRuntime:
        return next(r for id, r in self.runtimes.items() if operator in r.task.operators and id.index == index)

    def feed(
        self, operator: str, records: Sequence[Any], hops: Any = 0, input: str = "in", index: int = 0, now_ms: int = 0
    ) -> Emitted:
        """Send one batch to an operator that is the first of its chain."""
        runtime = self.home(operator, index)
        channel = next(c for c in runtime.task.inputs if c.edge.receiver == operator and c.edge.input == input)
        return runtime.process(channel, Batch(list(records), hops), now_ms)

    def run(self, records_max: int = 2) -> None:
        """Read the sources to their end and process everything, first come, first served."""
        waiting: deque[Any] = deque()
        for runtime in self.runtimes.values():
            while runtime.task.is_source and not runtime.exhausted:
                waiting.extend(runtime.produce(records_max, now_ms=0))
        while waiting:
            channel, batch = waiting.popleft()
            there = self.deployment.channels[channel]
            waiting.extend(self.runtimes[channel.receiver].process(there, decode(encode(batch)), now_ms=0))

    def capture(self, epoch: int = 1) -> dict[TaskId, dict[str, OperatorState]]:
        captures = {id: runtime.capture(Epoch(epoch), Attempt(1)) for id, runtime in self.runtimes.items()}
        return {id: encoded(capture) for id, capture in captures.items()}

    def output(self, sink: str) -> list[Any]:
        """What a sink wrote, once everything it prepared is committed."""
        self.capture(epoch=999)
        for runtime in self.runtimes.values():
            runtime.commit([transaction.name for transaction in runtime.transactions])
        return self.services.store.output(sink)


def encoded(capture: Capture, entries_max: int = 1000) -> dict[str, OperatorState]:
    while not capture.encode_some(entries_max):
        pass
    return capture.states


def records_of(emitted: Emitted) -> list[Any]:
    return [record for _, batch in emitted for record in batch.records]


def by_receiver(emitted: Emitted) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for channel, batch in emitted:
        found.setdefault(str(channel.receiver), []).extend(batch.records)
    return found

"""Runs a task again on the inputs that were kept of it, and compares what it sends with what it sent in the run.

The operators run in the calling thread, without channels, a protocol or a clock: `kept_inputs.py` says what is called,
with what, and at what time. So a debugger stops in the user's functions as in any other. Nothing outside changes:
sinks write nowhere, sources return what was read, and calls of `map_async` get the answers that they got.

Outputs are compared call by call and channel by channel, as multisets: a restored task has its keys in another order.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from backedge.engine.batches.batch import Batch, decode, encode, spread
from backedge.engine.batches.columns import Records, as_records
from backedge.engine.batches.differences import countable, differences
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.sending import Emitted
from backedge.engine.operators.services import Finder, Reader, Services
from backedge.engine.task.kept_inputs import Entry, Sent, Written, encoded
from backedge.graphs.deployment import Deployment, Task
from backedge.graphs.ids import Attempt, TaskId
from backedge.graphs.io import SinkWriter
from backedge.graphs.plan import Operator
from backedge.graphs.resource import close_opened
from backedge.graphs.task_errors import MisuseError, TaskError
from backedge.recovery.cut.cut import OperatorState

NO_ATTEMPT = Attempt(0)

NOTHING = object()
"""Stands for the record that one of the two has not sent."""

_WORDS = {
    "produce": "what the source read",
    "process": "records from {}",
    "timers": "timers that were due at {} ms",
    "answer": "the answer to a call of {}",
    "round_end": "the end of round {}",
    "contributions": "what was sent back to {}",
    "decide": "the decision after round {}",
    "release_round": "the start of a round",
    "release_result": "the result of the iteration",
    "end": "the end of the input",
}


class Difference(NamedTuple):
    """The first difference: in which call, where the output went, and the record of the run and of the replay.

    `fault` is the text of an error that only one of the two has raised.
    """

    call: int
    what: str
    where: str
    in_run: Any = NOTHING
    in_replay: Any = NOTHING
    fault: str = ""


@dataclass
class Replayed:
    """What a replay has found.

    - calls, records: how many calls were made, and with how many records. sent: the number of records that were
      compared. differing: the number of calls whose output differs. first: the first difference.
    - error: what user code has raised in the replay, which ends it. in_run: whether it did so in the run.
    - is_complete: whether the inputs are complete up to the end of the attempt. broken: why they are not, if known.
    """

    calls: int = 0
    records: int = 0
    sent: int = 0
    differing: int = 0
    first: Difference | None = None
    error: TaskError | None = None
    raised_in_run: bool = False
    is_complete: bool = False
    broken: str = ""
    cuts: list[int] = field(default_factory=list[int])

    @property
    def is_same(self) -> bool:
        return self.first is None


def replay(
    task: Task,
    deployment: Deployment,
    restored: Mapping[str, OperatorState] | None,
    entries: Iterable[Entry],
    seed: int = 0,
) -> Replayed:
    """Run the entries of a task, from its state in a cut, or from nothing."""
    found, replaying = Replayed(), _Replaying(task, deployment, seed)
    runtime = replaying.runtime
    try:
        try:
            runtime.open(restored)
        except TaskError as error:
            found.error, found.first = error, Difference(0, "its start", "", fault=str(error))
            return found
        for kind, *rest in entries:
            match kind:
                case "ran":
                    replaying.run(found, *rest)
                    if found.error is not None:
                        break
                case "cut":
                    # As the run did: an operator may act differently after a capture.
                    runtime.capture(rest[0], NO_ATTEMPT).discard()
                    found.cuts.append(rest[0])
                case "broken":
                    found.broken = rest[0]
                    break
                case _:
                    found.is_complete = True
    finally:
        runtime.close()
        close_opened()
    return found


class _Replaying(Services):
    """The runtime of the task, and the services that it reads from and writes to.

    - reads: the batches that the source is going to read. written: what sinks have written in this call.
    """

    def __init__(self, task: Task, deployment: Deployment, seed: int) -> None:
        self.reads: deque[bytes] = deque()
        self.written: list[tuple[str, bytes]] = []
        self.runtime = TaskRuntime(task, deployment, self, seed)
        self._channels = {channel.id.edge: channel for channel in task.inputs}

    def reader(self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None) -> Reader:
        """A reader of what was read in the run."""
        return _KeptReader(self.reads)

    def finder(self, operator: Operator, readers: str) -> Finder:
        """No run keeps the inputs of what finds splits."""
        raise NotImplementedError(f"operator {operator.name!r} finds splits, and cannot be run again")

    def writer(self, operator: Operator, task: TaskId) -> SinkWriter:
        """A writer that only notes what it is given."""
        return _NotingWriter(operator.name, self.written)

    def run(self, found: Replayed, what: str, pickled: bytes, read: list[bytes], outcome: Any) -> None:
        """Make one call, and compare what comes of it."""
        arguments: tuple[Any, ...] = pickle.loads(pickled)
        found.calls += 1
        found.records += sum(len(decode(each)) for each in (*read, *(arguments[1:2] if what == "process" else ())))
        self.reads.extend(read)
        told = _WORDS[what].format(_shown(arguments[0]) if arguments else "")
        raised = outcome is not None and outcome[0] == "raised"
        try:
            emitted, result = self._call(what, *arguments)
        except TaskError as error:
            found.error, found.raised_in_run = error, raised
            if not raised:
                self._note(found, Difference(found.calls, told, "", fault=str(error)))
            return
        written, self.written[:] = list(self.written), []
        if outcome is None:
            return
        if raised:
            self._note(found, Difference(found.calls, told, "", fault=outcome[1]))
            return
        _, sent, wrote, returned = outcome
        self._compare(found, told, _outputs(sent, wrote), _outputs(encoded(emitted), written))
        if countable(result) != countable(returned):
            self._note(found, Difference(found.calls, told, "what it returns", returned, result))

    def _call(self, what: str, *arguments: Any) -> tuple[Emitted, Any]:
        runtime = self.runtime
        match what, arguments:
            case "process", (edge, payload, now_ms):
                return runtime.process(self._channels[edge], decode(payload), now_ms), None
            case "answer", (operator, place, result, error):
                call = runtime.call_at(operator, place)
                if call is None:
                    raise MisuseError(f"operator {operator!r} has made fewer calls than in the run: one is answered")
                return runtime.on_answer(call, result, None if error is None else RuntimeError(error)), None
            case "end", _ if runtime.unanswered:
                raise MisuseError("calls are open at the end that the run did not make, so they have no answers")
            case "contributions", (iteration,):
                return [], runtime.take_contributions(iteration)
            case "decide", (path, contributions):
                of_tasks = {TaskId(*task): value for task, value in contributions.items()}
                return [], runtime.decide(path, of_tasks)
            case _:
                methods: dict[str, Callable[..., Emitted]] = {
                    "produce": runtime.produce,
                    "timers": runtime.fire_timers,
                    "round_end": runtime.on_round_end,
                    "release_round": runtime.release_round,
                    "release_result": runtime.release_result,
                    "end": runtime.end,
                }
                return methods[what](*arguments), None

    def _compare(self, found: Replayed, told: str, run: dict[str, _Output], replayed: dict[str, _Output]) -> None:
        found.sent += sum(output.records for output in run.values())
        for where in {**run, **replayed}:
            before, after = run.get(where, _Output()), replayed.get(where, _Output())
            if before.payloads == after.payloads:
                continue
            missing, surplus = differences(before.pairs, after.pairs)
            if missing or surplus:
                in_run, in_replay = (each[0][0] if each else NOTHING for each in (missing, surplus))
                self._note(found, Difference(found.calls, told, where, in_run, in_replay))
                return

    def _note(self, found: Replayed, difference: Difference) -> None:
        found.differing += 1
        found.first = found.first or difference


class _Output:
    """What one call has sent to one place."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.records = 0
        self.pairs: list[tuple[Any, int]] = []

    def add(self, payload: bytes) -> None:
        """Add a batch. Decoded, because encoding changes some types, such as columns that become records."""
        batch = decode(payload)
        self.payloads.append(payload)
        self.records += len(batch)
        self.pairs += zip(as_records(batch.records), spread(batch.hops, len(batch)), strict=True)


def _outputs(sent: Sent, written: Written) -> dict[str, _Output]:
    found: dict[str, _Output] = {}
    for edge, receiver, payload in sent:
        found.setdefault(_place(edge, receiver), _Output()).add(payload)
    for sink, payload in written:
        found.setdefault(f"sink {sink}", _Output()).add(payload)
    return found


def _place(edge: str, receiver: str) -> str:
    return f"{edge} to task {receiver}"


def _shown(argument: Any) -> str:
    return ".".join(map(str, cast("tuple[Any, ...]", argument))) if isinstance(argument, tuple) else str(argument)


class _KeptReader:
    """Returns the batches that were read in the run, one for each time that the source asks."""

    exhausted = False

    def __init__(self, reads: deque[bytes]) -> None:
        self._reads = reads

    def read(self, records_max: int) -> Records:
        return decode(self._reads.popleft()).records if self._reads else []

    def positions(self) -> dict[str, Any]:
        return {}

    def begin(self, split: str, position: Any) -> None:
        """Nothing: a source has all of its splits."""

    def finished(self) -> list[str]:
        return []


class _NotingWriter:
    """Notes records, and has nothing to publish."""

    def __init__(self, sink: str, written: list[tuple[str, bytes]]) -> None:
        self._sink = sink
        self._written = written

    def write(self, records: Records) -> None:
        self._written.append((self._sink, encode(Batch(records))))

    def prepare(self, transaction: str) -> bool:
        return False

    def commit(self, transaction: str) -> None:
        """Nothing was prepared."""

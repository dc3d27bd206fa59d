"""Keeps what a task gets and what it makes of it, so that `engine/replay/replay.py` can run it again from a cut.

Kept are the calls of `TaskRuntime` in their order, with the time that the user's functions saw: batches with the edge
that they came from, what a source has read, due timers, answers of calls, ends of rounds and decisions, the end. With
each call goes what came of it: the batches for each channel, what sinks have written, or the error. Captures are marks
between the calls; a replay may begin at each of them.

`KeepingRuntime` takes the place of `TaskRuntime` in the tasks whose inputs are kept, so other tasks have no switch for
it. An input is encoded before user code may change it. A piece (`recovery/stores/input_pieces.py`) is written when the
entries since the last one are large or old enough, at each capture, and when the task is closed. So a process that is
killed leaves all pieces but the last. An entry is a pickled tuple of plain values that begins with a word:

- "ran", what, arguments, read, outcome: a call. The arguments are pickled by themselves. `read` are the batches that
  the source read in it. The outcome is ("sent", channels, sinks, result), or ("raised", text), or None if the task was
  closed in the middle of the call.
- "cut", epoch: a capture. What follows is in the pieces after that epoch.
- "broken", reason: nothing more is kept before the next capture.
- "closed": the task was closed; what it got is complete.
"""

from __future__ import annotations

import io
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from backedge.engine.batches.batch import Batch, encode
from backedge.engine.batches.columns import Records
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.sending import Emitted
from backedge.engine.operators.services import Finder, Reader, Services, close_writer, commit_all
from backedge.engine.state.capture import Capture
from backedge.engine.state.keyed_state import LAST_STATE
from backedge.graphs.deployment import Channel
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.io import SinkWriter
from backedge.graphs.plan import Operator
from backedge.graphs.task_errors import TaskError, describe
from backedge.recovery.stores.input_pieces import InputPieces, PieceId

PIECE_BYTES = 1_000_000
PIECE_S = 1.0

Entry = tuple[Any, ...]
Sent = list[tuple[str, str, bytes]]
"""Encoded batches, each with its edge and its receiver."""
Written = list[tuple[str, bytes]]
"""Encoded batches, each with its sink."""


def encoded(emitted: Emitted) -> Sent:
    """What a call has emitted, in the form in which it is kept."""
    return [(channel.edge, str(channel.receiver), encode(batch)) for channel, batch in emitted]


class _Call(NamedTuple):
    """A call that is going on: what, with which pickled arguments, and what was read and written in it."""

    what: str
    arguments: bytes
    read: list[bytes]
    written: Written


class Journal:
    """The entries of one task in one attempt.

    - epoch: the last one that was captured or restored; 0 if there was none. number: that of the next piece after it.
    - is_broken: something could not be kept, so what follows it is useless until the next capture.
    """

    def __init__(
        self,
        task: TaskId,
        attempt: Attempt,
        epoch: Epoch,
        pieces: InputPieces,
        flow: str,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.epoch = epoch
        self.number = 1
        self.is_broken = False
        self._task = task
        self._attempt = attempt
        self._pieces = pieces
        self._flow = flow
        self._clock_s = clock_s
        self._written_s = clock_s()
        self._entries: list[bytes] = []
        self._bytes = 0
        self._call: _Call | None = None

    def begin(self, what: str, arguments: tuple[Any, ...]) -> None:
        """User code is about to be called. The arguments are pickled now, because it may change them."""
        if self.is_broken:
            return
        with _Breaking(self):
            kept = tuple(encode(each) if isinstance(each, Batch) else each for each in arguments)
            self._call = _Call(what, pickle.dumps(kept, 5), [], [])

    def read(self, records: Records) -> None:
        """The source has read these records, which user code may change from now on."""
        if self._call is not None:
            with _Breaking(self):
                self._call.read.append(encode(Batch(records)))

    def wrote(self, sink: str, records: Records) -> None:
        """A sink is about to write these records."""
        if self._call is not None:
            with _Breaking(self):
                self._call.written.append((sink, encode(Batch(records))))

    def end(self, emitted: Emitted, result: Any = None) -> None:
        """The call is over, and this came of it."""
        if self._call is not None:
            with _Breaking(self):
                self._leave(("sent", encoded(emitted), self._call.written, result))

    def fail(self, error: TaskError) -> None:
        """The call has raised, which ends the run."""
        with _Breaking(self):
            self._leave(("raised", str(error)))

    def captured(self, epoch: Epoch) -> None:
        self._add("cut", epoch)
        self._write()
        self.epoch, self.number, self.is_broken = epoch, 1, False

    def close(self) -> None:
        with _Breaking(self):
            self._leave(None)
        self._add("closed")
        self._write()

    def give_up(self, reason: str) -> None:
        """Keep nothing more until the next capture: a call is missing."""
        told = f"the inputs of task {self._task} are not kept until its next cut: {reason}"
        print(f"backedge: {told}", file=sys.stderr)
        self._call = None
        self._add("broken", reason)
        self.is_broken = True

    def _leave(self, outcome: tuple[Any, ...] | None) -> None:
        call, self._call = self._call, None
        if call is None:
            return
        self._add("ran", call.what, call.arguments, call.read, outcome)
        if self._bytes >= PIECE_BYTES or self._clock_s() - self._written_s >= PIECE_S:
            self._write()

    def _add(self, *entry: Any) -> None:
        if not self.is_broken:
            self._entries.append(pickle.dumps(entry, 5))
            self._bytes += len(self._entries[-1])

    def _write(self) -> None:
        entries, self._entries, self._bytes = self._entries, [], 0
        if not entries:
            return
        self._written_s = self._clock_s()
        id = PieceId(self._task, self._attempt, self.epoch, self.number)
        try:
            self._pieces.write(id, self._flow, b"".join(entries))
        except OSError as error:
            self.give_up(describe(error))
            self._entries, self._bytes = [], 0  # they would follow what is missing
        self.number += 1


class _Breaking:
    """Gives a journal up if a value cannot be pickled: values that stay within a task need not be."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._journal.give_up(describe(error).partition("\n")[0])
        return True


def entries_in(pieces: InputPieces, task: TaskId, attempt: Attempt, epoch: Epoch) -> Iterator[Entry]:
    """What was kept of a task in an attempt after an epoch, up to the last piece that there is."""
    number = 1
    while (piece := pieces.read(PieceId(task, attempt, epoch, number))) is not None:
        number += 1
        stream = io.BytesIO(piece.data)
        while stream.tell() < len(piece.data):
            entry = pickle.load(stream)
            yield entry
            if entry[0] == "cut":
                epoch, number = entry[1], 1


class KeepingRuntime(TaskRuntime):
    """Runs the user code of a task, and keeps all calls in a journal. Its services must be `KeepingServices`."""

    def __init__(self, journal: Journal, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._journal = journal

    def _kept(self, run: Callable[[], Any], what: str, *arguments: Any, emits: bool = True) -> Any:
        self._journal.begin(what, arguments)
        try:
            came = run()
        except TaskError as error:
            self._journal.fail(error)
            raise
        if emits:
            self._journal.end(came)
        else:
            self._journal.end([], came)
        return came

    def produce(self, records_max: int, now_ms: int) -> Emitted:
        return self._kept(partial(super().produce, records_max, now_ms), "produce", records_max, now_ms)

    def process(self, channel: Channel, batch: Batch, now_ms: int) -> Emitted:
        run = partial(super().process, channel, batch, now_ms)
        return self._kept(run, "process", channel.id.edge, batch, now_ms)

    def fire_timers(self, now_ms: int) -> Emitted:
        return self._kept(partial(super().fire_timers, now_ms), "timers", now_ms)

    def on_answer(self, call_id: int, result: Any, error: BaseException | None = None) -> Emitted:
        """A call has an answer. Of an error only the text is kept, because it need not pickle."""
        operator, place = self.place_of_call(call_id)
        run = partial(super().on_answer, call_id, result, error)
        return self._kept(run, "answer", operator, place, result, None if error is None else describe(error))

    def on_round_end(self, path: tuple[int, ...], now_ms: int) -> Emitted:
        return self._kept(partial(super().on_round_end, path, now_ms), "round_end", path, now_ms)

    def take_contributions(self, iteration: str) -> Any | None:
        return self._kept(partial(super().take_contributions, iteration), "contributions", iteration, emits=False)

    def decide(self, path: tuple[int, ...], contributions: Mapping[TaskId, Any]) -> bool:
        plain = {tuple(task): value for task, value in contributions.items()}
        return self._kept(partial(super().decide, path, contributions), "decide", path, plain, emits=False)

    def release_round(self) -> Emitted:
        return self._kept(super().release_round, "release_round")

    def release_result(self) -> Emitted:
        return self._kept(super().release_result, "release_result")

    def end(self, now_ms: int) -> Emitted:
        return self._kept(partial(super().end, now_ms), "end", now_ms)

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> Capture:
        """Capture the state: a replay may begin here."""
        capture = super().capture(epoch, attempt, base)
        if epoch != LAST_STATE:
            self._journal.captured(epoch)
        return capture

    def close(self) -> None:
        """The task is over."""
        self._journal.close()
        super().close()


class KeepingServices(Services):
    """Services whose readers and writers note in a journal what goes through them."""

    def __init__(self, services: Services, journal: Journal) -> None:
        self._services = services
        self._journal = journal

    def reader(self, operator: Operator, index: int, parallelism: int, positions: Mapping[str, Any] | None) -> Reader:
        return _KeepingReader(self._services.reader(operator, index, parallelism, positions), self._journal)

    def finder(self, operator: Operator, readers: str) -> Finder:
        return self._services.finder(operator, readers)

    def writer(self, operator: Operator, task: TaskId) -> SinkWriter:
        return _KeepingWriter(self._services.writer(operator, task), operator.name, self._journal)


class _KeepingReader:
    def __init__(self, reader: Reader, journal: Journal) -> None:
        self._reader = reader
        self._journal = journal
        self.positions = reader.positions
        self.begin = reader.begin
        self.finished = reader.finished

    @property
    def exhausted(self) -> bool:
        return self._reader.exhausted

    def read(self, records_max: int) -> Records:
        records = self._reader.read(records_max)
        if len(records):
            self._journal.read(records)
        return records


class _KeepingWriter:
    def __init__(self, writer: SinkWriter, sink: str, journal: Journal) -> None:
        self._writer = writer
        self._sink = sink
        self._journal = journal
        self.prepare = writer.prepare
        self.commit = writer.commit
        self.commit_together = partial(commit_all, writer)
        self.close = partial(close_writer, writer)

    def write(self, records: Records) -> None:
        self._journal.wrote(self._sink, records)
        self._writer.write(records)

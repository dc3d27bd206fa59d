"""Finds the splits of a source, and hands each to a reader that has nothing to read (`graphs/discovery.py`)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

from backedge.engine.batches.batch import Hops
from backedge.engine.operators.base import Place, ReadingRuntime, TimedRuntime
from backedge.engine.operators.sending import TakeRecords
from backedge.engine.state.capture import OperatorCapture
from backedge.graphs.discovery import READ, WANTED, FindSplits, free_key, has_enough
from backedge.graphs.ids import Attempt, Epoch
from backedge.graphs.plan import Edge
from backedge.graphs.routing import key_group, task_of_group
from backedge.recovery.cut.cut import OperatorState


class FindSplitsOperator(TimedRuntime, ReadingRuntime):
    """All splits that are known are its keyed state; what follows from them is kept beside it.

    - wanted: the splits that are not handed out yet, a heap with the largest first.
    - taken: the keys of those that are being read. loads: how many of these each reader has.
    - look_ms: when to look for more; None if there will be no more.
    """

    def __init__(self, kind: FindSplits, place: Place) -> None:
        super().__init__(place)
        self._send = self.send_to("out")
        self._known = self.keyed_values()
        self._find = place.services.finder(place.operator, kind.readers)
        self._pause_ms = round((kind.source.look_s or 0) * 1000)
        self._source = kind.source
        self._wanted: list[tuple[int, str]] = []
        self._taken: set[int] = set()
        self._loads = [0] * place.sizes[kind.readers]
        self._look_ms: int | None = 0
        self._restored_ms = 0

    def open(self, state: OperatorState | None, whole: Mapping[str, Any]) -> None:
        super().open(state, whole)
        if state is None:
            return
        self._look_ms = next((at_ms for at_ms, _ in whole.get("timers", ())), None)
        self._restored_ms = whole.get("now_ms", 0)
        for split, value in self._known.values.items():
            if value == WANTED:
                self._want(split)
            elif value != READ:
                self._take(value)

    def accept(self, edge: Edge) -> TakeRecords:
        def finished(records: list[Any], hops: Hops) -> None:
            for record in records:
                split = record["split"]
                key = self._known.values[split]
                if key == READ:
                    continue  # only a damaged batch says so again, and its attempt is soon given up
                self._known.replace(split, READ)
                self._taken.remove(key)
                self._loads[self._reader_of(key)] -= 1
                self._hand_out()

        return finished

    # -- looking -------------------------------------------------------------------------------------------------

    @property
    def exhausted(self) -> bool:
        return self._look_ms is None and not self._wanted and not self._taken

    @property
    def has_unread(self) -> bool:
        return False

    def produce(self, records_max: int) -> None:
        """Others read."""

    @property
    def next_timer_ms(self) -> int | None:
        return self._look_ms

    def fire_timers(self, now_ms: int) -> None:
        if self._look_ms is None or now_ms < self._look_ms:
            return
        found = self._find(self._known.values.keys())
        for split in found.gone:
            if self._known.values.get(split) == READ:
                self._known.remove(split)
        for split in found.new:
            self._known.replace(split, WANTED)
            self._want(split)
        self._look_ms = None if found.is_last else now_ms + self._pause_ms
        self._hand_out()

    # -- handing out ---------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        loads, sent = self._loads, list[Any]()
        while self._wanted:
            task = loads.index(min(loads))
            if has_enough(self._source, loads[task], len(self._wanted), len(loads)):
                break
            _, split = heapq.heappop(self._wanted)
            key = free_key(self._taken, task, len(loads), loads[task])
            self._known.replace(split, key)
            self._take(key)
            sent.append({"key": key, "split": split})
        if sent:
            self._send(sent, 0)

    def _want(self, split: str) -> None:
        heapq.heappush(self._wanted, (-self._source.size_of(split), split))

    def _take(self, key: int) -> None:
        self._taken.add(key)
        self._loads[self._reader_of(key)] += 1

    def _reader_of(self, key: int) -> int:
        return task_of_group(key_group(key), len(self._loads))

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def restored_ms(self) -> int:
        return self._restored_ms

    def capture(self, epoch: Epoch, attempt: Attempt, base: Epoch | None = None) -> OperatorCapture:
        whole: dict[str, Any] = {}
        if self._look_ms is not None:
            # The clock of the next process continues from here.
            whole = {"timers": [(self._look_ms, 0)], "now_ms": self.place.moment.now_ms}
        return OperatorCapture(values=self._known.capture(epoch, base), whole=whole)

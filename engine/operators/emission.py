"""What the hooks of a process operator have emitted but not yet sent: records or batches, each with its hops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backedge.engine.batches.batch import Batch, merge, uniform
from backedge.engine.operators.sending import Send


class Emission:
    """Records by output. The hooks append; the operator sends, once per batch.

    >>> sent = []
    >>> emission = Emission([("out", lambda records, hops: sent.append((records, hops)))])
    >>> emission.records["out"].append("a")
    >>> emission.send(0)
    >>> sent
    [(['a'], 0)]
    """

    def __init__(self, sends: Sequence[tuple[str, Send]]) -> None:
        self._sends = sends
        self.records: dict[str, list[Any]] = {output: [] for output, _ in sends}
        self._hops: dict[str, list[int]] = {output: [] for output, _ in sends}

    def send(self, hops: int) -> None:
        """Send everything; what was not noted comes from records with these hops."""
        if any(self._hops.values()):
            self.note(hops)
            self.send_noted()
            return
        for output, send in self._sends:
            records = self.records[output]
            if records:
                self.records[output] = []
                send(records, hops)

    def note(self, hops: int) -> None:
        """Records emitted since the last note come from records with these hops."""
        for output, noted in self._hops.items():
            noted += [hops] * (len(self.records[output]) - len(noted))

    def send_noted(self) -> None:
        for output, send in self._sends:
            records, hops = self.records[output], self._hops[output]
            if records:
                self.records[output], self._hops[output] = [], []
                send(records, uniform(hops))

    def mark(self) -> dict[str, int]:
        return {output: len(records) for output, records in self.records.items()}

    def take_back(self, mark: dict[str, int]) -> None:
        for output, count in mark.items():
            del self.records[output][count:]
            del self._hops[output][count:]


class BatchEmission(Emission):
    """The same for a class that emits batches: `records` holds a list of batches by output.

    >>> sent = []
    >>> emission = BatchEmission([("out", lambda records, hops: sent.append((records, hops)))])
    >>> emission.records["out"] += [["a", "b"], ["c"]]
    >>> emission.send(0)
    >>> sent
    [(['a', 'b', 'c'], 0)]
    """

    def send(self, hops: int) -> None:
        self.note(hops)
        self.send_noted()

    def send_noted(self) -> None:
        """Send everything, in as few batches as possible."""
        for output, send in self._sends:
            batches, hops = self.records[output], self._hops[output]
            if batches:
                self.records[output], self._hops[output] = [], []
                for batch in merge([Batch(rows, hop) for rows, hop in zip(batches, hops, strict=True)]):
                    send(batch.records, batch.hops)

"""A case tried out: Spark prepares its input, Ray runs its flow, Spark says what it had to come to."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backedge.cases import FORMS, Case, taken, takes
from backedge.flows import WrongCallError
from engine.on_ray.job import RunResult
from engine.on_ray.starting import run
from graphs.flow import Flow
from graphs.io import Collect

if TYPE_CHECKING:
    from recovery.spark.comparing import Difference

DataFrame = Any
SparkSession = Any
"""Only where PySpark is imported does a checker know them."""

BROKEN_MAX = 10


@dataclass(frozen=True, slots=True)
class Judged:
    """How a result differs from the reference, and the first rows that break what is promised beyond that."""

    difference: Difference
    broken: list[dict[str, Any]]
    broken_count: int

    def failures(self, what: str) -> list[str]:
        """A line for each thing that is wrong; `what` says what was compared."""
        lines: list[str] = []
        if not self.difference.rows_found:
            lines.append(f"{what}: the result has no rows")
        if not self.difference.equal:
            first = "; ".join(self.difference.lines()[:3])
            lines.append(f"{what}: {self.difference.differing:,} rows differ: {first}")
        if self.broken_count:
            lines.append(f"{what}: {self.broken_count:,} rows break what is promised: {self.broken[0]}")
        return lines


class Trial:
    """One case, its input in `folder`, and one session of Spark."""

    def __init__(
        self, case: Case, spark: SparkSession, folder: str, *, size: int | None, rounds: int | None, seed: int
    ) -> None:
        self.case = case
        self.spark = spark
        self.inputs = os.path.join(folder, "inputs")
        self._folder = folder
        self._given: dict[str, Any] = {"inputs": self.inputs, "size": size or case.size, "seed": seed}
        if rounds is not None:
            if not takes(case.make_flow, "rounds"):
                raise WrongCallError(f"flow() of {case.name} takes no rounds: leave --rounds away")
            self._given["rounds"] = rounds
        case.check_sink(self.flow("output").plan())

    def flow(self, output: str) -> Flow:
        """The flow, which writes below `output`."""
        return self.case.flow(**self._given, output=os.path.join(self._folder, output))

    def prepare(self) -> None:
        """Have Spark write the input."""
        os.makedirs(self.inputs, exist_ok=True)
        if self.case.prepare is not None:
            self.case.prepare(self.spark, **taken(self.case.prepare, self._given))

    def run(self, output: str, **options: Any) -> RunResult:
        """Run the flow on Ray."""
        return run(self.flow(output), **options)

    def reference(self) -> tuple[DataFrame, float]:
        """What the result has to be, computed, and the seconds that took."""
        began_s = time.monotonic()
        frame = self.case.reference(self.spark, **taken(self.case.reference, self._given)).localCheckpoint()
        return frame, time.monotonic() - began_s

    def found(self, output: str, result: RunResult, reference: DataFrame) -> DataFrame:
        """The result of a run, as a table."""
        from recovery.spark.results import frame_of_files, frame_of_records

        sink = self.flow(output).plan().operators[self.case.sink].function
        if isinstance(sink, Collect):
            return frame_of_records(self.spark, result.outputs[self.case.sink], reference)
        return frame_of_files(self.spark, FORMS[type(sink)], sink.path, reference)

    def judge(self, found: DataFrame, reference: DataFrame) -> Judged:
        """Compare. What `promised` of the module looks at may have columns beyond those of the reference."""
        from recovery.spark.comparing import compare_frames

        broken: list[dict[str, Any]] = []
        count = 0
        compared = found
        if self.case.promised is not None:
            rows = self.case.promised(self.spark, **taken(self.case.promised, {**self._given, "result": found}))
            count = rows.count()
            broken = [row.asDict(recursive=True) for row in rows.limit(BROKEN_MAX).collect()]
            compared = found.drop(*(set(found.columns) - set(reference.columns)))
        return Judged(compare_frames(compared, reference, self.case.keys, self.case.tolerances), broken, count)

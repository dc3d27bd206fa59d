"""A case tried out: Spark prepares its input, Ray runs its flow, Spark says what it had to come to."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from backedge.cases import Case, taken, takes
from backedge.engine.on_ray.api.job_handle import RunResult
from backedge.engine.on_ray.api.starting import start_run
from backedge.engine.on_ray.planned_faults import Faults
from backedge.engine.on_ray.run_options import RunOptions
from backedge.flows import WrongCallError, told_in_a_line
from backedge.graphs.flow import Flow
from backedge.recovery.spark.report.verdict import Verdict
from backedge.recovery.spark.spark_errors import ComparisonError
from backedge.recovery.stores.keys import signing_key

DataFrame = Any
SparkSession = Any
"""Only where PySpark is imported does a checker know them."""

BROKEN_MAX, SHOWN_MAX = 10, 3


@dataclass(frozen=True, slots=True)
class Judged:
    """How a result differs from what it has to be. `broken` rows break what is promised beyond the reference."""

    rows: int
    differing: int
    first: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    told: list[str] = field(default_factory=list[str])
    broken: int = 0
    first_broken: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    fault: str | None = None

    def failures(self, what: str) -> list[str]:
        """A line for each thing that is wrong; `what` says what was compared.

        >>> Judged(rows=7, differing=1, told=["lost: {'id': 3}"]).failures("the run and the reference")
        ["the run and the reference: 1 of 7 rows differ: lost: {'id': 3}"]
        """
        if self.fault is not None:
            return [f"{what}: {self.fault}"]
        lines = [] if self.rows else [f"{what}: the result has no rows"]
        if self.differing:
            lines.append(f"{what}: {self.differing:,} of {self.rows:,} rows differ: {'; '.join(self.told[:SHOWN_MAX])}")
        if self.broken:
            first = "; ".join(map(str, self.first_broken[:SHOWN_MAX]))
            lines.append(f"{what}: {self.broken:,} of {self.rows:,} rows break what is promised: {first}")
        return lines


class Trial:
    """One case with its input in `folder`. What can be wrong about the call is known before Spark is started."""

    spark: SparkSession

    def __init__(
        self,
        case: Case,
        folder: str,
        *,
        size: int | None,
        rounds: int | None,
        options: RunOptions,
    ) -> None:
        self.case = case
        self.size = size or case.size
        self._folder = folder
        self._options = replace(options, key=signing_key(options.key))
        self._inputs = os.path.join(folder, "inputs")
        self._unfinished = os.path.join(self._inputs, ".unfinished")
        self._given: dict[str, Any] = {"inputs": self._inputs, "size": self.size, "seed": options.seed}
        if rounds is not None:
            if not takes(case.make_flow, "rounds"):
                raise WrongCallError(f"flow() of {case.name} takes no rounds: leave --rounds away")
            self._given["rounds"] = rounds
        case.check_sink(self.flow("output").plan())

    @contextmanager
    def session(self, spark: SparkSession = None) -> Generator[None]:
        """Use this session, or one of our own that ends with the block."""
        from backedge.recovery.spark.sessions.spark_session import session_for

        with session_for(self.case.name) if spark is None else nullcontext(spark) as self.spark:
            yield

    def flow(self, output: str) -> Flow:
        """The flow, which writes below the folder of that name."""
        return self.case.flow(**self._given, output=os.path.join(self._folder, output))

    @property
    def is_prepared(self) -> bool:
        """Whether there is an input, all of it."""
        return os.path.isdir(self._inputs) and not os.path.exists(self._unfinished)

    def prepare(self) -> None:
        """Have Spark write the input; what was written before an interruption goes first."""
        if os.path.exists(self._unfinished):
            shutil.rmtree(self._inputs)
        os.makedirs(self._inputs, exist_ok=True)
        with open(self._unfinished, "x"):
            pass
        if self.case.prepare is not None:
            self._call(self.case.prepare)
        os.remove(self._unfinished)

    def run(self, output: str, faults: Faults, **changed: Any) -> RunResult:
        return start_run(self.flow(output), replace(self._options, **changed), faults).wait()

    def audit(self, snapshots: str, epochs: Literal["latest", "all"]) -> Verdict:
        """What Spark finds in the cuts that a run has kept, with the invariants of the module."""
        from backedge.recovery.spark.audit.audit_job import audit
        from backedge.recovery.spark.cut_tables.job_folder import JobFolder

        folder = JobFolder.open(os.path.join(snapshots, self.flow("output").plan().name), self._options.key)
        return audit(self.spark, folder, epochs, self.case.invariants)

    def reference(self) -> tuple[DataFrame, float]:
        """What the result has to be, computed, and the seconds that took."""
        began_s = time.monotonic()
        frame = self._call(self.case.reference).localCheckpoint()
        return frame, time.monotonic() - began_s

    def _call(self, function: Callable[..., Any], **more: Any) -> Any:
        """Call a function of the module. Errors of Spark are left to the session, which makes one line of them."""
        from backedge.recovery.spark.sessions.spark_session import errors_of_spark

        with told_in_a_line(f"{function.__name__}() of {self.case.name} raises", *errors_of_spark()):
            return function(self.spark, **taken(function, {**self._given, **more}))

    def found(self, output: str, result: RunResult, reference: DataFrame) -> DataFrame:
        """The result of a run, as a table."""
        from backedge.recovery.spark.compare.run_outputs import frame_of_files, frame_of_records

        sink = self.flow(output).plan().operators[self.case.sink].function
        if sink.keeps:
            return frame_of_records(self.spark, result.outputs[self.case.sink], reference)
        return frame_of_files(self.spark, sink.spark_format, sink.path, reference)

    def judge(self, found: DataFrame, reference: DataFrame) -> Judged:
        """Compare a result with the reference, and see whether it breaks what is promised beyond that."""
        judged = self.differ(found, reference, reference)
        if self.case.promised is None or judged.fault is not None:
            return judged
        broken = self._call(self.case.promised, result=found)
        count = broken.count()
        if not count:
            return judged
        first = [row.asDict(recursive=True) for row in broken.limit(BROKEN_MAX).collect()]
        return replace(judged, broken=count, first_broken=first)

    def differ(self, found: DataFrame, wanted: DataFrame, reference: DataFrame) -> Judged:
        """Compare two results, in the columns of the reference alone where there is a promise on the others."""
        from backedge.recovery.spark.compare.compare_rows import compare_frames

        if self.case.promised is not None:
            found, wanted = (one.drop(*(set(one.columns) - set(reference.columns))) for one in (found, wanted))
        try:
            difference = compare_frames(found, wanted, self.case.keys, self.case.tolerances)
        except ComparisonError as error:
            return Judged(found.count(), 1, fault=str(error))
        return Judged(difference.rows_found, difference.differing, difference.examples, difference.lines())

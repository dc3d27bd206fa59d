"""A run as its driver sees it: wait for it, look at it, ask it for something; and what came of it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from engine.on_ray import cluster
from engine.on_ray.api.progress_line import Display
from engine.on_ray.run_spec import RequestFailedError, RunFailedError
from engine.on_ray.supervisor.audit_process import AuditFailedError, Auditor
from engine.on_ray.supervisor.run_story import Story
from engine.task_errors import describe
from graphs.naming import check_name
from recovery.requests import Reply, RequestKind

LOOK_S = 0.25
REPEAT_S = 0.05
CANCEL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run. `outputs` has what each Collect sink was given.

    `kills` are the planned faults that happened, `missed_faults` those that did not: the run was over before. A restore
    has the `seconds` from a death until all tasks ran again, None where its attempt died before they did;
    `starting_seconds` is what that took in the beginning. `by_task` has the records that each task has processed, such
    as "count/1": 400, in all attempts together.
    `audit` is what an audit came to, if there was one: its state, and how many cuts were audited and skipped.
    """

    job: str
    state: str
    records: int
    hops: int
    snapshots: int
    snapshots_with_log: int
    last_epoch: int | None
    seconds: float
    kills: tuple[dict[str, Any], ...]
    restores: tuple[dict[str, Any], ...]
    missed_faults: tuple[str, ...]
    outputs: dict[str, list[Any]] = field(repr=False)
    starting_seconds: float = 0.0
    audit: dict[str, Any] | None = None
    by_task: dict[str, int] = field(default_factory=dict[str, int])

    def summary(self) -> dict[str, Any]:
        """All but the output, as JSON takes it."""
        return {
            "job": self.job,
            "state": self.state,
            "records": self.records,
            "hops": self.hops,
            "snapshots": self.snapshots,
            "snapshots_with_log": self.snapshots_with_log,
            "last_epoch": self.last_epoch,
            "seconds": round(self.seconds, 3),
            "starting_seconds": round(self.starting_seconds, 3),
            "audit": self.audit,
            "kills": len(self.kills),
            "restores": len(self.restores),
            "faults": list(self.kills),
            "missed_faults": list(self.missed_faults),
            "restored": list(self.restores),
            "outputs": {sink: len(records) for sink, records in self.outputs.items()},
        }


class Job:
    """A run that has been started. `planned` are its faults, such as "head@epoch=3"."""

    def __init__(
        self,
        supervisor: Any,
        description: str,
        progress: bool,
        planned: Sequence[str] = (),
        auditor: Auditor | None = None,
    ) -> None:
        self._supervisor = supervisor
        self._auditor = auditor
        self._over = supervisor.run.remote()
        self._planned = tuple(planned)
        self._progress = Display(progress)
        self._answers: dict[str, Reply] = {}
        self._lines = 0
        self._printed = 0
        self.result: RunResult | None = None
        """What came of the run, once it is over: finished, failed or cancelled."""
        self._progress.say(description)

    def status(self) -> Story:
        """How far it is."""
        return cluster.get(self._supervisor.look.remote(0, 0))

    def savepoint(self, name: str) -> int:
        """Take a cut that is kept by this name; returns its epoch, with which `resume=` goes back to it.

        Raises `RequestFailedError` if the run ends without it, or if it has failed ten times. Restarts of the run
        meanwhile do no harm.
        """
        return self._request(RequestKind.SAVEPOINT, check_name(name, "savepoint"))

    def stop(self, savepoint: str = "stop") -> RunResult:
        """End the run with a cut of that name, whose output is published; a run that resumes goes on from there.

        Raises `RequestFailedError` if that cut has failed ten times: the run goes on. If the run ends by itself first,
        the result is that of a run that has finished.
        """
        try:
            self._request(RequestKind.STOP, check_name(savepoint, "savepoint"))
        except RequestFailedError:
            if not cluster.is_over(self._over, 0):
                raise
            # The run has ended without that cut, and `wait` says how.
        return self.wait()

    def _request(self, kind: RequestKind, name: str) -> int:
        """Repeat a request under one id until it is answered."""
        request_id = os.urandom(8).hex()
        while True:
            answer: Reply | None
            try:
                if self.result is None:
                    answer = cluster.get(self._supervisor.ask.remote(request_id, kind, name))
                else:
                    # Its supervisor is being ended, and may answer still or not.
                    answer = self._last_answer(request_id, kind, name, "")
            except cluster.RayError as error:
                answer = self._last_answer(request_id, kind, name, cluster.first_line(error))
            if answer is None:
                time.sleep(REPEAT_S)
            elif answer.epoch is None:
                raise RequestFailedError(answer.error)
            else:
                return answer.epoch

    def _last_answer(self, request_id: str, kind: RequestKind, name: str, error: str) -> Reply:
        """The answer of a run whose supervisor is gone: it is in the run's story if the run came to an end."""
        answer = self._answers.get(request_id)
        if answer is None:
            ended = f"it has {self.result.state}" if self.result else f"its supervisor died: {error}"
            answer = Reply(error=f"{kind.value} {name!r} was not taken, for the run is over: {ended}")
        return answer

    def cancel(self) -> None:
        """End the run now. Its last complete cut stays."""
        try:
            cluster.get(self._supervisor.cancel.remote(), CANCEL_TIMEOUT_S)
            if cluster.is_over(self._over, CANCEL_TIMEOUT_S):
                self._close(cluster.get(self._over))
        except cluster.RayError as error:
            self._progress.say(f"the run was cancelled, and its supervisor was gone: {cluster.first_line(error)}")
        cluster.kill(self._supervisor)
        if self._auditor is not None:
            self._auditor.close()

    def wait(self) -> RunResult:
        """Wait for the end; shows progress meanwhile. Interrupted, or told of a wrong cut, it cancels the run."""
        try:
            result = self._wait()
            return result if self._auditor is None else self._judge(self._auditor, result)
        finally:
            if self._auditor is not None:
                self._auditor.close()

    def _wait(self) -> RunResult:
        try:
            while not cluster.is_over(self._over, LOOK_S):
                self._show(cluster.get(self._supervisor.look.remote(self._lines, self._printed)))
                for line in () if self._auditor is None else self._auditor.news():
                    self._progress.say(line)
            story = cast(Story, cluster.get(self._over))
        except (KeyboardInterrupt, SystemExit):
            self.cancel()
            raise
        except AuditFailedError:
            self.cancel()
            self._note_audit("failed")
            raise
        except cluster.RayError as error:
            cause = getattr(error, "cause", None)
            why = f"died: {cluster.first_line(error)}" if cause is None else f"failed: {describe(cause)}"
            cluster.kill(self._supervisor)
            kept = 'where it had snapshots, resume="latest" goes on from the last of them'
            raise RunFailedError(f"the supervisor of the run {why}; {kept}") from error
        result = self._close(story)
        cluster.kill(self._supervisor)
        if story.error is not None:
            raise story.error
        return result

    def _judge(self, auditor: Auditor, result: RunResult) -> RunResult:
        try:
            for line in auditor.finish():
                self._progress.say(line)
        except AuditFailedError:
            self._note_audit("failed")
            raise
        self._note_audit(result.state)
        return self.result or result

    def _note_audit(self, state: str) -> None:
        if self.result is not None and self._auditor is not None:
            self.result = replace(self.result, state=state, audit=self._auditor.summary())

    def _show(self, story: Story) -> None:
        self._tell(story.lines, story.printed)
        self._progress.show(story)

    def _close(self, story: Story) -> RunResult:
        self._tell(story.lines[self._lines :], story.printed[self._printed - story.printed_before :])
        self._progress.make_room()
        self._answers = story.answers
        self.result = _result(story, self._planned)
        return self.result

    def _tell(self, lines: list[str], printed: list[str]) -> None:
        """What has happened since, and what Print sinks have committed."""
        self._lines += len(lines)
        self._printed += len(printed)
        for line in lines:
            self._progress.say(line)
        if printed:
            self._progress.make_room()
            print("\n".join(printed), flush=True)


def missed(planned: Sequence[str], happened: Sequence[str]) -> tuple[str, ...]:
    """The planned faults that did not happen.

    >>> missed(["head@epoch=2", "head@epoch=2", "random@every=1s"], ["random@every=1s", "head@epoch=2"])
    ('head@epoch=2',)
    """
    return tuple((Counter(planned) - Counter(happened)).elements())


def _result(story: Story, planned: Sequence[str]) -> RunResult:
    total = story.total()
    return RunResult(
        job=story.job,
        state=story.state,
        records=total.records,
        hops=total.hops,
        snapshots=story.snapshots,
        snapshots_with_log=story.snapshots_with_log,
        last_epoch=story.last_epoch,
        seconds=story.seconds,
        kills=tuple(story.kills),
        restores=tuple(story.restores),
        missed_faults=missed(planned, [kill["fault"] for kill in story.kills]),
        outputs=story.outputs,
        starting_seconds=(story.ran_s or story.began_s) - story.began_s,
        by_task={str(task): records for task, records in story.by_task().items()},
    )

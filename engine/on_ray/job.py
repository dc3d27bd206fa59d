"""A run as its driver sees it: wait for it, look at it, ask it for something; and what came of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from engine.errors import describe
from engine.on_ray import cluster
from engine.on_ray.auditing import AuditFailedError, Auditor
from engine.on_ray.options import RunFailedError
from engine.on_ray.progress import Display
from engine.on_ray.story import Story
from graphs.naming import check_name

LOOK_S = 0.25
CANCEL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of a run. `outputs` has what each Collect sink was given.

    `kills` are the planned faults that happened, `missed_faults` those that did not: the run was over before. A restore
    has the `seconds` from a death until all tasks ran again; `starting_seconds` is what that took in the beginning.
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
        self._lines = 0
        self._printed = 0
        self.result: RunResult | None = None
        """What came of the run, once it is over: finished, failed or cancelled."""
        self._progress.say(description)

    def status(self) -> Story:
        """How far it is."""
        return cluster.get(self._supervisor.look.remote(0, 0))

    def savepoint(self, name: str) -> None:
        """Ask for a cut that is kept by this name."""
        cluster.get(self._supervisor.ask.remote("savepoint", check_name(name, "savepoint")))

    def stop(self, savepoint: str = "stop") -> RunResult:
        """End the run with a cut of that name, whose output is published; a run that resumes goes on from there."""
        cluster.get(self._supervisor.ask.remote("stop", check_name(savepoint, "savepoint")))
        return self.wait()

    def cancel(self) -> None:
        """End the run now. Its last complete cut stays."""
        try:
            cluster.get(self._supervisor.ask.remote("cancel"), CANCEL_TIMEOUT_S)
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
        self._tell(story.lines[self._lines :], story.printed[self._printed :])
        self._progress.make_room()
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
        seconds=(story.ended_s or time.time()) - story.began_s,
        kills=tuple(story.kills),
        restores=tuple(story.restores),
        missed_faults=missed(planned, [kill["fault"] for kill in story.kills]),
        outputs=story.outputs,
        starting_seconds=(story.ran_s or story.began_s) - story.began_s,
    )

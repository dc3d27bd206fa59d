"""A run as a process sees that has started it or follows it: wait, look, request a savepoint, stop; and the result."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, cast

from msgspec import structs

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.api.html_tables import html_table, outputs_table
from backedge.engine.on_ray.api.progress_line import Display, print_lines
from backedge.engine.on_ray.attaching import may_answer
from backedge.engine.on_ray.ray_data import to_ray_data
from backedge.engine.on_ray.run_spec import RequestFailedError, RunFailedError
from backedge.engine.on_ray.supervisor.audit_process import AuditFailedError, Auditor
from backedge.engine.on_ray.supervisor.run_story import Story
from backedge.engine.on_ray.supervisor.supervisor_actor import FOLLOWERS
from backedge.graphs.graph_errors import BadOptionError
from backedge.graphs.naming import check_name
from backedge.graphs.public import public
from backedge.graphs.rate import rate_in
from backedge.graphs.task_errors import describe
from backedge.graphs.wording import counted
from backedge.recovery.protocol.requests import Reply, RequestKind, wanted

LOOK_S = 0.25
REPEAT_S = 0.05
SILENCE_TOLD_S = 10.0
CANCEL_TIMEOUT_S = 30.0
SILENCE_S = 30.0
SILENCES = 2
"""A supervisor that is silent for so many times the timeout is replaced, if its actors do not do so before."""

LOST_AFTER_S_MAX = 45.0
"""Ray itself ends a process that has not reached its cluster for a minute."""


class ClusterWatch:
    """Notices that the cluster is gone, of which Ray says nothing until it ends this process.

    >>> times = iter([0.0, 29.0, 31.0])
    >>> watch = ClusterWatch("127.0.0.1:1", 30.0, clock_s=lambda: next(times))
    >>> watch.check(), watch.check()
    (None, None)
    >>> watch.check()
    Traceback (most recent call last):
    ...
    backedge.RunFailedError: the Ray cluster at 127.0.0.1:1 is gone, ...
    """

    def __init__(self, address: str, silence_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._silence_s = min(silence_s, LOST_AFTER_S_MAX)
        self._clock_s = clock_s
        self._gone_s: float | None = None

    @property
    def is_gone(self) -> bool:
        """Whether nothing listens at its address now."""
        return not may_answer(self._address)

    def check(self) -> None:
        """Nothing is heard of the cluster. Raises `RunFailedError` if nothing has listened at its address for long."""
        if not self.is_gone:
            self._gone_s = None
            return
        now_s = self._clock_s()
        if self._gone_s is None:
            self._gone_s = now_s
        if now_s - self._gone_s >= self._silence_s:
            raise self.lost()

    def lost(self) -> RunFailedError:
        cluster.abandon()
        return RunFailedError(
            f'the Ray cluster at {self._address} is gone, and the run with it: if it kept snapshots, resume="latest" '
            "(--resume latest) continues from the last one, on any cluster"
        )


@public
@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run. `outputs` holds the records of each Collect sink.

    `kills` are the planned faults that happened, `missed_faults` those that did not because the run ended first. A
    restore has the `seconds` from the death until all tasks ran again, or None if its attempt failed before that;
    `starting_seconds` is the time until all tasks ran for the first time. `by_task` counts the records that each task
    has processed in all attempts, such as "count/1": 400. `audit` is the outcome of an audit, if there was one, and how
    many cuts were audited and skipped. A rescale has the `tasks` of each operator before and after, and `gap_ms`, the
    milliseconds in which no task ran.
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
    rescales: tuple[dict[str, Any], ...] = ()

    def dataset(self, sink: str) -> Any:
        """The records of a Collect sink as a `ray.data.Dataset`."""
        if sink not in self.outputs:
            known = ", ".join(map(repr, self.outputs)) or "none"
            raise BadOptionError(f"no sink {sink!r} has kept records for the result; those that have: {known}")
        return to_ray_data(self.outputs[sink])

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        return _result_table(self)

    def summary(self) -> dict[str, Any]:
        """Everything except the output, ready for JSON."""
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
            "rescales": list(self.rescales),
            "outputs": {sink: len(records) for sink, records in self.outputs.items()},
        }


@public
class Job:
    """A run that has been started. `planned` are its planned faults, such as "head@epoch=3".

    A detached run goes on without this process, and its supervisor ends by itself. `detached_as` is the name of its
    job. `has_ended`: whether it had ended when it was found. `prints`: whether this process prints what `Print` sinks
    write. `actors` are those of a run that this process has started; without a reference to them Ray ends them.
    `silence_s`: how long the cluster may be gone before the run counts as lost. `may_replace`: whether a supervisor
    that has been silent for twice as long is replaced: before the first attempt its actors do not watch it.
    """

    def __init__(
        self,
        supervisor: Any,
        description: str,
        progress: bool,
        planned: Sequence[str] = (),
        auditor: Auditor | None = None,
        *,
        actors: Sequence[cluster.Actor] = (),
        detached_as: str | None = None,
        has_ended: bool = False,
        prints: bool = True,
        silence_s: float = SILENCE_S,
        may_replace: bool = False,
    ) -> None:
        self._supervisor = supervisor
        self._auditor = auditor
        self._actors = actors
        self._detached_as = detached_as
        self._has_ended = has_ended
        self._prints = prints
        self._over = self._wait_for_end()
        self._cluster = ClusterWatch(cluster.address(), silence_s)
        self._silence_s = silence_s
        self._may_replace = may_replace
        self._planned = tuple(planned)
        self._progress = Display(progress)
        self._answers: dict[str, Reply] = {}
        self._told = 0
        self._printed = 0
        self._seen: Story | None = None
        self._earlier: Story | None = None
        self._gone: set[str] = set()
        self._following = Lock()
        self.result: RunResult | None = None
        """The result, once the run has finished, failed or been cancelled."""
        self._progress.say(description)

    def _wait_for_end(self) -> cluster.Pending:
        return cluster.in_group(self._supervisor.run, FOLLOWERS).remote()

    @property
    def is_detached(self) -> bool:
        """Whether the run goes on when this process ends."""
        return self._detached_as is not None

    def status(self) -> Story:
        """The progress of the run."""
        return self._look(all_lines=True)

    def _repr_html_(self) -> str:
        """The table that a notebook shows: the result, or how far each task has come."""
        if self.result is not None:
            return _result_table(self.result)
        story = self.status()
        cut = "no cut yet" if story.last_epoch is None else f"cut {story.last_epoch}"
        caption = f"{story.job}: {story.state}, attempt {story.attempt}, {cut}, {story.seconds:.3g} s"
        return html_table(caption, ["task", "records"], story.by_task().items())

    def _look(self, *, all_lines: bool) -> Story:
        """The progress of the run, with all lines of its supervisor or those that this process has not shown yet."""
        while True:
            with self._following:
                over, known = self._over, self._seen
                first = (0, 0) if all_lines else (self._told, self._printed)
            try:
                story = cast(Story, self._answer(self._supervisor.look.remote(*first)))
            except cluster.ActorUnavailableError:
                self._cluster.check()
                if not self._follow_successor(over):
                    time.sleep(REPEAT_S)
                continue
            is_new = known is None or known.supervisor != story.supervisor
            # Of a successor, the first lines are new, too.
            if self._note(story) and (first == (0, 0) or not is_new):
                return story if self._earlier is None else _continued(story, self._earlier)

    def _note(self, story: Story) -> bool:
        """Note what the supervisor reports, and if it is a successor, keep what the one before has reported.

        A successor may answer before this process hears of the death of the one before. Returns False for a late
        report of one that has been succeeded.
        """
        with self._following:
            if story.supervisor in self._gone:
                return False
            before, self._seen = self._seen, story
            if before is not None and before.supervisor != story.supervisor:
                self._earlier = before if self._earlier is None else _continued(before, self._earlier)
                self._gone.add(before.supervisor)
                self._told = self._printed = 0
            return True

    def _answer(self, asked: cluster.Pending) -> Any:
        """The answer of the supervisor. Says so if it takes long: its process may be stopped, or be replaced.

        Raises `RunFailedError` if the cluster is lost.
        """
        # In parts, because this process may have been stopped itself: that counts as one part, however long it took.
        parts, parts_told = 0, round(SILENCE_TOLD_S / LOOK_S)
        parts_max = max(parts_told + 1, round(SILENCES * self._silence_s / LOOK_S))
        while not cluster.is_over(asked, LOOK_S):
            self._cluster.check()
            parts += 1
            if parts == parts_told:
                self._progress.say(
                    f"the supervisor of the run has not answered for {SILENCE_TOLD_S:.0f} s; waiting for it"
                )
            # One that has never answered may still be starting.
            if parts == parts_max and self._may_replace and self._seen is not None:
                self._progress.say(f"the supervisor has not answered for {parts * LOOK_S:.0f} s; it is replaced")
                cluster.replace(self._supervisor)
        return cluster.get(asked)

    def _is_over(self, timeout_s: float) -> bool:
        """Whether the run ends within that time. It goes on if its supervisor was replaced."""
        over = self._over
        return cluster.is_over(over, timeout_s) and not self._follow_successor(over)

    def _follow_successor(self, over: cluster.Pending) -> bool:
        """If the supervisor that was followed has died and Ray starts it again, follow that one.

        `over`: what was to come when that supervisor ends. Returns whether it is no longer followed: another thread
        may have been faster.
        """
        with self._following:
            if self._over is not over:
                return True
            if not cluster.is_over(over, 0):
                return False
            try:
                cluster.get(over)
            except cluster.ActorUnavailableError:
                self._over = self._wait_for_end()
                return True
            except cluster.RayError:
                return False
            return False

    def cut(self) -> int:
        """Take a cut now, besides the periodic ones, and return its epoch. It is kept as long as a periodic one.

        Raises `RequestFailedError` as `savepoint` does.
        """
        return _epoch_of(self._request(RequestKind.CUT, None))

    def savepoint(self, name: str) -> int:
        """Take a cut that is kept under this name. Returns its epoch; `resume=EPOCH` continues from it.

        In a flow with iterations it waits for the end of the current round, so that a run can resume from it at another
        parallelism; no other cut is taken meanwhile. Periodic cuts do not wait, and a cut in the middle of a round can
        be resumed only at the same parallelism.

        Raises `RequestFailedError` if the run ends without it, or after ten failed attempts. The request survives
        restarts of the run.
        """
        return _epoch_of(self._request(RequestKind.SAVEPOINT, check_name(name, "savepoint")))

    def rescale(self, parallelism: int | Mapping[str, int]) -> int:
        """Give the living run another number of tasks, and return the milliseconds in which none of them ran.

        A number is for all operators that do not set their own, a mapping for those that it names. First the processes
        that are missing are started; then the run takes a cut, between two rounds if it has iterations, and goes on
        from that cut with the new tasks. If it has these tasks already, nothing happens, and the result is 0.

        Raises `RequestFailedError` if the cut cannot be restored with these numbers of tasks, if the cluster has no
        room for them in ten minutes or fewer than a CPU for 16 processes that need none, or if the run ends before.
        Except after its end, the run goes on as before.
        """
        known = len(self.status().rescales)
        self._request(RequestKind.RESCALE, None, parallelism)
        return sum(rescale["gap_ms"] or 0 for rescale in self.status().rescales[known:])

    def rate(self, source: str, rate: float | str | None) -> None:
        """Limit what the tasks of a source together read from now on: 500 or "500/s" records, "2MB/s" bytes a second.

        None or "off" takes the limit away. Attempts and tasks that begin later have the new rate, too; a run that is
        started again has that of its flow.

        Raises `RequestFailedError` if the flow has no such source or the run is over.
        """
        wanted, error = rate_in(rate), None
        while True:
            try:
                error = self._answer(self._supervisor.limit.remote(source, wanted))
                break
            except cluster.ActorUnavailableError:
                self._cluster.check()
                self._follow_successor(self._over)
                time.sleep(REPEAT_S)
            except cluster.RayError as gone:
                error = f"the run is over: {cluster.first_line(gone)}"
                break
        if error is not None:
            raise RequestFailedError(f"the rate of source {source!r} was not changed: {error}", is_for_good=True)

    def stop(self, savepoint: str = "stop") -> RunResult:
        """End the run with a cut of this name and publish its output; a later run can resume from it.

        In a flow with iterations it waits for the end of the current round as `savepoint` does, but not longer than
        `cut_timeout`. Then the run ends in the middle of the round, and says so: resume it at the same parallelism.

        Raises `RequestFailedError` after ten failed attempts to take the cut; the run then goes on. If the run ends by
        itself first, the result is that of a finished run.
        """
        try:
            self.request_stop(savepoint)
        except RequestFailedError:
            if not self._is_over(0):
                raise
            # The run has ended without that cut; `wait` reports how.
        return self.wait()

    def request_stop(self, savepoint: str = "stop") -> int:
        """Have the run end as `stop` does, and return the epoch of its cut without waiting for the end.

        Raises `RequestFailedError` as `stop` does, and if the run has ended.
        """
        return _epoch_of(self._request(RequestKind.STOP, check_name(savepoint, "savepoint")))

    def _request(
        self, kind: RequestKind, name: str | None, parallelism: int | Mapping[str, int] | None = None
    ) -> Reply:
        """Repeat a request under one id until it is answered."""
        request_id = os.urandom(8).hex()
        while True:
            answer: Reply | None
            try:
                if self.result is None:
                    answer = self._answer(self._supervisor.ask.remote(request_id, kind, name, parallelism))
                else:
                    # The supervisor is being ended, and may or may not still answer.
                    answer = self._last_answer(request_id, kind, name, "")
            except cluster.ActorUnavailableError:
                self._cluster.check()
                self._follow_successor(self._over)
                answer = None
            except cluster.RayError as error:
                answer = self._last_answer(request_id, kind, name, cluster.first_line(error))
            if answer is None:
                time.sleep(REPEAT_S)
            elif answer.error is not None:
                raise RequestFailedError(answer.error, is_for_good=answer.is_for_good)
            else:
                return answer

    def _last_answer(self, request_id: str, kind: RequestKind, name: str | None, error: str) -> Reply:
        """The answer of a run whose supervisor is gone; the run's story has it if the run ended normally."""
        answer = self._answers.get(request_id)
        if answer is None:
            ended = f"it has {self.result.state}" if self.result else f"its supervisor died: {error}"
            told = f"{wanted(kind, name)} was not taken because the run is over: {ended}"
            answer = Reply(error=told, is_for_good=True)
        return answer

    def cancel(self) -> None:
        """End the run now. Its last complete cut stays."""
        try:
            cluster.get(self._supervisor.cancel.remote(), CANCEL_TIMEOUT_S)
            if self._is_over(CANCEL_TIMEOUT_S):
                self._close(cluster.get(self._over))
        except cluster.RayError as error:
            self._progress.say(f"the run was cancelled, and its supervisor was gone: {cluster.first_line(error)}")
        self._end_supervisor()
        if self._auditor is not None:
            self._auditor.close()

    def _end_supervisor(self) -> None:
        """The run is over. The supervisor of a detached run still answers others, and ends by itself."""
        if self._cluster.is_gone:
            return  # with all processes; Ray would wait for it
        if not self.is_detached or self.result is None:
            cluster.kill(self._supervisor)
            for actor in self._actors:
                cluster.kill(actor)

    def wait(self) -> RunResult:
        """Wait for the end and show progress.

        Ctrl-C, SIGTERM and a failed audit cancel the run. A detached run goes on after Ctrl-C and SIGTERM.
        """
        try:
            result = self._wait()
            return result if self._auditor is None else self._judge(self._auditor, result)
        finally:
            if self._auditor is not None:
                self._auditor.close()

    def _wait(self) -> RunResult:
        try:
            if self.is_detached and not self._has_ended:
                self._progress.say("the run is detached: Ctrl-C leaves it alone")
            while not self._is_over(LOOK_S):
                story = self._look(all_lines=False)
                self._tell(story)
                self._progress.show(story)
                for line in () if self._auditor is None else self._auditor.news():
                    self._progress.say(line)
            story = cast(Story, cluster.get(self._over))
        except (KeyboardInterrupt, SystemExit):
            if self._detached_as is None:
                self.cancel()
            else:
                job = self._detached_as
                self._progress.say(
                    f"the run goes on without this process: follow it with `backedge attach {job}`, end it with a cut "
                    f"by `backedge stop {job}`, or at once by `backedge cancel {job}`"
                )
            raise
        except AuditFailedError:
            self.cancel()
            self._note_audit("failed")
            raise
        except cluster.RayError as error:
            if self._cluster.is_gone:
                raise self._cluster.lost() from error
            cause = getattr(error, "cause", None)
            why = f"died: {cluster.first_line(error)}" if cause is None else f"failed: {describe(cause)}"
            self._end_supervisor()
            kept = 'if it kept snapshots, resume="latest" continues from the last one'
            raise RunFailedError(f"the supervisor of the run {why}; {kept}") from error
        result = self._close(story)
        self._end_supervisor()
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

    def _close(self, story: Story) -> RunResult:
        self._note(story)
        self._tell(story)
        self._progress.make_room()
        self._answers = story.answers
        if self._earlier is not None:
            story = _continued(story, self._earlier)
        self.result = _result(story, self._planned)
        return self.result

    def _tell(self, story: Story) -> None:
        """Show new events, and new output of Print sinks."""
        told, printed = story.told.since(self._told), story.printed.since(self._printed)
        unseen, unprinted = told.first - self._told, printed.first - self._printed
        self._told, self._printed = told.first + len(told.lines), printed.first + len(printed.lines)
        if unseen:
            self._progress.say(f"{counted(unseen, 'message')} before these were not kept")
        for line in told.lines:
            self._progress.say(line)
        if unprinted and self._prints:
            self._progress.say(f"{counted(unprinted, 'printed line')} before these were not kept")
        if printed.lines and self._prints:
            self._progress.make_room()
            print_lines(printed.lines)


def _result_table(result: RunResult) -> str:
    figures = counted(result.records, "record"), counted(result.hops, "hop"), counted(result.snapshots, "cut")
    restores = (counted(len(result.restores), "restore"),) if result.restores else ()
    facts = ", ".join((result.state, *figures, *restores, f"{result.seconds:.3g} s"))
    return outputs_table(f"{result.job}: {facts}", result.outputs)


def _epoch_of(reply: Reply) -> int:
    if reply.epoch is None:
        raise RuntimeError("the supervisor has answered a request for a cut without an epoch; please report this")
    return reply.epoch


def _continued(story: Story, earlier: Story) -> Story:
    """A copy of a supervisor's story, with what its predecessors have reported."""
    story = structs.replace(story, kills=list(story.kills), restores=list(story.restores))
    story.continues(earlier)
    return story


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
        rescales=tuple(story.rescales),
        missed_faults=missed(planned, [kill["fault"] for kill in story.kills]),
        outputs=story.outputs,
        starting_seconds=(story.ran_s or story.began_s) - story.began_s,
        by_task={str(task): records for task, records in story.by_task().items()},
    )

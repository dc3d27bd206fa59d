"""The supervisor's Ray actor: it leads one run, and answers the driver meanwhile.

The driver ends it when the run is over. A detached run has no such driver: its supervisor stays for a while, for those
who still ask how the run has ended, and then ends itself.

If its process dies, Ray starts this actor again, on another host if need be. That is the successor: it takes the job
over by a claim in the chain and continues from the last complete cut, with those of the first actors that are still
alive. It does not wait for the driver to notice.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Timer
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter, FirstActors, Survivors

if TYPE_CHECKING:
    from backedge.engine.on_ray.run_spec import RunIdentity, RunSpec
    from backedge.engine.on_ray.supervisor.run_story import Story
    from backedge.engine.on_ray.supervisor.version_directories import Question
    from backedge.graphs.ids import Attempt
    from backedge.graphs.rate import Rate
    from backedge.recovery.protocol.requests import Reply, RequestKind
    from backedge.recovery.protocol.versions import Name
    from backedge.recovery.stores.run_status import RunStatus

FOLLOWERS = "followers"
FOLLOWERS_MAX = 32
"""The group of threads in which `run` waits, so that it keeps none from asking, and how many of them may wait."""


class About(Struct, frozen=True):
    """What a process needs to know of a living run before it joins. `planned` are its planned faults."""

    identity: RunIdentity
    planned: tuple[str, ...]
    has_ended: bool


class SupervisorActor:
    """One run, pickled by the driver as a `RunSpec` of each pipeline, in pieces.

    `held` are the constants of a run without cuts. What is asked of the run, `JobSupervising` answers.
    """

    def __init_subclass__(cls) -> None:
        """As in `TaskActor`."""
        cluster.skip_serializers(cls)

    def __init__(self, first: FirstActors, held: Mapping[str, cluster.Pending], *pickled: bytes) -> None:
        self._label = f"{first.job}/supervisor"
        survivors = Survivors(first) if cluster.is_restarted() else None
        # Not earlier, and the run is no argument by itself: survivors leave their attempt while this process loads it.
        from backedge.engine.on_ray.job_store import await_store
        from backedge.engine.on_ray.supervisor.job_supervising import JobSupervising
        from backedge.engine.on_ray.supervisor.run_metrics import RunMetrics
        from backedge.engine.on_ray.tracing import NO_EXPORTER, RunSpans, flush, lacks_exporter, tracer

        specs: tuple[RunSpec, ...] = pickle.loads(b"".join(pickled))
        cluster.adopt_script_classes()
        spec = specs[0]
        actors = first.find() if survivors is None else survivors.wait()
        await_store(spec.options)
        starter = ActorStarter(first.job, first.strategy, actors)
        self._supervising = JobSupervising(specs, starter, held, is_successor=survivors is not None)
        if spec.run.metrics == "on":
            for pipeline in self._supervising.pipelines:
                pipeline.statuses.watchers.append(RunMetrics(pipeline.status(), cluster.metric))
        if (spans := tracer()) is not None:
            for pipeline in self._supervising.pipelines:
                pipeline.statuses.watchers.append(RunSpans(pipeline.status(), spans, flush))
        elif lacks_exporter():
            self._supervising.pipelines[0].say(NO_EXPORTER)
        self._run_id = spec.id
        self._identity = spec.identity
        self._planned = tuple(str(kill) for each in specs for kill in each.kills)
        self._end = ThreadPoolExecutor(1, "lead").submit(self._supervising.run)
        if spec.run.detached:
            self._end.add_done_callback(lambda _: Timer(spec.result_kept_s, cluster.end_own_actor).start())

    def __repr__(self) -> str:
        """The name that Ray shows in front of its output and in lists."""
        return self._label

    def about(self) -> About:
        """Describe the run to a process that wants to join it."""
        return About(self._identity, self._planned, self._end.done())

    def leads(self, run: str) -> bool:
        """Whether it leads the run of this number."""
        return run == self._run_id

    def run(self) -> Story:
        """Wait until the run has ended. Call it in the group of followers."""
        return self._end.result()

    def look(self, told_from: int, printed_from: int) -> Story:
        return self._supervising.look(told_from, printed_from)

    def status(self) -> RunStatus:
        return self._supervising.status()

    def ask(
        self,
        request_id: str,
        kind: RequestKind,
        name: str | None,
        parallelism: int | Mapping[str, int] | None = None,
    ) -> Reply | None:
        """Request a cut, a stop or a rescale; repeat the request with the same id until it is answered."""
        return self._supervising.ask(request_id, kind, name, parallelism)

    def versions(self, question: Question, attempt: Attempt, name: Name, *arguments: Any) -> Any:
        return self._supervising.versions(question, attempt, name, arguments)

    def limit(self, source: str, rate: Rate | None) -> str | None:
        return self._supervising.limit(source, rate)

    def cancel(self) -> None:
        self._supervising.cancel()

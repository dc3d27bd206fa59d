"""Leads a run: a `Supervising` for each of its pipelines, in a thread of its own, and what users see of all of them.

Pipelines know nothing of each other: while one waits for a process or restores its tasks, the others go on. A request
is one to each pipeline, and is answered when all have answered. The run is over when all pipelines are. If one fails
for good, the others are ended.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from msgspec.structs import replace

from backedge.engine.on_ray import cluster
from backedge.engine.on_ray.run_spec import RunSpec
from backedge.engine.on_ray.supervisor.actor_starter import ActorStarter
from backedge.engine.on_ray.supervisor.crew import needs_of
from backedge.engine.on_ray.supervisor.run_story import Story, united
from backedge.engine.on_ray.supervisor.supervising import Common, Supervising
from backedge.engine.on_ray.supervisor.version_directories import Question
from backedge.graphs.discovery import sources_of
from backedge.graphs.ids import Attempt
from backedge.graphs.rate import Rate
from backedge.recovery.protocol.requests import Reply, RequestKind, combined
from backedge.recovery.protocol.versions import Name
from backedge.recovery.stores import run_status
from backedge.recovery.stores.run_status import RunStatus


class JobSupervising:
    """A run of one or several pipelines. `is_successor`: a former supervisor of the run has died.

    `held`: the constants of a run without cuts.
    """

    def __init__(
        self,
        specs: Sequence[RunSpec],
        starter: ActorStarter,
        held: Mapping[str, cluster.Pending] | None = None,
        *,
        is_successor: bool = False,
    ) -> None:
        self._common = Common(specs[0], held)
        self._is_successor = is_successor
        self.pipelines: list[Supervising] = []
        for spec in specs:
            own = starter if len(specs) == 1 else starter.part(needs_of(spec.deployment))
            self.pipelines.append(Supervising(spec.for_successor() if is_successor else spec, own, self._common))
        if len(specs) > 1:
            self._common.status = self.status
        if is_successor:
            self._common.told.add(["the supervisor of the run died; its successor continues"])
            for pipeline in self.pipelines:
                pipeline.on_takeover()

    def run(self) -> Story:
        """Run until all pipelines have ended, successfully or not; return the story of the run."""
        with ThreadPoolExecutor(len(self.pipelines), "pipeline") as pool:
            for led in [pool.submit(self._lead, pipeline) for pipeline in self.pipelines]:
                led.result()
        story = self.story
        story.answers = self._answers()
        story.printed = self._common.printed
        return story

    def _lead(self, pipeline: Supervising) -> None:
        try:
            pipeline.run()
        finally:
            if pipeline.story.state not in ("finished", "stopped"):
                self.cancel()

    @property
    def story(self) -> Story:
        if len(self.pipelines) == 1:
            return self.pipelines[0].story
        story = united([pipeline.story for pipeline in self.pipelines])
        # One supervisor has died, and not one for each pipeline.
        story.restarts -= (len(self.pipelines) - 1) * self._is_successor
        return story

    def look(self, told_from: int, printed_from: int) -> Story:
        """The progress of the run: its story without its output, and the lines that the driver does not have yet.

        The driver has the earlier lines, and will not ask for them again. A detached run has any number of followers,
        or none, so what it has printed stays.
        """
        story = self.story
        if not self.pipelines[0].spec.run.detached:
            self._common.printed.forget_before(printed_from)
        return replace(
            story,
            told=story.told.since(told_from),
            printed=self._common.printed.since(printed_from),
            outputs={},
            counts=dict(story.counts),
            told_s=time.monotonic(),
        )

    def status(self) -> RunStatus:
        """What is known about the run. Called from any thread."""
        statuses = [pipeline.status() for pipeline in self.pipelines]
        return statuses[0] if len(statuses) == 1 else run_status.united(statuses, self.story.state)

    def versions(self, question: Question, attempt: Attempt, name: Name, arguments: Sequence[Any]) -> Any:
        """Where a version is, or will be. Called from any thread."""
        return self._common.versions.ask(question, attempt, name, *arguments)

    def limit(self, source: str, rate: Rate | None) -> str | None:
        """Change the rate of a source. Called from any thread. Returns an error, if it cannot be changed."""
        sources: list[str] = []
        for pipeline in self.pipelines:
            own = sources_of(pipeline.spec.deployment.plan)
            if source in own:
                return pipeline.limit(source, rate)
            sources += own
        return f"the flow has no source {source!r}; its sources are {', '.join(map(repr, sources))}"

    def cancel(self) -> None:
        for pipeline in self.pipelines:
            pipeline.is_cancelled = True

    # -- requests ------------------------------------------------------------------------------------------------

    def ask(
        self, request_id: str, kind: RequestKind, name: str | None, parallelism: int | Mapping[str, int] | None
    ) -> Reply | None:
        """Accept a client's request, from any thread. Returns None until it is answered: the client asks again."""
        if len(self.pipelines) == 1:
            return self.pipelines[0].ask(request_id, kind, name, parallelism)
        if isinstance(parallelism, Mapping):
            operators = {name for pipeline in self.pipelines for name in pipeline.spec.deployment.plan.operators}
            unknown = sorted(parallelism.keys() - operators)
            if unknown:
                known = ", ".join(map(repr, sorted(operators)))
                told = f"the flow has no operator {unknown[0]!r} to rescale; its operators are {known}"
                return Reply(error=told, is_for_good=True)
        replies = [
            pipeline.ask(request_id, kind, name, _own(parallelism, pipeline.spec)) for pipeline in self.pipelines
        ]
        answered = [reply for reply in replies if reply is not None]
        return combined(answered) if len(answered) == len(replies) else None

    def _answers(self) -> dict[str, Reply]:
        """The answers to all requests, for clients that ask after the end."""
        answers = [pipeline.story.answers for pipeline in self.pipelines]
        common = set(answers[0]).intersection(*answers[1:])
        return {request: combined([each[request] for each in answers]) for request in common}


def _own(parallelism: int | Mapping[str, int] | None, spec: RunSpec) -> int | Mapping[str, int] | None:
    """The part of a wanted parallelism that is about one pipeline."""
    if not isinstance(parallelism, Mapping):
        return parallelism
    return {name: tasks for name, tasks in parallelism.items() if name in spec.deployment.plan.operators}

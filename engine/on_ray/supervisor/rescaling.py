"""Prepares rescales of a living run: starts the processes that it will need, and leaves the run alone meanwhile.

    asked ---> preparing ---> handed to the run's driver, which takes the cut and changes the tasks
                   |
                   +--------> refused: there is no room, or a process died; the run goes on as before

So the run is not interrupted for a rescale that cannot be carried out, nor while processes start. One that would crowd
the cluster with processes is refused before any of them starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future

from msgspec import Struct

from backedge.engine.on_ray.cluster import Needs
from backedge.engine.on_ray.supervisor.crew import PLACE_TIMEOUT_S, Crew, needs_of
from backedge.engine.on_ray.supervisor.silence import Doing
from backedge.graphs.deployment import Deployment
from backedge.graphs.wording import counted
from backedge.recovery.protocol.requests import Request

TOLD_MS = 5_000

PROCESSES_PER_CPU_MAX = 16
"""Processes that need no CPU for each CPU of the cluster: many times what pays, and some 100 MB of memory each."""


def crowded(needs: Mapping[str, Needs], present: Mapping[str, Needs], cpus: int) -> str | None:
    """The reason to refuse a rescale to these processes, or None. `present`: the processes that the run has.

    Ray finds a place for any number of processes that need no resources, until the memory is used up and it kills some.
    It counts those that need some, and lets them wait for a machine.

    >>> five, two = ({f"count/{number}": Needs() for number in range(count)} for count in (5, 2))
    >>> crowded(five, two, cpus=1), crowded(two, five, cpus=0)
    (None, None)
    """
    unbounded, already = ([name for name, need in found.items() if need.are_none] for found in (needs, present))
    if len(unbounded) <= max(len(already), cpus * PROCESSES_PER_CPU_MAX):
        return None
    return (
        f"it would have {len(unbounded)} processes on a cluster with {counted(cpus, 'CPU')}, and a living run gets "
        f"{PROCESSES_PER_CPU_MAX} for each at most: ask for fewer tasks or add machines; if you mean it, stop the run "
        "and start it again with this parallelism"
    )


class Preparation(Struct):
    """A rescale whose processes are starting. `answers` come from those that are there."""

    request: Request
    needs: Mapping[str, Needs]
    answers: dict[str, Future[Doing]]
    began_ms: int
    is_told: bool = False

    def missing(self) -> list[str]:
        return [name for name, answer in self.answers.items() if not answer.done()]

    def dead(self) -> list[str]:
        return [name for name, answer in self.answers.items() if answer.done() and answer.exception() is not None]


class Rescaling:
    """The rescales that are being prepared, by request id. `say` reports to the user what they wait for."""

    def __init__(self, crew: Crew, say: Callable[[str], None]) -> None:
        self._crew = crew
        self._say = say
        self._preparing: dict[str, Preparation] = {}
        # Whether there may be processes that no attempt uses yet.
        self._may_be_untidy = False

    def prepares(self, request_id: str) -> bool:
        return request_id in self._preparing

    def prepare(self, request: Request, deployment: Deployment, now_ms: int) -> None:
        """Start the processes that the run will need. If a client has repeated the request, the first time counts."""
        if not self.prepares(request.id):
            self._may_be_untidy = True
            needs = needs_of(deployment)
            self._preparing[request.id] = Preparation(request, needs, self._crew.prepare(needs), now_ms)

    def prepared(self, now_ms: int) -> Iterator[tuple[Request, str | None]]:
        """The requests whose preparation is over. With an error, if it has failed."""
        for id, preparation in list(self._preparing.items()):
            missing, dead = preparation.missing(), preparation.dead()
            waited_ms = now_ms - preparation.began_ms
            error = None
            if dead:
                error = f"actor {dead[0]} could not be started"
            elif missing and waited_ms >= PLACE_TIMEOUT_S * 1000:
                error = f"given up after {waited_ms // 1000} s: {self._lacking(preparation, missing[0])}"
            elif missing:
                self._tell(preparation, missing[0], waited_ms)
                continue
            del self._preparing[id]
            yield preparation.request, error

    def _tell(self, preparation: Preparation, name: str, waited_ms: int) -> None:
        if waited_ms >= TOLD_MS and not preparation.is_told:
            preparation.is_told = True
            self._say(f"the rescale waits, and the run goes on as before: {self._lacking(preparation, name)}")

    def _lacking(self, preparation: Preparation, name: str) -> str:
        return self._crew.lacking_prepared(name, preparation.needs[name])

    def tidy(self, *, is_awaited: bool) -> None:
        """End processes that no rescale uses. `is_awaited`: whether a prepared one is still to be carried out."""
        if self._may_be_untidy and not self._preparing and not is_awaited:
            self._may_be_untidy = False
            self._crew.drop_prepared()

"""Requests to a run: take a cut or a savepoint, stop with one, or rescale. They belong to the run, not to an attempt.

- A request is accepted in every stage of the run, including a restore.
- It is unanswered until it is answered. Only the coordinator knows which epoch is open for it. So if that is declined,
  aborted, overtaken or timed out, or if the attempt fails, nothing has to be put back: another one is opened. After
  `TRIES_MAX` failed epochs the answer is an error. The failure of an attempt does not count as a try, because restarts
  have their own limit.
- The manifest of its cut carries the request's id, and so does the chain of the job. A request that is repeated or
  survives a restart is looked up there first, so its cut is not taken twice.
- A savepoint has a name and is kept. A cut has none, and counts as one of the periodic cuts for retention.
- A stop is answered when its output is published. Its manifest says that the run ends with it, so a supervisor that
  finds it in the chain of its own run ends the run at once, even if its predecessor has answered the stop and died.
- A rescale is answered when an attempt runs with the numbers of tasks that it asks for, whatever became of its cuts. A
  run that was rescaled and dies in between takes another cut, or has nothing left to do. Operators that it does not
  name keep what they have when it is carried out, so rescales of several clients do not undo each other.
- Every end of the run answers all requests: with the final cut for savepoints and stops; after a stop, waiting
  savepoints are reported as superseded; after a failure, with its error.
- In a job of several pipelines, each answers for itself. Those that had ended by themselves, and those of which a
  rescale names no operator, have no part in the answer (`combined`), as long as others do.
- Clients repeat a request with the same id until they have the answer. The last `ANSWERS_MAX` answers are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeVar

from msgspec import Struct

from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.messages import Mode

TRIES_MAX = 10
ANSWERS_MAX = 1_000
"""A client repeats its request several times a second, so its answer is still there."""

T = TypeVar("T")

Sizes = tuple[tuple[str, int], ...]
"""The number of tasks of each operator, in the order of the flow; empty means those that the run began with."""

Asked = tuple[tuple[str, int], ...]
"""The operators that a rescale names, each with the number of tasks that it asks for."""


class RequestKind(Enum):
    CUT = "cut"
    SAVEPOINT = "savepoint"
    STOP = "stop"
    RESCALE = "rescale"


def wanted(kind: RequestKind, name: str | None) -> str:
    """What a request asks for, in words.

    >>> wanted(RequestKind.SAVEPOINT, "mine"), wanted(RequestKind.CUT, None)
    ("savepoint 'mine'", 'the requested cut')
    """
    if kind is RequestKind.RESCALE:
        return "the rescale"
    return "the requested cut" if name is None else f"{kind.value} {name!r}"


class Request(Struct, frozen=True):
    """A request for a cut, and for a stop also the end of the run. The client chooses a new id each time.

    `name` is that of the savepoint; None for a cut that is not kept. `asked`: what a rescale asks for. Operators that
    it does not name keep the tasks that they have by then, which another rescale may have changed since the request.

    >>> request = Request("a1", RequestKind.RESCALE, None, Mode.BETWEEN_ROUNDS, asked=(("count", 3),))
    >>> request.sizes_in({"read": 2, "count": 2}), request.is_met_by({"read": 4, "count": 3})
    ((('read', 2), ('count', 3)), True)
    """

    id: str
    kind: RequestKind
    name: str | None
    mode: Mode
    asked: Asked = ()

    def sizes_in(self, parallelism: Mapping[str, int]) -> Sizes:
        """The numbers of tasks after a rescale of an attempt with this parallelism."""
        return tuple({**parallelism, **dict(self.asked)}.items())

    def is_met_by(self, parallelism: Mapping[str, int]) -> bool:
        """Whether an attempt with this parallelism has what a rescale asks for."""
        return dict(self.sizes_in(parallelism)) == parallelism

    def __str__(self) -> str:
        if self.kind is RequestKind.RESCALE:
            return "rescale"
        return "requested cut" if self.name is None else f"{self.kind.value} {self.name!r}"


class Reply(Struct, frozen=True):
    """The answer to a request: the epoch of its cut, or an error. A rescale that has nothing to do needs no cut.

    `is_for_good`: this run would refuse the same request again, however often it is made. `is_apart`: the answer of a
    pipeline that has no part in it, because it had ended by itself, or because a rescale names none of its operators.
    """

    epoch: Epoch | None = None
    error: str | None = None
    is_for_good: bool = False
    is_apart: bool = False


def combined(replies: Sequence[Reply]) -> Reply:
    """The answer to a request, from those of all pipelines: the last of its cuts, or an error.

    >>> combined([Reply(Epoch(7)), Reply(Epoch(4))]).epoch, combined([Reply(Epoch(7)), Reply(error="declined")]).error
    (7, 'declined')
    >>> combined([Reply(Epoch(41), is_apart=True), Reply(Epoch(4))]).epoch
    4
    """
    replies = [reply for reply in replies if not reply.is_apart] or replies
    failed = next((reply for reply in replies if reply.error is not None), None)
    return failed or Reply(max((reply.epoch for reply in replies if reply.epoch is not None), default=None))


class Requests:
    """The requests of one run.

    - unanswered: by id, in order of arrival; one whose epoch has failed is behind the others.
    - recorded: id of a request -> the cut in the chain that was taken for it. answers: for clients that repeat a
      request. Of both, the last `ANSWERS_MAX`.
    - has_stopped: whether the cut of a stop of this run is in the chain.

    >>> requests = Requests()
    >>> requests.ask(Request("a1", RequestKind.SAVEPOINT, "mine", Mode.ALIGNED))
    >>> (request,) = requests.unanswered.values()
    >>> requests.on_failed_try(request, "declined")
    >>> list(requests.unanswered)
    ['a1']
    >>> requests.on_recorded("a1", Epoch(8))
    >>> requests.ask(request)
    Reply(epoch=8, error=None, is_for_good=False, is_apart=False)
    """

    def __init__(self) -> None:
        self.unanswered: dict[str, Request] = {}
        self.failed_tries: dict[str, int] = {}
        self.recorded: dict[str, Epoch] = {}
        self.answers: dict[str, Reply] = {}
        self.has_stopped = False
        self._final: Epoch | None = None
        self._is_stopped = False
        self._error: str | None = None

    def ask(self, request: Request) -> Reply | None:
        """A client makes or repeats a request. Returns the answer if there is one."""
        if request.id in self.answers:
            return self.answers[request.id]
        if request.kind is RequestKind.RESCALE and not request.asked:
            self._answer(request, Reply(is_apart=True))
        elif request.id not in self.unanswered:
            self.unanswered[request.id] = request
            if request.id in self.recorded:
                self.on_recorded(request.id, self.recorded[request.id])
            if self._final is not None or self._error is not None:
                self._answer_all()
        return self.answers.get(request.id)

    def has_answered(self, request_id: str) -> bool:
        return request_id in self.answers

    def knows(self, request_id: str) -> bool:
        """Whether a request has been made, and is not forgotten."""
        return request_id in self.unanswered or self.has_answered(request_id)

    @property
    def awaits_rescale(self) -> bool:
        return any(request.kind is RequestKind.RESCALE for request in self.unanswered.values())

    def all_answers(self) -> dict[str, Reply]:
        """The answers that are known, by the id of the request."""
        return dict(self.answers)

    def on_failed_try(self, request: Request, reason: str) -> None:
        """The epoch for a request will never complete: it waits for another one, unless that has failed too often."""
        if self.unanswered.pop(request.id, None) is None:
            return
        self.unanswered[request.id] = request
        tries = self.failed_tries[request.id] = self.failed_tries.get(request.id, 0) + 1
        if tries == TRIES_MAX:
            self._answer(request, Reply(error=f"the {request} failed {tries} times, the last time because {reason}"))

    def on_recorded(self, request_id: str, epoch: Epoch) -> None:
        """A cut for this request is in the chain. That answers it, unless more than a cut was asked for."""
        _keep(self.recorded, request_id, epoch)
        request = self.unanswered.get(request_id)
        if request is not None and request.kind not in (RequestKind.STOP, RequestKind.RESCALE):
            self._answer(request, Reply(epoch))

    def on_rescaled(self, request: Request, epoch: Epoch | None) -> None:
        """The attempt runs as a rescale asks for. It has restored this cut, or has taken it since."""
        self._answer(request, Reply(epoch))

    def refuse(self, request: Request, error: str, *, is_for_good: bool) -> None:
        """A request cannot be carried out, and the run goes on as before."""
        told = f"the {request} was refused, and the run goes on as before: {error}"
        self._answer(request, Reply(error=told, is_for_good=is_for_good))

    def on_finished(self, epoch: Epoch, *, is_stopped: bool) -> None:
        """The run has ended with this cut, because of a stop or by itself."""
        self._final, self._is_stopped = epoch, is_stopped
        self._answer_all()

    def on_failed(self, error: str) -> None:
        """The run has ended without a final cut. Later ends are ignored."""
        if self._final is None and self._error is None:
            self._error = error
            self._answer_all()

    def _answer_all(self) -> None:
        for request in list(self.unanswered.values()):
            self._answer(request, self._last_answer(request))

    def _last_answer(self, request: Request) -> Reply:
        if self._error is not None:
            told = f"the run ended before the {request} was complete: {self._error}"
        elif request.kind is RequestKind.RESCALE:
            told = f"the {request} was superseded by the end of the run, with epoch {self._final}"
            return Reply(error=told, is_for_good=True, is_apart=not self._is_stopped)
        elif self._is_stopped and request.kind is RequestKind.SAVEPOINT:
            told = f"the {request} was superseded by a stop, which ended the run with epoch {self._final}"
        else:
            return Reply(self._final, is_apart=not self._is_stopped and self.recorded.get(request.id) != self._final)
        return Reply(error=told, is_for_good=True)

    def _answer(self, request: Request, answer: Reply) -> None:
        self.unanswered.pop(request.id, None)
        self.failed_tries.pop(request.id, None)
        _keep(self.answers, request.id, answer)


def _keep(last: dict[str, T], request_id: str, value: T) -> None:
    """Keep the value for this request, and forget those of the first ones if there are too many."""
    last.pop(request_id, None)
    last[request_id] = value
    if len(last) > ANSWERS_MAX:
        del last[next(iter(last))]

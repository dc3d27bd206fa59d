"""Every call of map_async has an answer, whatever it ends with, and whatever kind of function it is."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest

from backedge import BadOptionError, Collect, Flow, Items, UserFunctionError, idempotency_key, simulate
from backedge.engine.on_ray.actor.background import Answered, Background, Outlived
from backedge.engine.operators.async_calls import Answer, Call, begin, finish, in_event_loop
from backedge.graphs.ids import TaskId
from backedge.graphs.versions import AttemptOverError
from backedge.recovery.protocol.answers import Question
from tests.gates import HANG_S, wait_for
from tests.runtime.tasks import Tasks

TASK = TaskId("ask", 0)


class Asking:
    """One actor's background, and what it has answered."""

    def __init__(self) -> None:
        self.woken = threading.Semaphore(0)
        self.background = Background(None, self.woken.release)

    def __call__(self, function: Callable[[Any], Any], record: Any = 1, timeout_s: float | None = None) -> Answered:
        self.background.call(TASK, 7, Call(function, record, timeout_s))
        assert self.woken.acquire(timeout=HANG_S), "the call has no answer"
        answered = self.background.done.popleft()
        assert isinstance(answered, Answered)
        assert (answered.task, answered.call_id) == (TASK, 7)
        return answered


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking()
    yield made
    made.background.close()


async def double(record: int) -> int:
    await asyncio.sleep(0)
    return 2 * record


class Doubling:
    async def __call__(self, record: int) -> int:
        return await double(record)

    async def method(self, record: int) -> int:
        return await double(record)


class Later:
    """Something to be awaited that is no coroutine."""

    def __init__(self, record: int) -> None:
        self.record = record

    def __await__(self) -> Any:
        return double(self.record).__await__()


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda record: 2 * record,
    "async": double,
    "lambda that gives a coroutine": lambda record: double(record),
    "object with an async call": Doubling(),
    "async method": Doubling().method,
    "partial": partial(double),
    "partial of an object": partial(Doubling()),
    "awaitable": Later,
}


@pytest.mark.parametrize("timeout_s", [None, HANG_S])
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_each_kind_of_function_is_answered(asking: Asking, kind: str, timeout_s: float | None):
    assert asking(FUNCTIONS[kind], 4, timeout_s)[2:4] == (8, None)


def plainly(end: BaseException) -> Callable[[int], int]:
    def ask(record: int) -> int:
        if record == 1:
            raise end
        return record

    return ask


def awaiting(end: BaseException) -> Callable[[int], Awaitable[int]]:
    async def ask(record: int) -> int:
        await asyncio.sleep(0)
        return plainly(end)(record)

    return ask


ENDS = [asyncio.CancelledError(), SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()]


@pytest.mark.parametrize("timeout_s", [None, HANG_S])
@pytest.mark.parametrize("kind", [plainly, awaiting])
@pytest.mark.parametrize("end", ENDS, ids=repr)
def test_a_call_is_answered_whatever_it_ends_with_and_the_next_one_too(
    asking: Asking, end: Any, kind: Any, timeout_s: float | None
):
    error = asking(kind(end), 1, timeout_s).error
    assert error is not None
    assert not isinstance(error, TimeoutError)
    if not (kind is awaiting and isinstance(end, StopIteration)):  # Python makes a RuntimeError of it
        assert type(error) is type(end)
    assert asking(kind(end), 2, timeout_s)[2:4] == (2, None)


def test_one_that_cancels_itself_is_answered(asking: Asking):
    async def ask(record: int) -> int:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(HANG_S)
        return record

    assert isinstance(asking(ask).error, asyncio.CancelledError)


def test_one_that_does_not_stop_when_it_is_cancelled_has_failed_all_the_same(asking: Asking):
    go_on = asyncio.Event()
    bound: list[asyncio.AbstractEventLoop] = []

    async def ask(record: int) -> int:
        bound.append(asyncio.get_running_loop())
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return record

    answered = asking(ask, 1, 0.01)
    assert str(answered.error) == "no answer within timeout=0.01 seconds"
    bound[0].call_soon_threadsafe(go_on.set)


def test_the_next_attempt_of_a_process_uses_what_the_last_one_left_in_globals_and_whose_calls_are_cancelled():
    """A semaphore belongs to the event loop in which somebody first waits for it; a session does as well."""
    limit, never = asyncio.Semaphore(1), asyncio.Event()
    begun = threading.Semaphore(0)

    async def ask(record: int) -> int:
        begun.release()
        async with limit:
            if record < 0:
                await never.wait()
        return record

    first, second = Asking(), Asking()
    for call_id in (1, 2):
        first.background.call(TASK, call_id, Call(ask, -call_id))
        assert begun.acquire(timeout=HANG_S)
    first.background.close()
    assert second(ask, 3)[2:4] == (3, None), "the first call holds the semaphore until it is cancelled"
    assert not first.background.done
    second.background.close()


def test_a_task_of_a_user_that_exits_does_not_end_the_event_loop(asking: Asking):
    started: list[asyncio.Task[None]] = []

    async def leave() -> None:
        sys.exit(3)

    async def ask(record: int) -> int:
        started.append(asyncio.create_task(leave()))
        await asyncio.sleep(0)
        return record

    for record in (1, 2):
        assert asking(ask, record)[2:4] == (record, None)
        assert len(started) == record


def calling_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "calls"}


def test_blocking_calls_that_took_too_long_keep_their_places(asking: Asking, capsys: pytest.CaptureFixture[str]):
    go_on = threading.Event()

    def block(record: int) -> int:
        if record < 0:
            go_on.wait()
        return record

    assert asking(double)[2:4] == (2, None)  # the event loop runs
    before = calling_threads()

    def ask(background: Background, record: int) -> None:
        background.call(TASK, record, Call(block, record, 0.01, "slow", threads_max=2))

    for record in (-1, -2):
        ask(asking.background, record)
    assert all(asking.woken.acquire(timeout=HANG_S) for _ in range(2))
    answers = [asking.background.done.popleft() for _ in range(2)]
    assert all(isinstance(answer, Answered) and isinstance(answer.error, TimeoutError) for answer in answers)

    ask(asking.background, 3)
    later = Asking()  # the next attempt in this process
    ask(later.background, 4)
    assert len(calling_threads() - before) == 2
    told = capsys.readouterr().err
    assert told.count("'slow'") == 1
    assert "timeout=" in told

    go_on.set()
    for made, record in ((asking, 3), (later, 4)):
        assert made.woken.acquire(timeout=HANG_S), "its turn has come"
        answered = made.background.done.popleft()
        assert isinstance(answered, Answered)
        assert (answered.call_id, answered.result) == (record, record)
    later.background.close()


def test_an_answer_leaves_its_place_to_the_call_that_follows_it(capsys: pytest.CaptureFixture[str]):
    """Nothing has taken too long, so nothing is said of that."""
    is_over = threading.Event()

    def answer_came() -> None:
        if len(background.done) < 3:
            ask()
        else:
            is_over.set()

    def ask() -> None:
        background.call(TASK, len(background.done), Call(int, 1, threads_max=1))

    background = Background(None, answer_came)
    ask()
    assert is_over.wait(HANG_S)
    assert capsys.readouterr().err == ""
    background.close()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_answer_is_a_copy(asking: Asking, kind: str):
    cached = {"a": [1]}

    async def ask(record: int) -> dict[str, list[int]]:
        return cached

    answered = asking(ask if kind == "async" else lambda record: cached)
    assert answered.result == cached
    assert answered.result is not cached


def test_an_answer_that_does_not_pickle_is_told(asking: Asking):
    error = asking(lambda record: threading.Lock()).error
    assert "the answer is of type lock and does not pickle" in str(error)


def test_simulate_runs_what_really_awaits_with_dead_letters_too():
    bound: list[Any] = []

    async def ask(record: int) -> int:
        await asyncio.sleep(0)
        bound.append(asyncio.get_running_loop())
        if record == 3:
            raise ValueError(record)
        return record

    flow = Flow("calls")
    asked = flow.read(Items(range(10)), name="numbers").map_async(ask, on_error="dead_letter", name="ask")
    asked.write(Collect(), name="done")
    asked.dead_letters.write(Collect(), name="dead")
    result = simulate(flow, seeds=range(3))
    assert (len(result.outputs["done"]), result.outputs["dead"]) == (9, [3])
    assert len(set(map(id, bound))) == 1, "runs have one event loop, as the attempts of a process have"


def test_simulate_keeps_to_the_timeout_of_what_awaits():
    async def ask(record: int) -> int:
        await asyncio.Event().wait()
        return record

    flow = Flow("calls")
    flow.read(Items([5]), name="numbers").map_async(ask, timeout=0.01, name="ask").write(Collect(), name="done")
    with pytest.raises(UserFunctionError, match="raised TimeoutError: no answer within timeout="):
        simulate(flow, seeds=[])


def test_simulate_makes_calls_from_within_a_running_event_loop():
    flow = Flow("calls")
    flow.read(Items([1, 2]), name="numbers").map_async(double, name="ask").write(Collect(), name="done")

    async def notebook() -> list[int]:
        return sorted(simulate(flow, seeds=range(2)).outputs["done"])

    assert asyncio.run(notebook()) == [2, 4]


def test_two_callers_in_one_task_keep_their_own_timeouts():
    flow = Flow("calls")
    first = flow.read(Items([]), name="numbers").rebalance().map_async(double, timeout=5, answers="again", name="first")
    first.map_async(double, timeout=60, answers="again", name="second").rebalance().write(Collect(), name="done")
    tasks = Tasks(flow)
    home = tasks.home("first")
    tasks.feed("first", [1])
    assert home.call(1).timeout_s == 5
    home.on_answer(1, 2)
    assert home.call(2).timeout_s == 60


class Client:
    """What users write around a session: opened where the calls are awaited, and closed."""

    made: ClassVar[list[Client]] = []

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.state = "new"
        self.made.append(self)

    async def on_start(self) -> None:
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        self.state = "open"

    async def __call__(self, record: int) -> int:
        assert (asyncio.get_running_loop(), self.state) == (self.loop, "open")
        return 2 * record

    async def close(self) -> None:
        await asyncio.sleep(0)
        assert (asyncio.get_running_loop(), self.state) == (self.loop, "open")
        self.state = "closed"


def through(client: Any, records: int = 6, tasks: int = 1) -> Flow:
    flow = Flow("clients")
    numbers = flow.read(Items(range(records)), name="numbers").rebalance()
    numbers.map_async(client, name="ask", parallelism=tasks).write(Collect(), name="done")
    return flow


def test_each_task_starts_and_closes_an_instance_of_a_class_in_the_event_loop():
    Client.made.clear()
    result = simulate(through(Client, tasks=2), seeds=range(4), crashes=1)
    assert sorted(result.outputs["done"]) == [0, 2, 4, 6, 8, 10]
    assert len(Client.made) > 2 * 5, "one for each task of the five runs, and more after crashes"
    assert {made.state for made in Client.made} == {"closed"}


def test_the_instances_of_a_plain_class_block_threads(asking: Asking):
    class Blocking:
        def on_start(self) -> None:
            self.factor = 2

        def __call__(self, record: int) -> int:
            return self.factor * record

    assert sorted(simulate(through(Blocking, records=2), seeds=[]).outputs["done"]) == [0, 2]


class Gated:
    """Is open until it is closed; its calls wait for a gate."""

    begun: ClassVar[threading.Event]
    gate: ClassVar[asyncio.Event]
    state: ClassVar[str]

    async def on_start(self) -> None:
        Gated.begun, Gated.gate, Gated.state = threading.Event(), asyncio.Event(), "open"

    async def ask(self, record: int) -> str:
        self.begun.set()
        await self.gate.wait()
        return self.state

    async def close(self) -> None:
        Gated.state = "closed"

    @staticmethod
    async def open_gate() -> None:
        Gated.gate.set()


class Awaits(Gated):
    async def __call__(self, record: int) -> str:
        return await self.ask(record)


class ReturnsAwaitable(Gated):
    def __call__(self, record: int) -> Awaitable[str]:
        return self.ask(record)


@pytest.mark.parametrize("client", [Awaits, ReturnsAwaitable])
def test_an_instance_is_closed_when_calls_that_outlive_its_task_have_ended(client: type[Gated]):
    tasks = Tasks(through(client))
    tasks.feed("ask", [1])
    home = tasks.home("ask")
    call = home.call(home.unanswered[0])

    async def ask() -> Answer:
        return await finish(begin(call), call)

    answering = in_event_loop(ask())
    assert Gated.begun.wait(HANG_S)
    home.close()
    in_event_loop(Gated.open_gate()).result()
    assert answering.result() == Answer("open")
    wait_for(lambda: Gated.state == "closed", "it is closed")


@pytest.mark.parametrize("client", [Awaits, ReturnsAwaitable])
def test_a_call_that_has_not_begun_when_its_instance_is_closed_is_left_to_the_next_attempt(client: type[Gated]):
    """It has waited for the event loop, or for a thread. Its failure would be kept as the answer."""
    tasks = Tasks(through(client))
    tasks.feed("ask", [1])
    home = tasks.home("ask")
    call = home.call(home.unanswered[0])
    home.close()
    assert Gated.state == "closed"

    async def ask() -> Answer:
        return await finish(begin(call), call)

    in_event_loop(Gated.open_gate()).result()
    assert isinstance(in_event_loop(ask()).result().error, AttemptOverError)


class TakesNothing(Gated):
    async def __call__(self) -> str:
        return self.state


def test_an_instance_is_closed_although_it_could_not_even_be_called():
    tasks = Tasks(through(TakesNothing))
    tasks.feed("ask", [1])
    home = tasks.home("ask")
    call = home.call(home.unanswered[0])
    answering = begin(call)
    assert not isinstance(answering, Answer)
    assert isinstance(in_event_loop(finish(answering, call)).result().error, TypeError)
    home.close()
    assert Gated.state == "closed"


def fails_in(hook: str) -> type[Any]:
    def fail(self: Any) -> None:
        raise ConnectionError("nobody listens")

    async def call(self: Any, record: int) -> int:
        return record

    return type("Failing", (), {"__call__": call, hook: fail})


@pytest.mark.parametrize("hook", ["__init__", "on_start"])
def test_a_class_that_does_not_start_fails_the_run_by_name(hook: str):
    with pytest.raises(UserFunctionError, match=f"operator 'ask' raised ConnectionError: nobody listens in {hook}"):
        simulate(through(fails_in(hook)), seeds=[])


def test_a_class_that_does_not_close_is_told_and_the_run_is_over(capsys: pytest.CaptureFixture[str]):
    assert len(simulate(through(fails_in("close")), seeds=[]).outputs["done"]) == 6
    assert "operator 'ask' raised ConnectionError: nobody listens in close" in capsys.readouterr().err


def test_a_class_of_which_something_would_not_be_called_is_refused():
    class Uncalled:
        async def on_start(self) -> None: ...

    class Yields:
        def __call__(self, record: int) -> Any:
            yield record

    for function, what in ((Uncalled, "__call__"), (Client.__new__(Client), "on_start"), (Yields, "__call__")):
        with pytest.raises(BadOptionError, match=what):
            Flow().read(Items([1])).map_async(function, name="ask")


WHY = Call(double, 4, operator="ask", question=Question(7, "why", 0))


def ask_lasting(made: Asking, call_id: int, go_on: threading.Event, begun: threading.Semaphore | None = None) -> None:
    def ask(record: int) -> int:
        if begun is not None:
            begun.release()
        go_on.wait()
        return 2 * record

    made.background.call(TASK, call_id, WHY._replace(function=ask))


@pytest.fixture
def two_attempts() -> Iterator[tuple[Asking, Callable[[], Asking]]]:
    """One that has a call whose answer is kept, and what begins the next one in this process."""
    made = [Asking()]

    def begin_next() -> Asking:
        made.append(Asking())
        return made[-1]

    yield made[0], begin_next
    made[-1].background.close()


def test_a_call_whose_answer_is_kept_outlives_its_attempt_and_is_joined(
    two_attempts: tuple[Asking, Callable[[], Asking]],
):
    first, begin_next = two_attempts
    go_on, begun = threading.Event(), threading.Semaphore(0)
    ask_lasting(first, 1, go_on, begun)
    assert begun.acquire(timeout=HANG_S)
    first.background.close()
    second = begin_next()
    ask_lasting(second, 2, go_on, begun)
    go_on.set()
    assert second.woken.acquire(timeout=HANG_S)
    assert second.background.done.popleft() == Answered(TASK, 2, 8, None, ("ask", WHY.question))
    assert not begun.acquire(blocking=False), "it was made once"


def test_the_key_of_a_question_is_that_of_its_job_and_operator():
    first = WHY._replace(function=lambda record: idempotency_key(), job="one")
    keys = {begin(call).result for call in (first, first._replace(operator="check"), first._replace(job="two"))}
    assert len(keys) == 3 and all(key.endswith(str(WHY.question)) for key in keys)
    assert begin(first._replace(question=None)).result is None
    assert idempotency_key() is None, "the call is over"


@pytest.mark.parametrize("comes_later", [False, True], ids=["before the end", "after it"])
def test_an_answer_that_no_attempt_has_looked_at_comes_to_the_next_one(
    two_attempts: tuple[Asking, Callable[[], Asking]], comes_later: bool
):
    first, begin_next = two_attempts
    go_on, begun = threading.Event(), threading.Semaphore(0)
    ask_lasting(first, 1, go_on, begun)
    assert begun.acquire(timeout=HANG_S)
    if comes_later:
        first.background.close()
        second = begin_next()
        go_on.set()
    else:
        go_on.set()
        assert first.woken.acquire(timeout=HANG_S)
        first.background.close()
        second = begin_next()
    assert second.woken.acquire(timeout=HANG_S)
    # Not looked at yet, and the question comes.
    ask_lasting(second, 2, go_on, begun)
    assert list(second.background.done) == [
        Outlived("ask", WHY.question, 8, None),
        Answered(TASK, 2, 8, None, ("ask", WHY.question)),
    ]
    second.background.done.clear()
    assert not begun.acquire(blocking=False), "it was made once"


def test_a_failure_that_came_before_its_question_is_its_answer(two_attempts: tuple[Asking, Callable[[], Asking]]):
    """It is not kept, unless failures are set aside: the question would wait for ever."""
    first, begin_next = two_attempts
    go_on, begun = threading.Event(), threading.Event()

    def fail(record: int) -> None:
        begun.set()
        go_on.wait()
        raise ValueError("refused")

    first.background.call(TASK, 1, WHY._replace(function=fail))
    assert begun.wait(HANG_S)
    first.background.close()
    second = begin_next()
    go_on.set()
    assert second.woken.acquire(timeout=HANG_S)
    second.background.call(TASK, 2, WHY._replace(function=fail))
    outlived, answered = second.background.done
    assert isinstance(outlived, Outlived)
    assert answered == Answered(TASK, 2, None, outlived.error, ("ask", WHY.question))
    second.background.done.clear()

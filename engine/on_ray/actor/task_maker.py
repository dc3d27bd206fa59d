"""Makes the tasks of an actor, with their restored state and the runtime that they need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

from backedge.engine.batches.batch import encode
from backedge.engine.io.files.services import FileServices
from backedge.engine.on_ray.actor.broken_rule import core_of
from backedge.engine.on_ray.planned_faults import CountdownRuntime, Kill, next_by_records
from backedge.engine.on_ray.transport.control_messages import Begin
from backedge.engine.operators.runtime import TaskRuntime
from backedge.engine.operators.services import Services
from backedge.engine.state.keyed_state import KeyedState, WholeState
from backedge.engine.task.driver import TaskDriver
from backedge.engine.task.kept_inputs import Journal, KeepingRuntime, KeepingServices
from backedge.engine.task.ports import Ports
from backedge.graphs.deployment import Task
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.protocol.answers import Known
from backedge.recovery.protocol.restored import TaskRestore
from backedge.recovery.restore.plan import RestorePlan
from backedge.recovery.stores.answer_journal import AnswerJournal

TakeBack = Callable[[RestorePlan], TaskRestore]


def names_in_journal(operator: str, former: Mapping[str, str], operators: Collection[str]) -> list[str]:
    """The names under which answers of an operator may be since the restored cut: also that which it had there.

    >>> names_in_journal("ask", {"ask": "asked"}, ["ask"]), names_in_journal("ask", {"ask": "asked"}, ["ask", "asked"])
    (['ask', 'asked'], ['ask'])
    """
    had = former.get(operator, operator)
    # Another one may have that name now, and answers of its own.
    return [operator] if had in operators else [operator, had]


class _KeepingCountdown(KeepingRuntime, CountdownRuntime):
    """Keeps the inputs of a task in which a fault is due."""

    def __init__(self, journal: Journal, *arguments: Any, kill: Kill, records: int, **options: Any) -> None:
        super().__init__(journal, kill, records, *arguments, **options)


class TaskMaker(Struct, frozen=True):
    """What tasks are made with.

    `journals`: those of the tasks whose inputs are kept. `answers`: the journal of what calls have returned.
    """

    begin: Begin
    services: FileServices
    take_back: TakeBack
    journals: Mapping[TaskId, Journal]
    answers: AnswerJournal | None = None

    def own_tasks(self) -> list[Task]:
        return [task for task in self.begin.deployment.tasks.values() if task.actor == self.begin.actor]

    def make(self, task: Task, ports: Ports) -> TaskDriver:
        """Make a task; restore its state, and publish what it had prepared."""
        begin = self.begin
        plan = begin.restores.get(task.id)
        restored = None if plan is None else self.take_back(plan)
        core = core_of(begin.options.broken_rule)(task, begin.attempt, encode, restored)
        runtime = self._runtime(task)
        if restored is None:
            runtime.open(None)
        else:
            runtime.open(restored.operators, restored.base)
            try:
                runtime.commit(restored.transactions)
            except BaseException:
                runtime.close()
                raise
        if self.answers is not None:
            first = self.answers.segments.at_start(begin.begun, begin.restored)
            former: Mapping[str, str] = {} if plan is None else plan.operator_names
            runtime.load_answers(partial(self._answers_of, self.answers, former), first)
        return TaskDriver(core, runtime, ports, begin.options.limits, begin.deployment.plan)

    def _answers_of(
        self, journal: AnswerJournal, former: Mapping[str, str], operator: str
    ) -> Iterator[tuple[Epoch, Known]]:
        for name in names_in_journal(operator, former, self.begin.deployment.plan.operators):
            yield from journal.read(name, self.begin.restored)

    def _runtime(self, task: Task) -> TaskRuntime:
        begin, journal = self.begin, self.journals.get(task.id)
        services: Services = self.services
        fault = next_by_records(begin.kills, task, begin.processed.get(task.id, 0))
        make = TaskRuntime if fault is None else partial(CountdownRuntime, *fault)
        if journal is not None:
            services = KeepingServices(services, journal)
            make = partial(KeepingRuntime, journal)
            if fault is not None:
                make = partial(_KeepingCountdown, journal, kill=fault[0], records=fault[1])
        # Where no snapshots are kept, no key need be noted.
        keyed_state = WholeState if begin.options.root is None else KeyedState
        return make(task, begin.deployment, services, seed=begin.options.seed, keyed_state=keyed_state)

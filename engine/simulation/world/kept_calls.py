"""The calls of a simulated job whose answers are kept: its journal, and what may not be asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from backedge.engine.operators.async_calls import Call
from backedge.engine.operators.runtime import KeptAnswer
from backedge.engine.run.ports import Placed
from backedge.engine.simulation.world.calling import Calls
from backedge.engine.simulation.world.host import Host
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.graphs.routing import groups_of_task, key_group
from backedge.recovery.protocol.answers import Known, Question, Segments
from backedge.recovery.protocol.protocol_errors import ProtocolError

Asked = tuple[str, Question]
"""An operator, and a question of it."""

NOWHERE: Any = object()


class Outlived(NamedTuple):
    """A call that goes on in a process although the attempt that made it is over."""

    actor: str
    asked: Asked
    call: Call


def _asked(kept: KeptAnswer) -> Asked:
    return kept.operator, kept.known.question


class KeptCalls(Calls):
    """Makes the calls of one job, and raises if one is made whose answer must be known.

    - hosts: the processes of the attempt. parallelism: the numbers of its tasks. restored: the epoch of the cut that it
      restores, 0 for none. begun: the first epoch of its own.
    - journal: the answers that are durable. outlived: calls that go on although their attempt is over.
    - known: the questions that may not be asked again, each with the process that knows the answer; None: the journal
      has it. called: the questions for which a call was made.
    """

    def __init__(self, hosts: Mapping[TaskId, Host], segments: Segments, counts: Counter[str]) -> None:
        super().__init__()
        self.hosts = hosts
        self.segments = segments
        self.counts = counts
        self.parallelism: Mapping[str, int] = {}
        self.restored = self.begun = Epoch(0)
        self.journal: list[KeptAnswer] = []
        self.outlived: list[Outlived] = []
        self.known: dict[Asked, Host | None] = {}
        self.called: set[Asked] = set()

    def begin_attempt(self, attempt: Attempt, placed: Placed, restored: Epoch) -> None:
        """The tasks of an earlier attempt stop: what they know is written, and their calls go on."""
        for host in self.hosts.values():
            if host.makes_calls and host.attempt < attempt:
                self.known |= {_asked(kept): None for kept in host.unwritten}
                host.write_answers()
                runtime, actor = host.runtime, host.core.task.actor
                asked = [call for call in host.driver.calls.running if runtime.question(call) is not None]
                self.outlived += [Outlived(actor, host.question(call), runtime.call(call)) for call in asked]
                host.makes_calls, host.offers = False, None
        self.parallelism, self.restored, self.begun = placed.deployment.parallelism, restored, placed.begun

    def read_journal(self, host: Host) -> None:
        """Have a restored task read the answers since its cut."""
        groups = self._groups_of(host)

        def read(operator: str) -> list[tuple[Epoch, Known]]:
            found = [kept for kept in self.journal if kept.operator == operator]
            mine = [kept for kept in found if key_group(kept.known.question.key) in groups]
            # A cut that is later than the restored one, and kept, has these, too.
            self.known |= {_asked(kept): None for kept in mine if kept.segment >= self.begun}
            read = [(kept.segment, kept.known) for kept in mine if self.segments.are_read(kept.segment, self.restored)]
            self.counts["answers_read"] += len(read)
            return read

        host.runtime.load_answers(read, self.segments.at_start(self.begun, self.restored))

    def begin(self, host: Host, call_id: int) -> bool:
        """Whether a call is made; else it joins one that goes on in the process. No finished call may be made again."""
        asked = operator, question = host.question(call_id)
        mine = next((one for one in self.outlived if (one.actor, one.asked) == (host.core.task.actor, asked)), None)
        if mine is not None:
            self.outlived.remove(mine)
            self.counts["calls_joined"] += 1
            return False
        known = self.known.get(asked, NOWHERE)
        if known is None or (known is not NOWHERE and self.hosts.get(known.id) is known):
            raise ProtocolError(f"operator {operator!r} asks question {question} again, which was answered")
        self.counts["calls" if asked not in self.called else "calls_again"] += 1
        self.called.add(asked)
        return True

    def on_answers(self, host: Host, answers: Sequence[KeptAnswer]) -> None:
        """A process has answers, which are not durable yet."""
        if self._is_live(host):
            self.known |= {_asked(kept): host for kept in answers if self.known.get(_asked(kept), host) is not None}

    def write(self, host: Host, answers: Sequence[KeptAnswer]) -> None:
        """Answers become durable. What a process writes that was left behind is found by later attempts only."""
        self.journal += answers
        if self._is_live(host):
            self.known |= {_asked(kept): None for kept in answers}
        else:
            self.counts["answers_late"] += len(answers)

    def on_sent(self, host: Host, call_id: int) -> None:
        """An answer is used by the question that it was asked for."""
        asked = host.question(call_id)
        if asked not in self.called:
            raise ProtocolError(f"operator {asked[0]!r} uses an answer for question {asked[1]}, and no call asked it")
        if self._is_live(host):
            self.known[asked] = None

    def finish_outlived(self, index: int) -> None:
        """A call is answered that no question has joined: the task of its question in this process keeps the answer."""
        actor, (operator, question), call = self.outlived.pop(index)
        answer = self.answer(call)
        for host in self.hosts.values():
            if host.core.task.actor == actor and host.makes_calls:
                host.driver.calls.on_outlived(operator, question, *answer)
                if operator in host.core.task.operators and key_group(question.key) in self._groups_of(host):
                    self.known.setdefault((operator, question), host)
                    self.counts["answers_spare"] += 1

    def remove_segments(self, oldest: Epoch) -> None:
        """Remove what no cut from this one on needs."""
        count = len(self.journal)
        self.journal = [kept for kept in self.journal if not self.segments.are_removed(kept.segment, oldest)]
        self.counts["answers_removed"] += count - len(self.journal)

    def _is_live(self, host: Host) -> bool:
        return self.hosts.get(host.id) is host and host.makes_calls

    def _groups_of(self, host: Host) -> range:
        return groups_of_task(host.id.index, self.parallelism[host.id.name])

"""The reactions to round markers: the steps of one task through the rounds (rules in `recovery/protocol/rounds.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backedge.graphs.deployment import Task
from backedge.graphs.ids import Epoch, TaskId
from backedge.recovery.protocol.alignment import Alignment
from backedge.recovery.protocol.channels import Outlet
from backedge.recovery.protocol.effects import Effect, RunDecide, RunReleaseResult, RunReleaseRound, RunRoundEnd, Send
from backedge.recovery.protocol.messages import Marker, Mode, Path, encode_marker
from backedge.recovery.protocol.protocol_errors import ProtocolError
from backedge.recovery.protocol.rounds import Phase, Rounds


class Iteration:
    """Sends markers and requests decisions; `is_over` says that this head must end."""

    def __init__(self, task: Task, rounds: Rounds, outlets: Iterable[Outlet], alignment: Alignment) -> None:
        self.task = task
        self.rounds = rounds
        self.outlets = tuple(outlets)
        self.alignment = alignment
        self.running: Path | None = None
        self.awaited: type[Effect] | None = None
        self.requested_cut: Epoch | None = None
        self.is_over = False

    def advance(self, busy: bool) -> list[Effect]:
        """Continue after a marker was given, a channel has closed, or a cut was taken.

        A round waits for the timers and calls that its records have started: `busy`.
        """
        rounds = self.rounds
        if self.running is not None or self.is_over or (busy and not rounds.is_head):
            return []
        if rounds.start_is_over():
            if rounds.depth == 1:
                return self._begin()
            self.is_over = True
            return []
        path = rounds.complete_path()
        if path is None:
            return []
        if not rounds.is_head:
            return self._run(path, RunRoundEnd(path, self._fed_iteration(path)))
        if rounds.phase is Phase.START:
            return self._begin() if len(path) == rounds.depth - 1 else self._leave(path)
        if rounds.phase is Phase.RETURN:
            return self._run(path, RunReleaseResult(self._fed_iteration(rounds.leaving)))
        return [] if self._must_cut_first() else self._run(path, RunDecide(path, dict(rounds.contributions)))

    def on_round_hooks_ran(self, contribution: Any | None) -> list[Effect]:
        """The hooks have run and their output is sent: send the marker on."""
        path = self._finish_running(RunRoundEnd)
        marker = self.rounds.marker(path, self._own(contribution))
        self.rounds.advance(path)
        return self._mark(marker, len(path), self.rounds.depth)

    def on_decided(self, another: bool) -> list[Effect]:
        """Every head has made the same decision: another round, or the end."""
        path = self._finish_running(RunDecide)
        if another:
            return self._run(path, RunReleaseRound())
        if self.rounds.depth == 1:
            return self._run(path, RunReleaseResult(None))
        return self._leave(path[:-1])

    def on_round_released(self) -> list[Effect]:
        """What was gathered has been sent into the body: its round has begun, and the marker follows."""
        path = self._finish_running(RunReleaseRound)
        self.rounds.advance(path)
        return self._begin()

    def on_result_released(self, contribution: Any | None) -> list[Effect]:
        """The result has left; the marker of the enclosing level follows, or END."""
        self._finish_running(RunReleaseResult)
        rounds = self.rounds
        if rounds.depth == 1:
            self.is_over = True
            return []
        marker = rounds.marker(rounds.leaving, self._own(contribution))
        rounds.advance(rounds.leaving)
        rounds.phase = Phase.START
        return self._mark(marker, len(marker.path), rounds.depth - 1)

    def takes_request(self, epoch: Epoch) -> bool:
        """Whether a cut between two rounds is requested by marker here: at outermost heads, once they are in rounds.

        The first of them adds it to its next marker; the others see it when that marker returns.
        """
        if not (self.rounds.is_head and self.rounds.depth == 1 and self.rounds.phase is not Phase.START):
            return False
        if self.task.id.index == 0:
            self.requested_cut = epoch
        return True

    def _begin(self) -> list[Effect]:
        marker = Marker(self.rounds.current, (), self.requested_cut)
        self.requested_cut = None
        self.rounds.begin_round()
        return self._mark(marker, self.rounds.depth, self.rounds.depth)

    def _leave(self, path: Path) -> list[Effect]:
        self.rounds.leave(path)
        return self._mark(self.rounds.marker(path), self.rounds.depth, self.rounds.depth)

    def _must_cut_first(self) -> bool:
        rounds = self.rounds
        if rounds.cut_after is None or self.alignment.is_over(rounds.cut_after, Mode.BETWEEN_ROUNDS):
            return False
        rounds.phase = Phase.CUT
        self.alignment.trigger(rounds.cut_after, Mode.BETWEEN_ROUNDS)
        return True

    def _mark(self, marker: Marker, depth_min: int, depth_max: int) -> list[Effect]:
        payload = encode_marker(marker)
        return [
            Send(outlet.id, outlet.number(payload, marker))
            for outlet in self.outlets
            if depth_min <= outlet.depth <= depth_max
        ]

    def _own(self, contribution: Any | None) -> dict[TaskId, Any]:
        return {} if contribution is None else {self.task.id: contribution}

    def _fed_iteration(self, path: Path) -> str | None:
        for outlet in self.outlets:
            if outlet.is_back and outlet.depth == len(path):
                return outlet.loop
        return None

    def _run(self, path: Path, effect: Effect) -> list[Effect]:
        self.running, self.awaited = path, type(effect)
        return [effect]

    def _finish_running(self, kind: type[Effect]) -> Path:
        path = self.running
        if path is None or self.awaited is not kind:
            running = "no step of a round" if self.awaited is None else self.awaited.__name__
            raise ProtocolError(f"task {self.task.id}: {running} was running, not {kind.__name__}")
        self.running, self.awaited = None, None
        return path

"""A supervisor that is taken for dead and only sleeps, as one whose process is stopped or whose host hangs.

Its successor begins meanwhile. When it wakes up it goes on with what it knew: it takes the step in the store that was
due, hears what its tasks had reported, gives them orders, and removes what it believes to be dead. It shares only the
store with its successor, so the chain alone can fence it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from backedge.engine.run_driver import RunDriver
from backedge.engine.run_ports import Placed, RunObserver, RunPorts
from backedge.engine.simulation.record import Aborted
from backedge.engine.simulation.simulated_store import SimulatedCut
from backedge.graphs.ids import Attempt
from backedge.recovery.orders import Abort, Compact, Complete, StartTasks, TellToEnd, Trigger
from backedge.recovery.requests import Sizes

if TYPE_CHECKING:
    from backedge.engine.simulation.world_ports import WorldPorts


class SleepingSupervisor(RunObserver[SimulatedCut]):
    """The driver of a supervisor that sleeps, and the actors of its attempt: those that are still there.

    - is_awake: whether it has woken up.
    """

    def __init__(self, world: WorldPorts, driver: RunDriver) -> None:
        self.world = world
        self.driver = driver
        self.is_awake = False
        driver.ports = RunPorts(world, world, self, world, world, self)

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that it leads, if that runs."""
        return None if self.driver.coordinator is None else self.driver.coordinator.attempt

    def wake(self, *, has_lost_tasks: bool) -> None:
        """Go on. It may find that processes of its tasks have died meanwhile."""
        self.is_awake = True
        if has_lost_tasks:
            self.driver.on_failure(self.driver.supervisor.attempt, "a process died")

    def place(self, cut: SimulatedCut | None, sizes: Sizes) -> Placed:
        """Place the tasks of an attempt that it has claimed before its successor."""
        return self.world.place(cut, sizes)

    def restore(self, attempt: Attempt, placed: Placed, cut: SimulatedCut | None) -> None:
        """Its processes take so long to start that none is there before it is fenced."""

    def start(self, order: StartTasks) -> None:
        """No task of its attempt starts: the processes are not there."""

    def tell(self, order: Trigger | Abort | TellToEnd | Complete) -> None:
        """Send an order to its task, if that is still of its attempt."""
        is_abort = isinstance(order, Abort)
        if is_abort:
            self.world.note(Aborted(self.driver.supervisor.attempt, order.epoch))
        host = self.world.hosts.get(order.task)
        if host is not None and host.attempt == self.attempt:
            self.world.give(host, order, is_abort=is_abort)

    def compact(self, order: Compact) -> None:
        """Compact files when the schedule says so."""
        self.world.compactions.append((self.driver.supervisor.attempt, order))

    def stop(self) -> None:
        """Its tasks may go on, as zombies do."""

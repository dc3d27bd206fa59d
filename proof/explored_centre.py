"""The centre of a partitioned world: coordinator, supervisor, the chain of the job, and global events.

Like a place, a centre is a number, and the consequence of an event in it is computed once. Events that read or remove
files get the files as an argument, because these belong to the places.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from backedge.engine.simulation.world.host import Host
from backedge.engine.simulation.world.simulated_store import SimulatedStore
from backedge.engine.simulation.world.world import Happening, World
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import Cut
from backedge.recovery.protocol.effects import Decline
from backedge.recovery.protocol.orders import FileId, Manifest, Numbered, Order
from backedge.recovery.protocol.protocol_errors import ProtocolError
from backedge.recovery.protocol.supervisor import Stage
from proof.cloning import dump, essence, load
from proof.explored_places import Numbers, Places
from proof.tiny_graphs import TinyGraph

READS_FILES = frozenset(("append", "restore", "crash", "forget"))


class Desk:
    """Stands for the process of a task: it stores the orders of the centre."""

    def __init__(self) -> None:
        self.offers = None
        self.orders: deque[Order] = deque()
        self.aborts: deque[Order] = deque()


class Centre:
    """The properties of a centre that the walk needs.

    - is_fresh: there is a complete cut whose files still exist, so a crash leads to a new state.
    - may_crash: a crash would take something.
    - may_begin: an epoch may begin.
    - is_calm: all tasks run, and no probe is under way.
    """

    def __init__(self, content: bytes, world: World) -> None:
        coordinator = world.coordinator
        self.content = content
        self.essence = 0
        self.is_over = world.is_over
        self.is_finished = world.is_finished
        self.failure = world.failure
        self.has_append = world.driver.step is not None
        self.unrestored: tuple[TaskId, ...] = tuple(world.unrestored)
        self.may_crash = bool(world.hosts or world.unrestored)
        self.is_fresh = any(isinstance(entry, Manifest) and entry.files for _, entry in world.store.chain)
        self.is_running = world.supervisor.stage is Stage.RUNNING
        self.has_coordinator = coordinator is not None
        self.final: Epoch | None = None if coordinator is None else coordinator.final
        self.may_begin = False
        self.is_calm = self.is_running and coordinator is not None
        self.open: tuple[Epoch, ...] = ()
        if coordinator is not None:
            self.open = tuple(epoch for epoch, cut in coordinator.open.items() if not cut.mode.is_probe)
            self.may_begin = coordinator.final is None and not coordinator.is_exclusive_open
            self.is_calm = self.is_running and len(self.open) == len(coordinator.open)


class Ruling(NamedTuple):
    """The consequence of an event in the centre: its new number, orders by task number, the places where a process
    began, the new files (None: unchanged), and the completed cut; or what went wrong.
    """

    centre: int
    orders: tuple[tuple[int, Order], ...] = ()
    began: tuple[tuple[int, int], ...] = ()
    files: tuple[int, ...] | None = None
    has_crashed: bool = False
    cut: Cut | None = None
    error: Exception | None = None


class Centres:
    """All centres encountered, and the consequences of events in them."""

    def __init__(self, graph: TinyGraph, places: Places) -> None:
        self.graph = graph
        self.places = places
        self.met: list[Centre] = []
        self._numbers = Numbers()
        self._essence_numbers = Numbers()
        self._rulings: dict[Any, Ruling] = {}

    def number(self, world: World) -> int:
        """The number of the centre of this world, which contains nothing else."""
        content = dump(world)
        number = self._numbers.of(content)
        if number == len(self.met):
            centre = Centre(content, world)
            centre.essence = self._essence_numbers.of(essence(_parts_of(world)))
            self.met.append(centre)
        return number

    def act(self, centre: int, event: Happening, places: list[int]) -> Ruling:
        """The consequence of an event in the centre."""
        key: Any = (centre, event)
        if event[0] in READS_FILES:
            key = (centre, event, *(self.places.met[place].files for place in places))
        ruling = self._rulings.get(key)
        if ruling is None:
            try:
                ruling = self._work_out(centre, event, places)
            except (ProtocolError, LookupError, ValueError) as error:
                ruling = Ruling(centre, error=error)
            self._rulings[key] = ruling
        return ruling

    def _work_out(self, centre: int, event: Happening, places: list[int]) -> Ruling:
        world = cast("World", load(self.met[centre].content))
        tasks, reads_files = self.places.tasks, event[0] in READS_FILES
        if reads_files:
            world.store.files = {n: f for place in places for n, f in self.places.files[self.places.met[place].files]}
        self._apply(world, event)
        # What may happen at any later time happens at once; seeded schedules delay it.
        while world.removals:
            world.apply(("remove", 0))
        while world.unrestored and self.graph.bounds["crashes"] < 2:
            world.apply(("restore", next(iter(world.unrestored))))
        files = [tuple((n, f) for n, f in world.store.files.items() if n[2] == task) for task in tasks]
        world.store.files = {}
        cuts, world.record.cuts = list(world.record.cuts.values()), {}
        began = tuple(
            (number, self.places.number(world.hosts[task], files[number]))
            for number, task in enumerate(tasks)
            if isinstance(world.hosts.get(task), Host)
        )
        orders = tuple(
            (number, order)
            for number, task in enumerate(tasks)
            if isinstance(world.hosts.get(task), Desk)
            for order in (*world.hosts[task].aborts, *world.hosts[task].orders)
        )
        world.hosts.update((task, cast("Host", Desk())) for task in list(world.hosts))
        after = self.number(world)
        changed = tuple(map(self.places.files_number, files)) if event[0] in ("crash", "forget") else None
        return Ruling(after, orders, began, changed, event[0] == "crash", cuts[0] if cuts else None)

    def _apply(self, world: World, event: Happening) -> None:
        coordinator = cast("Any", world.coordinator)
        match event:
            case ("crash",):
                world.apply(("crash", (*world.hosts, *world.unrestored)))
                _forget_incomplete(world.store)
                world.apply(("notice",))
            case ("forget",):
                _forget_complete(world.store, world.supervisor.attempt, may_be_base=self.graph.files_max > 1)
                kept = world.supervisor.chain.kept
                world.supervisor.chain.kept = {e: cut._replace(transactions=frozenset()) for e, cut in kept.items()}
            case ("epoch",):
                world.begin_epoch(self.graph.mode)
            case ("abort_epoch", epoch):
                task = self.places.tasks[0]
                decline = Decline(epoch, "explored")
                world.obey(coordinator.on_report(task, coordinator.attempt, decline, world.now_ms))
            case ("tick",) | ("early_tick",):
                world.obey(coordinator.on_tick(world.now_ms))
            case ("report", number):
                world.reports = [cast("Any", self.places.reports[number])]
                world.apply(("report", 0))
            case _:
                world.apply(event)


def _parts_of(world: World) -> tuple[Any, ...]:
    return (
        set(world.hosts),
        world.unrestored,
        (world.driver.step, world.store.chain),
        world.supervisor,
        (world.is_finished, world.failure),
    )


def _forget_incomplete(store: SimulatedStore) -> None:
    """Remove the files that no manifest names."""
    named = store.named()
    store.files = {name: file for name, file in store.files.items() if name in named}


def _forget_complete(store: SimulatedStore, attempt: Attempt, *, may_be_base: bool) -> None:
    """Remove what no restore will need, because none will come before the next cut of this attempt.

    If cuts may be bases, the files with the keyed state of the latest one stay, and of those that it keeps.
    """
    named = {name for name in store.named() if name.epoch is not None}
    listed = _listed(store) if may_be_base else frozenset[FileId]()
    store.files = {n: f for n, f in store.files.items() if n in listed or (n.attempt == attempt and n not in named)}
    forgotten: dict[str, Any] = {"files": {}, "transactions": {}, **({} if may_be_base else {"states": {}})}
    store.history = [
        Numbered(n, replace(e, **forgotten)) if isinstance(e, Manifest) else Numbered(n, e) for n, e in store.history
    ]


def _listed(store: SimulatedStore) -> frozenset[FileId]:
    """The files with the keyed state of the cuts that the latest one keeps."""
    manifests = store.manifests()
    kept = manifests[-1].kept
    return frozenset(
        FileId(file.attempt, file.epoch, task)
        for manifest in manifests
        if kept is None or manifest.epoch in kept
        for task, files in manifest.states.items()
        for file in files
    )

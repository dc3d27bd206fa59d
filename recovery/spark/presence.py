"""Statements 4 and 5, as far as manifest, chain and graph alone tell them. They are small: no Spark is needed.

Everything that there should be is computed anew from the graph that the job keeps, and compared with what the manifest
says there is. Whether the files hold what the manifest says is for those who read them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from graphs.ids import TaskId
from recovery.orders import Manifest
from recovery.spark.verdict import Facts, Finding, finding
from recovery.stores.names import Parts, Table, attempt_folder, parts_of, table_folder, task_file

TABLES_OF_OPERATORS: tuple[Table, ...] = ("state", "transactions")


@dataclass(frozen=True)
class Described:
    """A cut as three documents tell it: the entry of the chain, the manifest, and the graph."""

    entry: Manifest
    manifest: Facts
    graph: Facts

    @property
    def epoch(self) -> int:
        """Its number."""
        return int(self.entry.epoch)

    @property
    def tasks(self) -> dict[TaskId, Facts]:
        """What the manifest says of each task."""
        return {_task(task): task for task in self.manifest["tasks"]}

    @property
    def placed(self) -> dict[TaskId, Facts]:
        """The tasks that ran."""
        return {_task(task): task for task in self.manifest["deployment"]["tasks"]}


def check_cover(cut: Described) -> Iterator[Finding]:
    """4: without the back edges nothing goes round. What nothing enters is taken away until nothing is left."""
    into = dict.fromkeys((operator["name"] for operator in cut.graph["operators"]), 0)
    forward = [edge for edge in cut.graph["edges"] if edge["loop"] is None]
    for edge in forward:
        into[edge["receiver"]] += 1
    free = [name for name, count in into.items() if not count]
    while free:
        name = free.pop()
        del into[name]
        for edge in forward:
            if edge["sender"] == name:
                into[edge["receiver"]] -= 1
                if not into[edge["receiver"]]:
                    free.append(edge["receiver"])
    if into:
        yield finding(4, f"a cycle without a named back edge goes through {', '.join(sorted(into))}", cut.epoch)


def check_presence(cut: Described) -> Iterator[Finding]:
    """5: every task, operator, channel and file once, of one epoch, one attempt and one graph."""
    yield from _check_deployment(cut)
    yield from _check_tasks(cut)
    yield from _check_channels(cut)
    yield from _check_files(cut)


def _check_deployment(cut: Described) -> Iterator[Finding]:
    operators = {operator["name"]: operator["kind"] for operator in cut.graph["operators"]}
    parallelism: Mapping[str, int] = cut.manifest["parallelism"]
    if set(parallelism) != set(operators):
        yield finding(5, f"the cut is of operators {_names(parallelism)}, the graph of {_names(operators)}", cut.epoch)
    ran = Counter((name, id.index) for id, task in cut.placed.items() for name in task["operators"])
    wanted = {(name, index) for name, width in parallelism.items() for index in range(width)}
    for name, index in sorted(wanted ^ ran.keys()):
        what = "is in no task" if (name, index) in wanted else "is in a task, and the graph has no such"
        yield finding(5, f"instance {index} of operator {name!r} {what}", cut.epoch)
    for (name, index), times in ran.items():
        if times > 1:
            yield finding(5, f"instance {index} of operator {name!r} is in {times} tasks", cut.epoch)


def _check_tasks(cut: Described) -> Iterator[Finding]:
    kinds = {operator["name"]: operator["kind"] for operator in cut.graph["operators"]}
    times = Counter(map(_task, cut.manifest["tasks"]))
    for id in sorted(cut.placed.keys() | times.keys() | cut.entry.files.keys()):
        told = [times[id] == 1, id in cut.placed, id in cut.entry.files]
        if not all(told):
            missing = ("the manifest", "the deployment", "the chain")
            where = " and ".join(name for name, there in zip(missing, told, strict=True) if not there)
            yield finding(5, f"the task is not there once in {where}", cut.epoch, task=str(id))
    for id, task in cut.tasks.items():
        for story in _task_stories(cut, id, task, kinds):
            yield finding(5, story, cut.epoch, task=str(id))


def _task_stories(cut: Described, id: TaskId, task: Facts, kinds: Mapping[str, str]) -> Iterator[str]:
    if task["attempt"] != cut.entry.attempt:
        yield f"its snapshot is of attempt {task['attempt']}, the cut of attempt {cut.entry.attempt}"
    # A task that has ended stands in every later cut with its last state, which belongs to no epoch.
    if not task["ended"] and (task["epoch"], task["filed"]) != (cut.epoch, cut.epoch):
        yield f"its snapshot is of epoch {task['epoch']}, filed under {task['filed']}"
    if task["ended"] and task["filed"] is not None:
        yield f"it has ended, and its last state is filed under epoch {task['filed']}"
    if id in cut.entry.files and task["filed"] != cut.entry.files[id]:
        yield f"it is filed under epoch {task['filed']}, and the chain says {cut.entry.files[id]}"
    if tuple(task["transactions"]) != cut.entry.transactions.get(id, ()):
        listed = list(cut.entry.transactions.get(id, ()))
        yield f"its transactions are {task['transactions']}, and the chain lists {listed}"
    found = {facts["name"]: facts["kind"] for facts in task["operators"]}
    ran: list[str] = cut.placed[id]["operators"] if id in cut.placed else []
    if len(found) != len(task["operators"]) or set(found) != set(ran):
        yield f"its snapshot is of operators {_names(found)}, and it runs {_names(ran)}"
    for name, kind in found.items():
        if kind != kinds.get(name):
            yield f"operator {name!r} is of kind {kind!r}, in the graph of kind {kinds.get(name)!r}"
    for facts in task["operators"]:
        if facts["kind"] == "source" and facts["records"] and not facts["splits"]:
            yield f"source {facts['name']!r} has sent {facts['records']} records, and of no split"


# -- channels ----------------------------------------------------------------------------------------------------


def _check_channels(cut: Described) -> Iterator[Finding]:
    declared = {_ends(channel): channel for channel in cut.manifest["deployment"]["channels"]}
    if len(declared) != len(cut.manifest["deployment"]["channels"]):
        yield finding(5, "the deployment names a channel twice", cut.epoch)
    actors = {id: task["actor"] for id, task in cut.placed.items()}
    wanted = dict(_channels_of_graph(cut))
    for ends in sorted(wanted.keys() ^ declared.keys()):
        what = "is missing from the deployment" if ends in wanted else "is in no edge of the graph"
        yield finding(5, f"the channel {what}", cut.epoch, channel=channel_name(*ends))
    for ends in sorted(wanted.keys() & declared.keys()):
        told, (_, *tasks) = declared[ends], ends
        sender, receiver = TaskId(tasks[0], tasks[1]), TaskId(tasks[2], tasks[3])
        within = actors.get(sender) is not None and actors.get(sender) == actors.get(receiver)
        if (told["is_back"], told["within_actor"]) != (wanted[ends], within):
            story = f"the deployment says is_back={told['is_back']}, within_actor={told['within_actor']}; graph and "
            story += f"actors say {wanted[ends]} and {within}"
            yield finding(5, story, cut.epoch, channel=channel_name(*ends))


def _channels_of_graph(cut: Described) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """The ends of every channel that the edges give, and whether it is a back edge."""
    home = {name: id.name for id, task in cut.placed.items() for name in task["operators"]}
    width: Mapping[str, int] = cut.manifest["parallelism"]
    for edge in cut.graph["edges"]:
        sender, receiver = edge["sender"], edge["receiver"]
        if sender not in home or receiver not in home:
            continue
        if home[receiver] != receiver and home[sender] == home[receiver]:
            continue  # an edge within a chain is a call, not a channel
        # Markers of rounds go from every task that feeds an iteration back to every task of its head.
        is_straight = edge["routing"] == "forward" and edge["loop"] != receiver and width[sender] == width[receiver]
        for index in range(width[sender]):
            for target in (index,) if is_straight else range(width[receiver]):
                yield (edge["name"], home[sender], index, home[receiver], target), edge["loop"] is not None


def channel_name(edge: str, sender: str, sender_index: int, receiver: str, receiver_index: int) -> str:
    """A channel as people read it.

    >>> channel_name("a.out->b.in", "a", 0, "b", 1)
    'a.out->b.in a/0->b/1'
    """
    return f"{edge} {sender}/{sender_index}->{receiver}/{receiver_index}"


# -- files -------------------------------------------------------------------------------------------------------


def _check_files(cut: Described) -> Iterator[Finding]:
    times = Counter(file["name"] for task in cut.manifest["tasks"] for file in task["files"])
    for name, count in times.items():
        if count > 1:
            yield finding(5, f"the file {name} is named {count} times", cut.epoch)
    for id, task in cut.tasks.items():
        there = set[Parts]()
        for file in task["files"]:
            table, parts = _table_of(file["name"]), parts_of(file["name"])
            if parts != (*attempt_folder(cut.entry.attempt, task["filed"]), *table, task_file(id)):
                yield finding(5, f"its file {file['name']} belongs to another cut or task", cut.epoch, task=str(id))
            elif table not in _files_of(task):
                yield finding(5, f"its file {file['name']} is of no table of it", cut.epoch, task=str(id))
            there.add(table)
        for table in sorted(_needed(task) - there):
            yield finding(5, f"its file of {', '.join(table)} is missing", cut.epoch, task=str(id))


def _files_of(task: Facts) -> set[Parts]:
    """Folders of tables that may hold a file of the task."""
    names = [facts["name"] for facts in task["operators"]]
    of_operators = {table_folder(table, name) for table in TABLES_OF_OPERATORS for name in names}
    return of_operators | _needed(task) | {table_folder("rounds", None)}


def _needed(task: Facts) -> set[Parts]:
    """Folders of tables that hold a file of the task, by what else the manifest tells of it."""
    needed = {table_folder("log", log["loop"]) for log in task["logs"] if log["batches"]}
    for facts in task["operators"]:
        if facts["kind"] == "iterate":
            needed.add(table_folder("rounds", None))
    return needed


def has_readable_files(cut: Described) -> bool:
    """Whether every file's name says which table it is of, so that it can be read at all."""
    tasks = cut.manifest["tasks"]
    return all(_table_of(file["name"]) in _files_of(task) for task in tasks for file in task["files"])


def _table_of(name: str) -> Parts:
    """The folders of the table that a file is in; none if its name says none."""
    return (parts_of(name) or ())[2:-1]


def _task(task: Facts) -> TaskId:
    return TaskId(task["task"], task["index"])


def _ends(channel: Facts) -> tuple[Any, ...]:
    return tuple(channel[name] for name in ("edge", "sender", "sender_index", "receiver", "receiver_index"))


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"

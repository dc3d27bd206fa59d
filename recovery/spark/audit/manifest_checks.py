"""Statements 4 and 5, as far as manifest, chain and graph can prove them. These are small; Spark is not needed.

The expected tasks, channels and files are recomputed from the stored graph and compared with the manifest. Whether
the files hold what the manifest says is checked elsewhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from backedge.graphs.deployment import shared_actor
from backedge.graphs.describing import channels_in, edges_in, hash_of_description
from backedge.graphs.discovery import FindSplits
from backedge.graphs.ids import TaskId
from backedge.graphs.plan import loops_of_edges
from backedge.graphs.routing import KEY_GROUPS
from backedge.recovery.protocol.orders import Manifest
from backedge.recovery.spark.cut_tables.manifest_tables import ends_in, layered_files, shared_files
from backedge.recovery.spark.report.verdict import Facts, Finding, finding
from backedge.recovery.stores.file_contents import said_of
from backedge.recovery.stores.links import Link
from backedge.recovery.stores.names import (
    KEYED,
    Parts,
    attempt_folder,
    is_of_constant,
    parts_of,
    table_folder,
    table_of,
    task_file,
)
from backedge.recovery.stores.shapes import converted
from backedge.recovery.stores.task_files import TaskFiles

EXPANDED_MAX = 10_000
"""Surplus instances or channels up to which each is reported by itself."""


@dataclass(frozen=True)
class CutDocuments:
    """The three documents of a cut: its entry in the chain, its manifest, and its graph.

    `foreign` maps files that no store creates, such as links, to a description of the fault. `bases` are the cuts since
    which its state may hold what changed; None if the chain does not tell any more.
    """

    link: Link
    entry: Manifest
    manifest: Facts
    graph: Facts
    foreign: Mapping[str, str]
    bases: frozenset[int] | None = None

    @property
    def epoch(self) -> int:
        return int(self.entry.epoch)

    def wrong(self, statement: int, story: str, *, channel: str | None = None, task: TaskId | None = None) -> Finding:
        """A statement that this cut violates."""
        return finding(statement, story, self.epoch, channel=channel, task=None if task is None else str(task))

    @cached_property
    def tasks(self) -> dict[TaskId, Facts]:
        """Task -> its part of the manifest."""
        return {_task(task): task for task in self.manifest["tasks"]}

    @cached_property
    def placed(self) -> dict[TaskId, Facts]:
        """Task -> its part of the deployment."""
        return {_task(task): task for task in self.manifest["deployment"]["tasks"]}

    @cached_property
    def loops(self) -> dict[str, str]:
        """Edge -> the loop that it is in, under which its batches are filed."""
        return loops_of_edges(edges_in(self.graph))

    @cached_property
    def said(self) -> dict[TaskId, dict[Parts, Any]]:
        """Task -> what the manifest says of the rows in its files."""
        return {id: said_of(converted(task, TaskFiles), self.loops) for id, task in self.tasks.items()}


def check_back_edges(cut: CutDocuments) -> Iterator[Finding]:
    """4: without the back edges the graph has no cycle. Operators without inputs are removed until none is left."""
    following: dict[str, list[str]] = {operator["name"]: [] for operator in cut.graph["operators"]}
    inputs = dict.fromkeys(following, 0)
    for edge in (edge for edge in cut.graph["edges"] if edge["loop"] is None):
        following[edge["sender"]].append(edge["receiver"])
        inputs[edge["receiver"]] += 1
    free = [name for name, count in inputs.items() if not count]
    for name in free:
        for receiver in following[name]:
            inputs[receiver] -= 1
            if not inputs[receiver]:
                free.append(receiver)
    if left := sorted(following.keys() - set(free)):
        yield cut.wrong(4, f"a cycle without a named back edge goes through {', '.join(left)}")


def check_completeness(cut: CutDocuments) -> Iterator[Finding]:
    """5: every task, operator, channel and file occurs once, and belongs to this epoch, attempt and graph."""
    yield from _check_record(cut)
    yield from _check_graph(cut)
    yield from _check_deployment(cut)
    yield from _check_actors(cut)
    yield from _check_tasks(cut)
    yield from _check_channels(cut)
    yield from _check_files(cut)


def _check_record(cut: CutDocuments) -> Iterator[Finding]:
    """The chain's entry and the manifest agree and refer to each other."""
    entry, manifest, link = cut.entry, cut.manifest, cut.link
    recorded: Facts = {
        "epoch": entry.epoch,
        "attempt": entry.attempt,
        "mode": entry.mode.value,
        "savepoint": entry.savepoint,
    }
    for what, value in recorded.items():
        if manifest[what] != value:
            yield cut.wrong(5, f"the manifest says {what} {manifest[what]!r}, the chain {value!r}")
    listed = {TaskId(name, index): tuple(names) for name, index, names in manifest["transactions"]}
    if listed != entry.transactions:
        yield cut.wrong(5, "manifest and chain list different transactions")
    if manifest["parent"] != {"number": link.number - 1, "sha256": link.parent}:
        story = f"the manifest's parent is entry {manifest['parent']['number']} or a different entry of that number, "
        yield cut.wrong(5, f"{story}but the chain records the manifest as entry {link.number}")
    if link.manifest is not None and link.manifest.name != link.manifest_name:
        named = f"the chain names {link.manifest.name!r} as its manifest; expected {link.manifest_name}"
        yield cut.wrong(5, named)


def _check_graph(cut: CutDocuments) -> Iterator[Finding]:
    """The stored graph is the one that ran: its recomputed hash matches, and edges are named after their ends."""
    found = hash_of_description(cut.graph)
    if found != cut.manifest["graph_hash"]:
        story = f"the stored graph has hash {found} but the manifest says {cut.manifest['graph_hash']}"
        yield cut.wrong(5, story)
    for edge in cut.graph["edges"]:
        ends = f"{edge['sender']}.{edge['output']}->{edge['receiver']}.{edge['input']}"
        if not re.fullmatch(rf"{re.escape(ends)}(#\d+)?", edge["name"]):
            yield cut.wrong(5, f"the name of edge {edge['name']!r} does not match its ends, {ends}")
        # The hash takes no loop for one without a name, and says nothing of limits.
        limited = edge["max_rounds"] is not None or edge["endless"]
        if edge["loop"] == "" or (limited and edge["loop"] is None):
            yield cut.wrong(5, f"edge {edge['name']!r} has limits (max_rounds, endless) or a loop without a name")
    for operator in cut.graph["operators"]:
        for what, ends in (("source", "inputs"), ("sink", "outputs")):
            # Those of other packages are sources and sinks of another kind. What finds splits gets them back.
            may_be = operator["kind"] in (what, FindSplits.kind_word) or not operator[ends]
            if (operator[what] is None) if operator["kind"] == what else (operator[what] and not may_be):
                story = f"operator {operator['name']!r} has kind {operator['kind']!r} and {what} {operator[what]!r}"
                yield cut.wrong(5, story)


def _check_actors(cut: CutDocuments) -> Iterator[Finding]:
    """A task has its own actor or shares one with the tasks of its index; all tasks of an operator do the same."""
    kinds: dict[str, set[str]] = {}
    for id, task in cut.placed.items():
        own = {str(id): "own", shared_actor(cut.entry.pipeline, id.index): "slice"}.get(task["actor"])
        if own is None:
            yield cut.wrong(5, f"actor {task['actor']!r} cannot host this task", task=id)
        else:
            kinds.setdefault(id.name, set()).add(own)
    for name, found in sorted(kinds.items()):
        if len(found) > 1:
            yield cut.wrong(5, f"some tasks of {name!r} have their own actor and some share one")
    within = {ends for ends, channel in _declared(cut).items() if channel["within_actor"]}
    for task in cut.manifest["tasks"]:
        for end in ends_in(task):
            channel = end["channel"]
            ends = (channel["edge"], *channel["sender"], *channel["receiver"])
            if ends in within and not channel["restored"] and end["digest"]:
                story = (
                    f"within an actor according to the deployment, but it has digest {end['digest']:08x}, as only "
                    "channels between actors have"
                )
                yield cut.wrong(5, story, channel=channel_name(*ends))


def _check_deployment(cut: CutDocuments) -> Iterator[Finding]:
    operators = {operator["name"]: operator["kind"] for operator in cut.graph["operators"]}
    parallelism: Mapping[str, int] = cut.manifest["parallelism"]
    if set(parallelism) != set(operators):
        story = f"the cut has operators {_names(parallelism)}, the graph {_names(operators)}"
        yield cut.wrong(5, story)
    ran = Counter((name, id.index) for id, task in cut.placed.items() for name in task["operators"])
    if sum(parallelism.values()) > len(ran) + EXPANDED_MAX:
        # A forged parallelism can be any number, so the instances are not listed.
        story = f"parallelism asks for {sum(parallelism.values()):,} operator instances, the tasks ran {len(ran):,}"
        yield cut.wrong(5, story)
        return
    wanted = {(name, index) for name, width in parallelism.items() for index in range(width)}
    for name, index in sorted(wanted ^ ran.keys()):
        what = "is in no task" if (name, index) in wanted else "is in a task but not in the graph"
        yield cut.wrong(5, f"instance {index} of operator {name!r} {what}")
    for (name, index), times in ran.items():
        if times > 1:
            yield cut.wrong(5, f"instance {index} of operator {name!r} is in {times} tasks")


def _check_tasks(cut: CutDocuments) -> Iterator[Finding]:
    kinds = {operator["name"]: operator["kind"] for operator in cut.graph["operators"]}
    times = Counter(map(_task, cut.manifest["tasks"]))
    for id in sorted(cut.entry.states.keys() - times.keys()):
        yield cut.wrong(5, "the chain records files of its state, but the manifest lists no such task", task=id)
    for id in sorted(cut.placed.keys() | times.keys() | cut.entry.files.keys()):
        listed = [times[id] == 1, id in cut.placed, id in cut.entry.files]
        if not all(listed):
            documents = ("the manifest", "the deployment", "the chain")
            where = " and ".join(name for name, there in zip(documents, listed, strict=True) if not there)
            yield cut.wrong(5, f"the task is missing from {where}, or listed twice", task=id)
    for id, task in cut.tasks.items():
        for story in _task_stories(cut, id, task, kinds):
            yield cut.wrong(5, story, task=id)


def _task_stories(cut: CutDocuments, id: TaskId, task: Facts, kinds: Mapping[str, str]) -> Iterator[str]:
    if task["attempt"] != cut.entry.attempt:
        yield f"its snapshot belongs to attempt {task['attempt']}, the cut to attempt {cut.entry.attempt}"
    # The last state of a task that has ended is part of every later cut and belongs to no epoch.
    if not task["ended"] and (task["epoch"], task["filed"]) != (cut.epoch, cut.epoch):
        yield f"its snapshot belongs to epoch {task['epoch']} and is filed under epoch {task['filed']}"
    if task["ended"] and task["filed"] is not None:
        yield f"it has ended, but its last state is filed under epoch {task['filed']}"
    if id in cut.entry.files and task["filed"] != cut.entry.files[id]:
        yield f"it is filed under epoch {task['filed']} but the chain says {cut.entry.files[id]}"
    if tuple(task["transactions"]) != cut.entry.transactions.get(id, ()):
        listed = list(cut.entry.transactions.get(id, ()))
        yield f"its transactions are {task['transactions']} but the chain lists {listed}"
    found = {facts["name"]: facts["kind"] for facts in task["operators"]}
    ran: list[str] = cut.placed[id]["operators"] if id in cut.placed else []
    if len(found) != len(task["operators"]) or set(found) != set(ran):
        yield f"its snapshot holds operators {_names(found)} but it ran {_names(ran)}"
    for name, kind in found.items():
        if kind != kinds.get(name):
            yield f"operator {name!r} has kind {kind!r} here and {kinds.get(name)!r} in the graph"
    for facts in task["operators"]:
        if facts["kind"] == "iterate" and task["rounds"] is None:
            yield f"iteration {facts['name']!r} lists no rounds"
        if facts["kind"] == "source" and facts["records"] and not facts["splits"]:
            yield f"source {facts['name']!r} has sent {facts['records']} records but lists no split"
    logged = Counter[str]()
    for end in ends_in(task):
        edge: str = end["channel"]["edge"]
        logged[cut.loops.get(edge, edge)] += end["log_count"] or 0
    figures = {log["loop"]: log["batches"] for log in task["logs"]}
    if figures != +logged:
        yield f"its logs hold {figures} batches, but in its channels are {dict(+logged)}"


def begun_again(cut: CutDocuments, before: CutDocuments | None) -> frozenset[str]:
    """The operators that do not go on from an earlier cut: their state was dropped since, or one of the graphs lacks
    them, as it does if they were renamed. Only another attempt can have done so.
    """
    if before is None or cut.entry.attempt == before.entry.attempt:
        return frozenset()
    dropped = {*cut.manifest["dropped"]}
    if cut.manifest["graph_hash"] == before.manifest["graph_hash"]:
        dropped -= {*before.manifest["dropped"]}
    now, former = ({operator["name"] for operator in one.graph["operators"]} for one in (cut, before))
    return frozenset(dropped | (now ^ former))


def check_splits(cut: CutDocuments, before: CutDocuments | None) -> Iterator[Finding]:
    """5: a source has the splits that it names, which never change. `before` is the previous cut if it still exists."""
    numbered = {operator["name"] for operator in cut.graph["operators"] if operator["numbered"]}
    earlier, begun = {} if before is None else _splits(before), begun_again(cut, before)
    for name, splits in _splits(cut).items():
        if name in numbered:
            known = {f"{index}-of-{len(splits)}" for index in range(len(splits))}
        else:
            known = splits if name in begun else earlier.get(name, splits)
        for split in sorted(splits - known):
            yield cut.wrong(5, f"source {name!r} has no split of the name {split!r}")


def _splits(cut: CutDocuments) -> dict[str, set[str]]:
    """Source -> the names of its splits."""
    found: dict[str, set[str]] = {}
    for facts in (facts for task in cut.manifest["tasks"] for facts in task["operators"]):
        if facts["splits"]:
            found.setdefault(facts["name"], set()).update(split for split, _ in facts["splits"])
    return found


# -- channels ----------------------------------------------------------------------------------------------------


def _check_channels(cut: CutDocuments) -> Iterator[Finding]:
    declared = _declared(cut)
    if len(declared) != sum(len(table["senders"]) for table in cut.manifest["deployment"]["channels"]):
        yield cut.wrong(5, "the deployment names a channel twice")
    actors = {id: task["actor"] for id, task in cut.placed.items()}
    edges = list(edges_between_tasks(cut))
    count = sum(senders * (1 if is_straight else receivers) for _, senders, receivers, is_straight in edges)
    if count > len(declared) + EXPANDED_MAX:
        yield cut.wrong(5, f"the graph has {count:,} channels, the deployment lists {len(declared):,}")
        return
    wanted = dict(_channels_of(cut, edges))
    for ends in sorted(wanted.keys() ^ declared.keys()):
        what = "is missing from the deployment" if ends in wanted else "belongs to no edge of the graph"
        yield cut.wrong(5, f"the channel {what}", channel=channel_name(*ends))
    for ends in sorted(wanted.keys() & declared.keys()):
        channel, (_, *tasks) = declared[ends], ends
        sender, receiver = TaskId(tasks[0], tasks[1]), TaskId(tasks[2], tasks[3])
        within = actors.get(sender) is not None and actors.get(sender) == actors.get(receiver)
        if (channel["is_back"], channel["within_actor"]) != (wanted[ends], within):
            story = f"the deployment says is_back={channel['is_back']}, within_actor={channel['within_actor']}; "
            story += f"graph and actors say {wanted[ends]} and {within}"
            yield cut.wrong(5, story, channel=channel_name(*ends))
    yield from _check_ends(cut)


def _check_ends(cut: CutDocuments) -> Iterator[Finding]:
    """An input has ended if its sender has, unless that is still in the channel; a restored one when it is empty."""
    tasks, has_queues = cut.tasks, cut.manifest["mode"] == "unaligned"
    for id, task in tasks.items():
        for end in ends_in(task):
            channel, ended = end["channel"], end["ended"]
            if end["direction"] != "in":
                continue
            sender = tasks.get(TaskId(*channel["sender"]))
            if channel["restored"]:
                is_right = ended == (not end["log_count"])
            elif sender is None or ended is None:
                is_right = False
            elif ended:
                is_right = sender["ended"] and not end["log_count"]
            else:
                may_be_behind = end["is_back"] or task["ended"] or task["overtook"] or has_queues
                is_right = may_be_behind or not sender["ended"]
            if not is_right:
                story = f"the input is listed with ended={ended}, against its log or the end of its sender"
                name = channel_name(channel["edge"], *channel["sender"], *channel["receiver"])
                yield cut.wrong(5, story, channel=name, task=id)


_Width = tuple[Facts, int, int, bool]
"""An edge, its numbers of sending and receiving tasks, and whether task i sends to task i only."""


def edges_between_tasks(cut: CutDocuments) -> Iterator[_Width]:
    home, width = _homes(cut), cut.manifest["parallelism"]
    known = home.keys() & width.keys()
    for edge in cut.graph["edges"]:
        sender, receiver = edge["sender"], edge["receiver"]
        if not {sender, receiver} <= known:
            continue
        if home[receiver] != receiver and home[sender] == home[receiver]:
            continue  # an edge within a chain is a call, not a channel
        # Every task that feeds an iteration back sends round markers to every task of its head.
        is_straight = edge["routing"] == "forward" and edge["loop"] != receiver and width[sender] == width[receiver]
        yield edge, width[sender], width[receiver], is_straight


def _channels_of(cut: CutDocuments, edges: Iterable[_Width]) -> Iterator[tuple[tuple[Any, ...], bool]]:
    """The ends of every expected channel, and whether it is a back edge."""
    home = _homes(cut)
    for edge, senders, receivers, is_straight in edges:
        ends = (edge["name"], home[edge["sender"]]), home[edge["receiver"]]
        for index in range(senders):
            for target in (index,) if is_straight else range(receivers):
                yield (*ends[0], index, ends[1], target), edge["loop"] is not None


def _homes(cut: CutDocuments) -> dict[str, str]:
    """Operator -> the name of the tasks that it runs in."""
    return {name: id.name for id, task in cut.placed.items() for name in task["operators"]}


def _declared(cut: CutDocuments) -> dict[tuple[Any, ...], Facts]:
    """The channels listed in the deployment, by their ends."""
    return {_ends(channel): channel for channel in channels_in(cut.manifest["deployment"]["channels"])}


def channel_name(edge: str, sender: str, sender_index: int, receiver: str, receiver_index: int) -> str:
    """The readable name of a channel.

    >>> channel_name("a.out->b.in", "a", 0, "b", 1)
    'a.out->b.in a/0->b/1'
    """
    return f"{edge} {sender}/{sender_index}->{receiver}/{receiver_index}"


# -- files -------------------------------------------------------------------------------------------------------


def _check_files(cut: CutDocuments) -> Iterator[Finding]:
    times = Counter(file["name"] for task in cut.manifest["tasks"] for _, file in layered_files(task))
    for name, count in times.items():
        if count > 1:
            yield cut.wrong(5, f"the file {name} is listed {count} times")
    for name, fault in cut.foreign.items():
        yield cut.wrong(5, f"the file {name} was not written by a store: {fault}")
    for what, file in shared_files(cut.manifest):
        if not is_of_constant(file["name"]):
            yield cut.wrong(5, f"{what} is in {file['name']}, which is no file of a constant")
    for id, task in cut.tasks.items():
        yield from (cut.wrong(5, story, task=id) for story in _layer_stories(cut, id, task))
        folder = attempt_folder(cut.entry.attempt, task["filed"])
        for story in _file_stories(id, folder, task["files"], _files_of(cut, id)):
            yield cut.wrong(5, story, task=id)
        of_rows = {table_of(file["name"]) for file in task["files"] if file["groups"] is None}
        for table in sorted(cut.said[id].keys() - of_rows):
            yield cut.wrong(5, f"its file for {', '.join(table)} is missing", task=id)


def _file_stories(id: TaskId, folder: Parts, files: Iterable[Facts], allowed: Set[Parts]) -> Iterator[str]:
    """Faults in the names and the order of the files of a task in the folder of an attempt."""
    there: dict[Parts, list[Facts]] = {}
    for file in files:
        table = table_of(file["name"])
        of_table = there.setdefault(table, [])
        is_split = table[:1] in {table_folder(keyed, None) for keyed in KEYED}
        if parts_of(file["name"]) != (*folder, *table, task_file(id, len(of_table) if is_split else 0)):
            yield f"its file {file['name']} belongs to another cut or task"
        elif table not in allowed:
            yield f"its file {file['name']} belongs to none of its tables"
        of_table.append(file)
    for of_table in there.values():
        yield from _disordered(of_table)


def layer_names(task: Facts) -> list[tuple[int, int | None]]:
    """The attempt of each file of a task's keyed state, and the epoch that it is filed under, in order."""
    return [(layer["attempt"], layer["filed"]) for layer in (*task["below"], task)]


def compactions_in(task: Facts, earlier: Facts) -> list[int]:
    """The layers of a task below its own that an earlier cut of it does not have."""
    former = layer_names(earlier)
    return [layer for layer, name in enumerate(layer_names(task)[:-1]) if name not in former]


def continued(id: TaskId, task: Facts, cuts: Mapping[int, CutDocuments], previous: int | None) -> CutDocuments | None:
    """The cut whose list of files a task goes on with: the previous one, or one in `bases_of`. None if it is gone.

    If epochs overlap, others have completed since its trigger. A compaction has the epoch of the last file that was put
    into it, so that is in the list that it continues.
    """
    for epoch in (previous, *bases_of(task)) if task["below"] else ():
        before = None if epoch is None else cuts.get(epoch)
        earlier = None if before is None else before.tasks.get(id)
        if earlier is None:
            continue
        epochs = {layer["epoch"] for layer in (*earlier["below"], earlier)}
        if {task["below"][layer]["epoch"] for layer in compactions_in(task, earlier)} <= epochs:
            return before
    return None


def bases_of(task: Facts) -> set[int]:
    """The base of a task's delta, and the cut of the last file below it: a later one if that is a compaction, the last
    file of which the delta supersedes.
    """
    named = (task["base"], task["below"][-1]["epoch"] if task["below"] else None)
    return {epoch for epoch in named if epoch is not None}


def check_lists(cut: CutDocuments, cuts: Mapping[int, CutDocuments], previous: int | None) -> Iterator[Finding]:
    """8: a list of files goes on with that of the previous cut or of one in `bases_of`, if these still exist."""
    for id, task in cut.tasks.items():
        if task["below"] and bases_of(task) <= cuts.keys() and continued(id, task, cuts, previous) is None:
            epochs = [layer["epoch"] for layer in task["below"]]
            story = f"its state is on top of files of epochs {epochs}, which are not those of its base {task['base']}"
            yield cut.wrong(8, story, task=id)


def _layer_stories(cut: CutDocuments, id: TaskId, task: Facts) -> Iterator[str]:
    """Faults in the list of files that make up the keyed state of a task.

    The first holds everything, each of the others what changed since the cut of the one before it, or since an older
    one. So a file that was left out, put in twice or put elsewhere leaves a gap. The chain records the same list.
    """
    layers = [*task["below"], task]
    names = layer_names(task)
    if layers[0]["base"] is not None:
        yield f"its first file has the base {layers[0]['base']}, and no file is below it"
    for before, layer in pairwise(layers):
        base, epoch = layer["base"], before["epoch"]
        if base is None or not base <= epoch < layer["epoch"]:
            story = f"its state of epoch {layer['epoch']}, filed under epoch {layer['filed']}, has the base {base}"
            yield f"{story} but follows that of epoch {epoch}"
    for base in sorted(bases_of(task) - cut.bases) if cut.bases is not None else ():
        yield f"its state has the base {base}, which is no earlier cut of its attempt"
    recorded = [(file.attempt, file.epoch) for file in cut.entry.states.get(id, ())]
    if recorded != names and (cut.entry.states or len(names) > 1):
        yield f"its state is in the files (attempt, epoch) {names} but the chain records {recorded}"
    for layer in task["below"]:
        folder = attempt_folder(layer["attempt"], layer["filed"])
        yield from _file_stories(id, folder, layer["files"], _keyed_tables(task))


def _disordered(files: list[Facts]) -> Iterator[str]:
    """Faults in the order of a table's files: key groups increase, so none is in two; rows of no group come last."""
    before = -1
    for file in files:
        span: list[int] = file["groups"] or [KEY_GROUPS, KEY_GROUPS]
        if not before < span[0] <= span[1]:
            yield f"its file {file['name']} is listed with key groups that are out of order or in two files"
        before = span[1]


def _files_of(cut: CutDocuments, id: TaskId) -> set[Parts]:
    """Table folders in which the task may have a file."""
    return _keyed_tables(cut.tasks[id]) | cut.said[id].keys()


def _keyed_tables(task: Facts) -> set[Parts]:
    return {table_folder(table, facts["name"]) for table in KEYED for facts in task["operators"]}


def has_readable_files(cut: CutDocuments) -> bool:
    """Whether every task is listed once, and every file is a regular file whose name identifies its table."""
    tasks = [(task, _files_of(cut, id)) for id, task in cut.tasks.items()]
    return (
        not cut.foreign
        and len(tasks) == len(cut.manifest["tasks"])
        and all(table_of(file["name"]) in allowed for task, allowed in tasks for _, file in layered_files(task))
        and all(is_of_constant(file["name"]) for _, file in shared_files(cut.manifest))
    )


def _task(task: Facts) -> TaskId:
    return TaskId(task["task"], task["index"])


def _ends(channel: Facts) -> tuple[Any, ...]:
    return tuple(channel[name] for name in ("edge", "sender", "sender_index", "receiver", "receiver_index"))


def _names(names: Any) -> str:
    return ", ".join(sorted(names)) or "none"

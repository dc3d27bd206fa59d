"""Restores a cut in a changed graph: which operators and edges of the cut are which ones of the new graph.

- Operators match by name, unless the user says that one was renamed. An added operator starts empty.
- State is given up once: a cut names what its run dropped when it began, so the same option has no effect on it.
- State is never given up in silence: an operator that is gone, or has become another kind of operator, is refused until
  the user drops its state by name. What was on its way to an operator is no state of it: one that is dropped and still
  in the flow starts again with the records that were in flight.
- State of an older version is upgraded, value by value, whenever the cut is restored; the next cut holds the new
  version. It is refused if the operator cannot upgrade it, and state of a newer version always is.
- Edges match by their ends, under the new names. Records in flight stay in their channel, so an edge that is gone, or
  routes in another way, must have been empty in the cut.
- Nothing enters an operator that has ended in the cut, except from operators that had ended as well.
- An iteration has the same operators as before; a change outside of it needs a cut between two rounds.

The files of a cut keep their names. `CutOutline.operator_names` and `edge_names` lead from one to the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from backedge.graphs.cycles import find_cycles
from backedge.graphs.discovery import FindSplits
from backedge.graphs.graph_errors import GraphError
from backedge.graphs.plan import Edge, KeyColumns, Plan
from backedge.graphs.public import public
from backedge.recovery.restore.outline import CutOutline, TaskOutline

ADVICE = "`backedge snapshots check` shows every difference"


@public
class GraphMismatchError(GraphError):
    """The cut is of another graph, or has another value of a constant, and it is not clear what becomes of its state.

    Fix: say what becomes of the state: `drop=`, `rename=`, or another `name=` of the flow to begin from nothing.
    """


class FormerEdge(NamedTuple):
    """An edge of the former graph."""

    name: str
    sender: str
    output: str
    receiver: str
    input: str
    routing: tuple[str, str]


AnyEdge = TypeVar("AnyEdge", FormerEdge, Edge)


class _Ends(NamedTuple):
    """An edge by its ends, None for an operator that is gone; `number` counts parallel edges."""

    sender: str | None
    output: str
    receiver: str | None
    input: str
    number: int


class GraphChange(Struct, frozen=True):
    """From a former graph to the one that is run now.

    - former: the hash of the former graph. operators: name -> kind, versions: name -> version of the state, and edges,
      of the former graph.
    - renamed: former name -> new name. dropped: former operators whose state is given up.
    """

    former: str
    operators: Mapping[str, str]
    versions: Mapping[str, int]
    edges: tuple[FormerEdge, ...]
    renamed: Mapping[str, str] = {}
    dropped: frozenset[str] = frozenset()

    def new_name(self, former: str) -> str | None:
        """The name that a former operator would have now; None if it was dropped and another one has its name."""
        if former in self.dropped and former in self.renamed.values():
            return None
        return self.renamed.get(former, former)


def change_from(
    former: str, description: Mapping[str, Any], renamed: Mapping[str, str], dropped: frozenset[str]
) -> GraphChange:
    """The change from a graph that a store describes (`backedge.graphs.describing.describe_plan`)."""
    edges = tuple(
        FormerEdge(e["name"], e["sender"], e["output"], e["receiver"], e["input"], (e["routing"], e["by"] or ""))
        for e in description["edges"]
    )
    operators = {operator["name"]: operator["kind"] for operator in description["operators"]}
    versions = {operator["name"]: operator["state_version"] for operator in description["operators"]}
    return GraphChange(former, operators, versions, edges, renamed, dropped)


def dropping_again(change: GraphChange, plan: Plan, drops: Collection[str]) -> GraphChange:
    """The same change, which also gives up the state that no operator of the flow takes, if that is among `drops`.

    An earlier run may have dropped the same name. What its operator has counted since is given up only in this case.
    """
    again = _untaken(plan, change).keys() & drops
    return replace(change, dropped=change.dropped | again) if again else change


class Difference(Struct, frozen=True):
    """What changed from one graph to another, and why a cut cannot be restored across it, if so.

    - upgraded: new name -> former version of the state and the new one, of each operator whose version is higher now.
    - added_constants: those that the cut lacks. dropped_constants: those whose value in the cut is given up.
    """

    added: tuple[str, ...]
    dropped: tuple[str, ...]
    renamed: Mapping[str, str]
    upgraded: Mapping[str, tuple[int, int]]
    added_edges: tuple[str, ...]
    removed_edges: tuple[str, ...]
    added_constants: tuple[str, ...]
    dropped_constants: tuple[str, ...]
    problems: tuple[str, ...]


class ConstantChange(Struct, frozen=True):
    """From the constants of a cut to those of the flow that continues from it, by name and digest.

    - of_cut: those of the cut. given: those that the flow gives as values; the others are loaded. dropped: those whose
      value in the cut is given up.
    """

    of_cut: Mapping[str, str] = {}
    given: Mapping[str, str] = {}
    dropped: Collection[str] = ()

    def problems(self, plan: Plan) -> Iterator[str]:
        """Why the flow cannot continue with its constants. One that is loaded has the value of the cut."""
        for name, digest in self.of_cut.items():
            if name in self.dropped:
                continue
            drop = f"with --drop {name} (drop=)"
            if name not in plan.constants:
                yield f"constant {name!r} of the cut is not in the flow any more: give it up {drop}"
            elif (now := self.given.get(name, digest)) != digest:
                yield (
                    f"constant {name!r} has another value than in the cut (digest {now[:19]}, not {digest[:19]}), "
                    f"whose state was computed with the former one: go on with the new value {drop}, give the former "
                    "one, or give load= instead of a value, so that a continued run has the value of its cut"
                )


NO_CONSTANTS = ConstantChange()


def difference(
    cut: CutOutline, plan: Plan, change: GraphChange, constants: ConstantChange = NO_CONSTANTS
) -> Difference:
    """Compare the graph and the constants of a cut with those of the flow that is run now."""
    kept = _kept(change)
    former, new = _former_edges(change), _new_edges(plan)
    return Difference(
        added=tuple(name for name in plan.operators if name not in kept.values()),
        dropped=tuple(name for name in change.operators if name in change.dropped),
        renamed=dict(change.renamed),
        upgraded={
            name: (version, now)
            for name, version in _former_versions(plan, change).items()
            if version < (now := plan.operators[name].kind.state_version)
        },
        added_edges=tuple(edge.name for ends, edge in new.items() if ends not in former),
        removed_edges=tuple(edge.name for ends, edge in former.items() if ends not in new),
        added_constants=tuple(name for name in plan.constants if name not in constants.of_cut),
        dropped_constants=tuple(name for name in constants.of_cut if name in constants.dropped),
        problems=(*_problems(cut, plan, change), *constants.problems(plan)),
    )


def fitted(cut: CutOutline, plan: Plan, change: GraphChange | None) -> CutOutline:
    """The outline of a cut in terms of the graph that is run now. Raises `GraphMismatchError` if there is none."""
    is_done = change is None or change.former != plan.hash or (change.dropped and change.dropped <= cut.given_up)
    if cut.graph_hash == plan.hash and is_done:
        return cut
    if change is None or change.former != cut.graph_hash:
        raise GraphMismatchError(
            f"epoch {cut.epoch} was taken of another graph ({cut.graph_hash}) than flow {plan.name!r} has now "
            f"({plan.hash}): another run has changed the job meanwhile; start this one again"
        )
    problems = list(_problems(cut, plan, change))
    if problems:
        more = f" ({len(problems) - 1} more; {ADVICE})" if len(problems) > 1 else f" ({ADVICE})"
        what = "cannot be continued so" if cut.graph_hash == plan.hash else "was taken of another graph"
        raise GraphMismatchError(f"epoch {cut.epoch} {what}: {problems[0]}{more}")
    there = _still_there(plan, change)
    former, new = _former_edges(change), _new_edges(plan)
    return replace(
        cut,
        parallelism={there[name]: count for name, count in cut.parallelism.items() if name in there},
        tasks={id: _renamed(task, there) for id, task in cut.tasks.items()},
        former_versions=_former_versions(plan, change),
        operator_names={new_name: name for name, new_name in there.items() if new_name != name},
        dropped=frozenset(name for name in there if name in change.dropped),
        edge_names={edge.name: new[ends].name for ends, edge in former.items() if ends in new},
    )


def _renamed(task: TaskOutline, there: Mapping[str, str]) -> TaskOutline:
    return replace(task, operators={there[name]: outline for name, outline in task.operators.items() if name in there})


def _kept(change: GraphChange) -> dict[str, str]:
    """Former name -> new name of the operators whose state is kept."""
    return {name: change.renamed.get(name, name) for name in change.operators if name not in change.dropped}


def _still_there(plan: Plan, change: GraphChange) -> dict[str, str]:
    """Former name -> new name of the operators that are in the flow, with their state or without it."""
    names = ((name, change.new_name(name)) for name in change.operators)
    return {name: new for name, new in names if new is not None and new in plan.operators}


def _former_versions(plan: Plan, change: GraphChange) -> dict[str, int]:
    """New name -> version of the state in the cut, of the operators that have another version now."""
    found: dict[str, int] = {}
    for name, new_name in _kept(change).items():
        now = plan.operators.get(new_name)
        if now is None or now.kind.word != change.operators[name]:
            continue
        if change.versions[name] != now.kind.state_version:
            found[new_name] = change.versions[name]
    return found


def _former_edges(change: GraphChange) -> dict[_Ends, FormerEdge]:
    """The former edges under the new names of their ends."""
    return _by_ends(change.edges, change.new_name)


def _new_edges(plan: Plan) -> dict[_Ends, Edge]:
    return _by_ends(plan.edges, str)


def _by_ends(edges: Iterable[AnyEdge], name_of: Callable[[str], str | None]) -> dict[_Ends, AnyEdge]:
    seen: Counter[tuple[str | None, str, str | None, str]] = Counter()
    found: dict[_Ends, AnyEdge] = {}
    for edge in edges:
        ends = (name_of(edge.sender), edge.output, name_of(edge.receiver), edge.input)
        found[_Ends(*ends, seen[ends])] = edge
        seen[ends] += 1
    return found


def _problems(cut: CutOutline, plan: Plan, change: GraphChange) -> Iterator[str]:
    """Why the cut cannot be restored in this graph, each with its fix."""
    yield from _wrong_names(plan, change)
    yield from _untaken(plan, change).values()
    yield from _halves_of_sources(plan, change)
    yield from _stranded_records(cut, plan, change)
    yield from _entered_after_the_end(cut, plan, change)
    yield from _changed_iterations(cut, plan, change)


def _untaken(plan: Plan, change: GraphChange) -> dict[str, str]:
    """The former operators whose state no operator of the flow takes, each with the reason and the fix."""
    found: dict[str, str] = {}
    for name, new_name in _kept(change).items():
        kind = change.operators[name]
        if new_name not in plan.operators:
            found[name] = (
                f"operator {name!r} is not in the flow any more: give up its state with --drop {name} (drop=), or say "
                f"what it is called now with --rename {name}=NEW (rename=)"
            )
        elif (word := plan.operators[new_name].kind.word) != kind:
            found[name] = (
                f"operator {new_name!r} was a {kind} and is a {word} now, which cannot take its state: give the state "
                f"up with --drop {name} (drop=), or give the new operator another name"
            )
    for name, fault in _wrong_versions(plan, change):
        found.setdefault(name, fault)
    return found


def _wrong_versions(plan: Plan, change: GraphChange) -> Iterator[tuple[str, str]]:
    """The former name of each operator that cannot read its state, and the fault."""
    former_names = {new_name: name for name, new_name in _kept(change).items()}
    for name, version in _former_versions(plan, change).items():
        kind, former_name = plan.operators[name].kind, former_names[name]
        give_up = f"give the state up with --drop {former_name} (drop=)"
        fault = (
            f"operator {name!r} has state of version {version} in the cut, and this code has "
            f"state_version={kind.state_version}"
        )
        if version > kind.state_version:
            yield former_name, f"{fault}: run the newer code, with state_version={version}, or {give_up}"
        elif not kind.can_upgrade:
            fix = "give stateful_map upgrade=, a process class upgrade(value, version), and upgrade_own(state, version)"
            yield former_name, f"{fault} but no way to upgrade it: {fix} if it has capture; or {give_up}"


def _wrong_names(plan: Plan, change: GraphChange) -> Iterator[str]:
    there = ", ".join(sorted(change.operators))
    for name in sorted(change.dropped | change.renamed.keys()):
        if name not in change.operators:
            yield f"there is no operator {name!r} to drop or rename: the cut has {there}"
    for name, new_name in change.renamed.items():
        if name in change.dropped:
            yield f"operator {name!r} cannot be both renamed and dropped"
        elif new_name not in plan.operators:
            yield f"operator {name!r} cannot be renamed to {new_name!r}, which is not in the flow"
        elif new_name in change.operators and new_name not in change.dropped | change.renamed.keys():
            yield f"operator {name!r} cannot be renamed to {new_name!r}, which has state of its own in the cut"
        elif plan.operators[new_name].kind.is_sink:
            yield (
                f"sink {name!r} cannot be renamed: output that waits to be published is filed under its name. Stop the "
                f"run, which publishes it, and then drop the sink with --drop {name} (drop=)"
            )
    if len(set(change.renamed.values())) < len(change.renamed):
        yield "two operators cannot be renamed to the same name"


def _halves_of_sources(plan: Plan, change: GraphChange) -> Iterator[str]:
    """What hands splits out and what reads them know the same ones."""
    kept = set(_kept(change).values())
    for name, operator in plan.operators.items():
        if isinstance(operator.kind, FindSplits) and (name in kept) != (operator.kind.readers in kept):
            readers = operator.kind.readers
            yield (
                f"source {readers!r} would go on with the state of one of its operators, {readers!r} and {name!r}: "
                f"keep both, or begin again with --drop {readers} --drop {name} (drop=)"
            )


def _stranded_records(cut: CutOutline, plan: Plan, change: GraphChange) -> Iterator[str]:
    logged = Counter[str]()
    for task in cut.tasks.values():
        for channel, batches in task.logs.items():
            logged[channel.edge] += batches
    new = _new_edges(plan)
    for ends, edge in _former_edges(change).items():
        now = new.get(ends)
        if not logged[edge.name] or (now is not None and _routes_alike(edge, now)):
            continue
        fate = "is gone" if now is None else "routes its records in another way now"
        yield (
            f"edge {edge.name!r} {fate}, and the cut holds {logged[edge.name]} batches that were on their way there: "
            "keep the edge, or go on with the former graph and take a savepoint when they have arrived"
        )


def _routes_alike(former: FormerEdge, now: Edge) -> bool:
    routing, columns = (now.declared or now.routing).value, now.key_columns
    # Not every cut names the columns of a key that has several.
    return former.routing == (routing, columns) or (isinstance(now.by, KeyColumns) and former.routing == (routing, ""))


def _entered_after_the_end(cut: CutOutline, plan: Plan, change: GraphChange) -> Iterator[str]:
    kept, ended = set(_kept(change).values()), _ended(cut, plan, change)
    entered = [edge for edge in plan.edges if not edge.is_back and edge.receiver in ended]
    # A dropped operator begins again if anything can reach it.
    while again := {e.receiver for e in entered if e.sender not in ended and e.receiver in ended - kept}:
        ended -= again
    for edge in entered:
        if edge.receiver in ended and edge.sender not in ended:
            yield (
                f"operator {edge.receiver!r} had ended when the cut was taken, and {edge.sender!r} would send to it: "
                f"drop {edge.receiver!r}, so that it starts again without state, or resume from an earlier cut"
            )


def _ended(cut: CutOutline, plan: Plan, change: GraphChange) -> set[str]:
    """The operators of the flow that had ended in all their tasks, except sources that begin again."""
    there = _still_there(plan, change)
    going_on = {name for task in cut.tasks.values() if not task.ended for name in task.operators}
    begin_again = {name for name in change.dropped & there.keys() if plan.operators[there[name]].kind.is_source}
    return {new_name for name, new_name in there.items() if name not in going_on | begin_again}


def _changed_iterations(cut: CutOutline, plan: Plan, change: GraphChange) -> Iterator[str]:
    former = {
        name for task in cut.tasks.values() if task.rounds is not None and not task.ended for name in task.operators
    }
    if not former:
        return
    running = {change.new_name(name) or name for name in former}
    bodies = {name for name, path in find_cycles(plan).paths.items() if path}
    changed = {
        name: "is in an iteration now" if name in bodies else "is in no iteration any more" for name in running ^ bodies
    }
    for name in former & change.dropped:
        changed.setdefault(name, "would start again without state")
    for name, how in sorted(changed.items()):
        yield (
            f"operator {name!r} {how}, and an iteration had begun when the cut was taken: the operators of an "
            "iteration can change, or drop their state, only before it begins or after it has ended"
        )

"""What has changed from one cut to another: state by key, positions of sources, records of sinks and in loops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from backedge.inspecting.cut_contents import CutContents
from backedge.recovery.stores.manifests import CutDescription

LISTED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class StateDiff:
    """How the state of one operator differs. Keys and values are JSON.

    - added, removed, changed: the number of keys. other: of timers, waiting inputs and states of whole tasks.
    - unread: of entries in one of the cuts whose key or value cannot be read; they may differ.
    - keys: the first of these keys, each with its value before and after; None: it had none.
    """

    operator: str
    added: int
    removed: int
    changed: int
    other: int
    unread: int
    keys: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict[str, tuple[str | None, str | None]])

    @property
    def is_empty(self) -> bool:
        """Whether the state is the same for certain."""
        return not (self.added or self.removed or self.changed or self.other or self.unread)


@dataclass(frozen=True, slots=True)
class CutDiff:
    """How two cuts of a job differ.

    `records`: operator -> how many records its source has sent, or its sink written, before and after. `positions`:
    split -> the position before and after, for each split of a source that has moved. `loops`: loop -> the records in
    its log.
    """

    before: int
    after: int
    state: tuple[StateDiff, ...]
    records: Mapping[str, tuple[int, int]]
    positions: Mapping[str, tuple[int | None, int | None]]
    loops: Mapping[str, tuple[int | None, int | None]]


def diff_of(before: CutContents, after: CutContents) -> CutDiff:
    operators = dict.fromkeys([*before.operators, *after.operators])
    state = [_state_diff(name, before, after) for name in operators]
    records_before, records_after = _records(before.cut), _records(after.cut)
    positions_before, positions_after = before.positions(), after.positions()
    return CutDiff(
        before=before.cut.epoch,
        after=after.cut.epoch,
        state=tuple(diff for diff in state if not diff.is_empty),
        records={
            name: (records_before.get(name, 0), records_after.get(name, 0))
            for name in operators
            if records_before.get(name, 0) != records_after.get(name, 0)
        },
        positions={
            split: (positions_before.get(split), positions_after.get(split))
            for split in sorted(positions_before.keys() | positions_after.keys())
            if positions_before.get(split) != positions_after.get(split)
        },
        loops={
            loop: (_logged(before.cut, loop), _logged(after.cut, loop))
            for loop in dict.fromkeys([*before.cut.logs, *after.cut.logs])
        },
    )


def _state_diff(operator: str, before: CutContents, after: CutContents) -> StateDiff:
    values, others, unread = _state(operator, before)
    added = removed = changed = 0
    keys: dict[str, tuple[str | None, str | None]] = {}

    def note(key: str, old: str | None, new: str | None) -> None:
        if len(keys) < LISTED_MAX:
            keys[key] = old, new

    new_values, new_others, new_unread = _state(operator, after)
    for key, value in new_values.items():
        if key not in values:
            added += 1
            note(key, None, value)
        elif values[key] != value:
            changed += 1
            note(key, values[key], value)
    for key, value in values.items():
        if key not in new_values:
            removed += 1
            note(key, value, None)
    other = ((others - new_others) + (new_others - others)).total()
    return StateDiff(operator, added, removed, changed, other, max(unread, new_unread), keys)


def _state(
    operator: str, cut: CutContents
) -> tuple[dict[str, str | None], Counter[tuple[str, str | None, str | None]], int]:
    """The values by key, everything else as often as it occurs, and how many of all these cannot be read."""
    values: dict[str, str | None] = {}
    others: Counter[tuple[str, str | None, str | None]] = Counter()
    unread = 0
    for entry in cut.state(operator) if operator in cut.operators else ():
        unread += entry.value is None or (entry.key is None and entry.kind in ("value", "timer"))
        if entry.kind == "value" and entry.key is not None:
            values[entry.key] = entry.value
        else:
            others[entry.kind, entry.key, entry.value] += 1
    return values, others, unread


def _records(cut: CutDescription) -> dict[str, int]:
    found: Counter[str] = Counter()
    for task in cut.tasks.values():
        for facts in task.operators:
            found[facts.name] += facts.records
    return found


def _logged(cut: CutDescription, loop: str) -> int | None:
    log = cut.logs.get(loop)
    return 0 if log is None else log.records

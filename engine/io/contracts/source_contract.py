"""What a run relies on in a source, checked: names of splits and positions are all that a cut has of it.

First every split is read alone and slowly, which gives its records and many positions. Then it is opened at each of
them, in what could be another process. Then runs are drawn from seeds: tasks share the splits, read, are cut, die, and
others go on from the positions of the last cut.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import Any, cast

from backedge.engine.batches.columns import as_records
from backedge.engine.batches.differences import countable
from backedge.engine.io.contracts.contract_error import broken, in_another_process, unlike
from backedge.engine.io.files.checks import check_source as list_splits
from backedge.engine.io.reader import SourceReader, finder_of, positions_of
from backedge.graphs.io import Source
from backedge.graphs.kinds import Read
from backedge.graphs.plan import Operator
from backedge.graphs.task_errors import MisuseError, show

_NAME = "checked"
_ATTEMPTS = 5
_TASKS_MAX = 4
_AT_ONCE_MAX = 4
_SILENCE_S = 60.0
"""How long a source may give nothing although records are missing."""

_PLAIN = (type(None), bool, int, float, str, bytes)


def check_source(source: Source[Any], records: Iterable[Any], *, seeds: Iterable[int] = range(20)) -> None:
    """Check that a source gives these records, each once, from wherever a run goes on.

    Raises `ConnectorContractError` for the first rule of docs/extending.md that it breaks. A hundred records will do:
    it is opened at every position. A source without end has to have these records at the moment.

    >>> from backedge import Range
    >>> check_source(Range(10), range(10))
    """
    _SourceCheck(source, list(records)).run(seeds)


class _SourceCheck:
    def __init__(self, source: Source[Any], wanted: list[Any]) -> None:
        self._sent = in_another_process(source)
        self._wanted = wanted
        self._bounded = source.bounded
        self._idle_s = source.idle_s
        self._shares = source.shares_records

    def run(self, seeds: Iterable[int]) -> None:
        listed, again = self._listed(), self._listed()
        if listed != again:
            raise broken(
                f"it lists its splits as {show(listed)} and then as {show(again)}, though its input is the same"
            )
        for parallelism, at_once_max in ((1, 1), (3, _AT_ONCE_MAX)):
            self._check_positions(self._begin(parallelism), at_once_max)
        for seed in seeds:
            self._check_schedule(seed)

    def _opened(self) -> Source[Any]:
        """The source as another process has it."""
        return pickle.loads(self._sent)

    def _listed(self) -> tuple[str, ...] | None:
        """Its splits; of a source that looks for them, those of the first look."""
        source = Operator(_NAME, Read(self._opened()))
        listed = list_splits(source)
        if source.function.look_s is None:
            return listed
        find = finder_of(source)
        found = find(())
        if not found.is_last:
            find(found.new)
        return tuple(found.new)

    def _begin(self, parallelism: int) -> dict[str, Any]:
        """The first position of each split of a run with this many tasks."""
        source, listed = self._opened(), self._listed()
        shares = (positions_of(source, index, parallelism, listed) for index in range(parallelism))
        return {split: position for share in shares for split, position in share.items()}

    def _check_positions(self, begin: dict[str, Any], at_once_max: int) -> None:
        """Each position that is found while each split is read on its own is one to go on from."""
        chance = Random(at_once_max)
        records: dict[str, list[Any]] = {split: [] for split in begin}
        # The positions of each split, with the number of records before them.
        places: dict[str, list[tuple[Any, int]]] = {split: [(_carried(at), 0)] for split, at in begin.items()}
        readers = {split: SourceReader(_NAME, self._opened(), {split: at}) for split, at in begin.items()}
        for split, found in self._read(readers, len(self._wanted), chance, at_once_max):
            records[split] += found
            places[split].append((_carried(readers[split].positions()[split]), len(records[split])))
        self._compare([record for of in records.values() for record in of], "read from the beginning")
        for split, its_places in places.items():
            for position, before in its_places:
                check = self._check_rest if before or self._shares else self._check_objects
                check(split, position, records[split][before:], chance)

    def _check_rest(self, split: str, position: Any, rest: list[Any], chance: Random) -> tuple[Source[Any], list[Any]]:
        source = self._opened()
        where = f"split {split!r} at position {show(position)}"
        if rest and source.is_read(split, position):
            raise broken(f"is_read says that nothing is left of {where}, where {len(rest)} records follow")
        found = self._all(SourceReader(_NAME, source, {split: position}), len(rest), chance)
        if countable(found) != countable(rest):
            raise broken(
                f"{where} is followed by other records when it is opened again: {show(found)} in place of {show(rest)}"
            )
        return source, found

    def _check_objects(self, split: str, position: Any, rest: list[Any], chance: Random) -> None:
        """One source that is read twice gives objects of their own."""
        source, found = self._check_rest(split, position, rest, chance)
        again = self._all(SourceReader(_NAME, source, {split: position}), len(rest), chance)
        if any(one is other and isinstance(one, list | dict | set) for one, other in zip(found, again, strict=False)):
            raise broken(
                f"split {split!r} gives the same objects again, which operators may have changed: read new ones, or "
                "set shares_records = True"
            )

    def _check_schedule(self, seed: int) -> None:
        """A run of several attempts, of which each has another number of tasks."""
        chance = Random(seed)
        cut, in_cut, story = self._begin(chance.randint(1, _TASKS_MAX)), list[Any](), list[str]()
        for attempt in range(1, _ATTEMPTS + 1):
            readers = self._tasks(cut, chance)
            records = list(in_cut)
            story.append(f"attempt {attempt} with {len(readers)} tasks goes on from {show(cut)}")
            for _ in range(chance.randrange(3 * len(readers) + 1)):
                task = chance.randrange(len(readers))
                found = _records(readers[task], chance.randint(1, _AT_ONCE_MAX))
                records += found
                story.append(f"task {task} reads {show(found)}")
                if chance.random() < 0.4:
                    cut = {split: _carried(at) for reader in readers for split, at in reader.positions().items()}
                    in_cut = list(records)
                    story.append("a cut is complete")
        readers = dict(enumerate(self._tasks(cut, chance)))
        for _, found in self._read(readers, len(self._wanted) - len(in_cut), chance):
            in_cut += found
        self._compare(in_cut, "read by tasks of which some die", seed, story)

    def _tasks(self, cut: Mapping[str, Any], chance: Random) -> list[SourceReader]:
        splits = chance.sample(sorted(cut), len(cut))
        count = chance.randint(1, _TASKS_MAX)
        shares = ({split: cut[split] for split in splits[index::count]} for index in range(count))
        return [SourceReader(_NAME, self._opened(), share) for share in shares]

    def _all(self, reader: SourceReader, count: int, chance: Random) -> list[Any]:
        return [record for _, found in self._read({0: reader}, count, chance) for record in found]

    def _read(
        self, readers: Mapping[Any, SourceReader], count: int, chance: Random, at_once_max: int = _AT_ONCE_MAX
    ) -> Iterator[tuple[Any, list[Any]]]:
        """Read in turn to the end; of a source without end, `count` records."""
        silent_until = time.monotonic() + _SILENCE_S
        got = 0
        while any(not reader.exhausted for reader in readers.values()) and (self._bounded or got < count):
            is_silent = True
            for key, reader in readers.items():
                if found := _records(reader, chance.randint(1, at_once_max)):
                    is_silent = False
                    got += len(found)
                yield key, found
            if not is_silent:
                silent_until = time.monotonic() + _SILENCE_S
            elif time.monotonic() > silent_until:
                raise broken(f"it has given {got} records, then nothing for {_SILENCE_S:.0f} s, and has not ended")
            else:
                time.sleep(self._idle_s)

    def _compare(self, found: list[Any], how: str, seed: int | None = None, story: Iterable[str] = ()) -> None:
        if (fault := unlike(self._wanted, found)) is not None:
            raise broken(f"{how}, it does not give each record once: {fault}", seed, list(story))


def _records(reader: SourceReader, records_max: int) -> list[Any]:
    try:
        found = reader.read(records_max)
    except MisuseError as error:
        raise broken(str(error)) from error
    if len(found) > records_max:
        raise broken(f"it was asked for {records_max} records at most, and gives {len(found)}")
    return as_records(found)


def _carried(position: Any) -> Any:
    """A position as a cut carries it to another process."""
    if not _is_plain(position):
        raise broken(f"position {show(position)} is no plain value: give a number, text, or a tuple or dict of these")
    return pickle.loads(pickle.dumps(position))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, cast("dict[Any, Any]", value).items()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, cast("tuple[Any, ...]", value)))
    return type(value) in _PLAIN

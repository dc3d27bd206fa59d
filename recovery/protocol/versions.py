"""Which versions an attempt may read (rule 17), and which of them a publishing task keeps. Pure.

- Versions have the numbers 1, 2, 3... and are published by one task. Its state holds the last `keep` of them, so a cut
  names the versions that its records may ask for: what they carry was sent before the task captured its state.
- An attempt begins with the versions of the cut that it restores, and publishes under the numbers that follow. A number
  that the attempt before has published, too, may stand for another value, because a program may be random. So nothing
  of an earlier attempt can be read: neither what it has published, nor copies that its processes have made.
- The directory knows the versions of the cut, and which task publishes. That task knows what it has published and keeps
  (`Shelf`), so nobody else is asked for it. The directory has its name before it returns the first number.
- A version can be read before its number is returned, so no record can be ahead of what it names.
- The memory of a version is used for another one as soon as nobody holds it: not the task, which keeps the version; no
  cut that is being written; and no function that has its arrays, for however long.
- A file is written once, by the first capture that holds the version, and later cuts name that file. Its name has the
  attempt, the name and the number, so it is written for nothing else: a removal that is carried out late cannot hit it.
- The last `keep` versions stay in memory. A file is removed with the last cut that names it (`CutRemover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, Protocol, TypeVar

from backedge.graphs.ids import Attempt

Where = TypeVar("Where")
"""Where a version of the cut is: its bytes, a reference to them, or the file that holds them."""

Who = TypeVar("Who")
"""A task that publishes: whatever it takes to ask it for a version."""

Name = tuple[str, int]
"""The name of the versions, and the number of one."""


class Found(NamedTuple, Generic[Where, Who]):
    """The answer to a question for a version.

    - where: where it is, if it is one of the cut. kept: the numbers of those.
    - publisher: the task that publishes in this attempt, if any has. It knows which versions are kept since then.
    """

    where: Where | None
    kept: tuple[int, ...]
    publisher: Who | None = None


def are_kept(numbers: Iterable[int], keep: int) -> list[int]:
    """The numbers of the versions that are kept.

    >>> are_kept([1, 2, 3, 4, 5], 3)
    [3, 4, 5]
    """
    return sorted(numbers)[-keep:]


class PublishedTwiceError(ValueError):
    """Two tasks publish versions of one name."""


class Memory(Protocol):
    """Memory that holds the bytes of one version at a time."""

    @property
    def size(self) -> int: ...

    def take(self) -> bool:
        """Take it for another version. False if somebody holds what is in it."""
        ...


AnyMemory = TypeVar("AnyMemory", bound=Memory)


class Shelf(Generic[AnyMemory]):
    """The versions of one name that a task publishes in one attempt, each in memory of its own.

    - kept: the numbers of those that the task keeps. Those that it has not published itself are of the cut.
    """

    def __init__(self, keep: int) -> None:
        self.kept: tuple[int, ...] = ()
        self._keep = keep
        self._at: dict[int, AnyMemory] = {}
        # All memory, in the order in which it was last filled.
        self._memory: list[AnyMemory] = []

    def room(self, size: int) -> AnyMemory | None:
        """Memory of this size that nobody holds; None if there is none.

        What was filled last is best: it may still be in a cache. Some is left for the versions of a cut that is being
        written. What is of no use beyond that is given up.
        """
        found = None
        for memory in (*self._memory[: -self._keep][::-1], *self._memory[-self._keep :]):
            is_spare = memory.size != size or len(self._memory) > 2 * self._keep + 1
            if (found is None or is_spare) and self.may_take(memory):
                self._memory.remove(memory)
                if found is None and memory.size == size:
                    found = memory
        return found

    def may_take(self, memory: AnyMemory) -> bool:
        """Take memory for another version, if nobody holds it."""
        return memory.take()

    def put(self, number: int, memory: AnyMemory, kept: Iterable[int]) -> None:
        """A version is in this memory. `kept`: the numbers that the task has kept until now."""
        if number <= max(self.kept, default=0):
            raise PublishedTwiceError
        self.kept = tuple(are_kept({*kept, number}, self._keep))
        self._memory.append(memory)
        self._at[number] = memory
        for gone in [each for each in self._at if each < self.kept[0]]:
            del self._at[gone]

    def find(self, number: int) -> AnyMemory | None:
        """The memory of a version that the task has published and keeps."""
        return self._at.get(number)


class VersionDirectory(Generic[Where, Who]):
    """Where the versions of the current attempt are."""

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self._restored: dict[str, dict[int, Where]] = {}
        self._publishers: dict[str, Who] = {}

    def begin(self, attempt: Attempt, restored: Mapping[Name, Where]) -> None:
        """An attempt begins with the versions of the cut that it restores. Those of the former one are forgotten."""
        versions: dict[str, dict[int, Where]] = {}
        for (of, number), where in restored.items():
            versions.setdefault(of, {})[number] = where
        self.attempt, self._restored, self._publishers = attempt, versions, {}

    def publishes(self, attempt: Attempt, name: Name, publisher: Who) -> bool:
        """A task is about to publish its first version. False if its attempt is over."""
        if attempt != self.attempt:
            return False
        if self._publishers.setdefault(name[0], publisher) != publisher:
            raise PublishedTwiceError
        return True

    def loaded(self, attempt: Attempt, name: Name, read: Where, where: Where) -> Found[Where, Who] | None:
        """A process has read a version from where it was found, and others find it there now. The first one counts."""
        versions = self._restored.get(name[0], {})
        if attempt == self.attempt and versions.get(name[1]) == read:
            versions[name[1]] = where
        return self.find(attempt, name)

    def find(self, attempt: Attempt, name: Name) -> Found[Where, Who] | None:
        """Where a version is; None if the attempt is over."""
        if attempt != self.attempt:
            return None
        versions = self._restored.get(name[0], {})
        return Found(versions.get(name[1]), tuple(versions), self._publishers.get(name[0]))

"""Which versions an attempt may read (rule 17), and which of them a publishing task keeps. Pure.

- Versions have the numbers 1, 2, 3... and are published by one task. Its state holds the last `keep` of them, so a cut
  names the versions that its records may ask for: what they carry was sent before the task captured its state.
- An attempt begins with the versions of the cut that it restores, and publishes under the numbers that follow. A number
  that the attempt before has published, too, may stand for another value, because a program may be random. So nothing
  of an earlier attempt can be read: neither what it has published, nor copies that its processes have made.
- A version can be read before its number is returned, so no record can be ahead of what it names.
- A file is written once, by the first capture that holds the version, and later cuts name that file. Its name has the
  attempt, the name and the number, so it is written for nothing else: a removal that is carried out late cannot hit it.
- The last `keep` versions stay in memory. A file is removed with the last cut that names it (`CutRemover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, NamedTuple, TypeVar

from backedge.graphs.ids import Attempt

Where = TypeVar("Where")
"""Where a version is: its bytes, a reference to them, or the file that holds them."""

Name = tuple[str, int]
"""The name of the versions, and the number of one."""


class Found(NamedTuple, Generic[Where]):
    """The answer to a question for a version: where it is, if it is kept, and the numbers of those that are."""

    where: Where | None
    kept: tuple[int, ...]


def are_kept(numbers: Iterable[int], keep: int) -> list[int]:
    """The numbers of the versions that are kept.

    >>> are_kept([1, 2, 3, 4, 5], 3)
    [3, 4, 5]
    """
    return sorted(numbers)[-keep:]


class PublishedTwiceError(ValueError):
    """Two tasks have published under the same number."""


class VersionDirectory(Generic[Where]):
    """Where the versions of the current attempt are."""

    def __init__(self) -> None:
        self.attempt: Attempt | None = None
        self._versions: dict[str, dict[int, Where]] = {}

    def begin(self, attempt: Attempt, restored: Mapping[Name, Where]) -> None:
        """An attempt begins with the versions of the cut that it restores. Those of the former one are forgotten."""
        versions: dict[str, dict[int, Where]] = {}
        for (of, number), where in restored.items():
            versions.setdefault(of, {})[number] = where
        self.attempt, self._versions = attempt, versions

    def publish(self, attempt: Attempt, name: Name, keep: int, where: Where) -> bool:
        """A task has published a version, and keeps the last `keep`. False if its attempt is over."""
        if attempt != self.attempt:
            return False
        of, number = name
        versions = self._versions.setdefault(of, {})
        if number <= max(versions, default=0):
            raise PublishedTwiceError(of, number)
        versions[number] = where
        self._versions[of] = {kept: versions[kept] for kept in are_kept(versions, keep)}
        return True

    def loaded(self, attempt: Attempt, name: Name, read: Where, where: Where) -> Found[Where] | None:
        """A process has read a version from where it was found, and others find it there now. The first one counts."""
        versions = self._versions.get(name[0], {})
        if attempt == self.attempt and versions.get(name[1]) == read:
            versions[name[1]] = where
        return self.find(attempt, name)

    def find(self, attempt: Attempt, name: Name) -> Found[Where] | None:
        """Where a version is; None if the attempt is over."""
        if attempt != self.attempt:
            return None
        versions = self._versions.get(name[0], {})
        return Found(versions.get(name[1]), tuple(versions))

"""What a process operator has published: the versions that its task keeps, which are part of its state (rule 17)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from backedge.engine.batches.constant_bytes import constant_pieces
from backedge.engine.operators.base import Place
from backedge.graphs.ids import Attempt
from backedge.graphs.task_errors import MisuseError, describe, show
from backedge.graphs.versions import Versions, source_of
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import PublishedTwiceError, are_kept
from backedge.recovery.stores.digests import TaskFileHash
from backedge.recovery.stores.names import path_of, version_file


def made_version(
    attempt: Attempt, versions: Versions, number: int, value: Any, kept: Iterable[Version]
) -> tuple[Version, list[memoryview]]:
    """A version to publish, and its bytes in pieces, some of which are the memory of the value.

    If the task keeps one of the same content, both are in one file.
    """
    try:
        pieces = constant_pieces(value)
    except Exception as error:
        raise MisuseError(
            f"ctx.publish: a value for {versions!r} does not pickle ({describe(error)}): make it of arrays, tables and "
            "plain values"
        ) from error
    hashed = TaskFileHash()
    for piece in pieces:
        hashed.update(piece)
    for same in kept:
        if same.digest == hashed.digest:
            return replace(same, number=number), pieces
    file = path_of(version_file(hashed.digest, attempt, versions.name, number))
    return Version(versions.name, number, file, sum(map(len, pieces)), hashed.digest, pieces), pieces


class Published:
    """The versions of one task, by name and number."""

    def __init__(self, place: Place) -> None:
        self._operator = place.operator.name
        self._kept: dict[str, dict[int, Version]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def publish(self, versions: Versions, value: Any) -> int:
        """Publish a value under the next number; return the number."""
        what = f"operator {self._operator!r}: ctx.publish"
        if not isinstance(versions, Versions):  # pyright: ignore[reportUnnecessaryIsInstance]  # not every user checks types
            raise MisuseError(f"{what} got {show(versions)}: give it what flow.versions returns, then the value")
        kept = self._kept.get(versions.name, {})
        number = max(kept, default=0) + 1
        try:
            made = source_of(versions).publish(versions, number, value, list(kept.values()))
        except PublishedTwiceError:
            raise MisuseError(
                f"{what}: another task has published version {number} of {versions.name!r}: let one task publish them, "
                "with parallelism=1 or by one key"
            ) from None
        except LookupError as error:
            raise MisuseError(f"{what}: {error}") from None
        kept[number] = made
        self._kept[versions.name] = {n: kept[n] for n in are_kept(kept, versions.keep)}
        return number

    def captured(self) -> tuple[Version, ...]:
        """The versions that are kept now."""
        return tuple(version for kept in self._kept.values() for version in kept.values())

    def digests(self) -> dict[str, dict[int, str]]:
        """Their digests, by name and number."""
        return {of: {number: version.digest for number, version in kept.items()} for of, kept in self._kept.items()}

    def restore(self, versions: Iterable[Version]) -> None:
        for version in versions:
            self._kept.setdefault(version.of, {})[version.number] = version

"""What a process operator has published: the versions that its task keeps, which are part of its state (rule 17)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from backedge.engine.operators.base import Place
from backedge.graphs.task_errors import MisuseError, show
from backedge.graphs.versions import Versions, source_of
from backedge.recovery.cut.cut import Version
from backedge.recovery.protocol.versions import PublishedTwiceError, are_kept


class Published:
    """The versions of one task, by name and number."""

    def __init__(self, place: Place) -> None:
        self._operator = place.operator.name
        self._kept: dict[str, dict[int, Version]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def publish(self, versions: Versions, value: Any) -> int:
        what = f"operator {self._operator!r}: ctx.publish"
        if not isinstance(versions, Versions):  # pyright: ignore[reportUnnecessaryIsInstance]  # not every user checks types
            raise MisuseError(f"{what} got {show(versions)}: give it what flow.versions returns, then the value")
        kept = self._kept.get(versions.name, {})
        number = max(kept, default=0) + 1
        try:
            made = source_of(versions).publish(versions, number, value, kept)
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

    def numbers(self) -> dict[str, list[int]]:
        return {of: list(kept) for of, kept in self._kept.items()}

    def restore(self, versions: Iterable[Version]) -> None:
        for version in versions:
            self._kept.setdefault(version.of, {})[version.number] = version

"""One test of many cases: thousands of tests that are over at once take longer to collect and to report than to run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

OF_ONE_CASE = {"tmp_path", "monkeypatch", "capsys", "capfd"}
"""Fixtures that all cases of a test would share."""


def every(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each of these cases, given as to `pytest.mark.parametrize`; its failure names the case."""
    of_case = (names,) if isinstance(names, str) else names
    given = [dict(zip(of_case, (case,) if isinstance(names, str) else case, strict=True)) for case in cases]

    def of_all(test: Callable[..., None]) -> Callable[..., None]:
        left = [each for each in signature(test).parameters.values() if each.name not in of_case]
        shared = OF_ONE_CASE & {each.name for each in left}
        if shared or not given:
            raise TypeError(f"{test.__name__}: parametrize it, its cases would share {shared}" if shared else "no case")

        def run(**fixtures: Any) -> None:
            for case in given:
                try:
                    test(**fixtures, **case)
                except BaseException as error:
                    error.add_note(f"{test.__name__}: {case}")
                    raise

        run.__name__, run.__doc__ = test.__name__, test.__doc__
        run.__signature__ = signature(test).replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return of_all


def every_seed(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test with each seed below `count`."""
    return every("seed", range(count))

"""One test of many seeds: thousands of tests that are over at once take longer to collect and to report than to run."""

from __future__ import annotations

from collections.abc import Callable


def every_seed(count: int) -> Callable[[Callable[[int], None]], Callable[[], None]]:
    """Run a test with each seed below `count`; its failure names the seed."""

    def of_all(test: Callable[[int], None]) -> Callable[[], None]:
        def run() -> None:
            for seed in range(count):
                try:
                    test(seed)
                except BaseException as error:
                    error.add_note(f"seed {seed} of {test.__name__}")
                    raise

        run.__doc__ = test.__doc__
        return run

    return of_all

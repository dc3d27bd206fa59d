"""What a refusal is judged by: its type, and what it has to name."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def refuses(error: type[Exception], action: Callable[[], object], *named: str) -> None:
    """The action fails with this error, whose message names all of these; how it puts them is its own business."""
    with pytest.raises(error) as caught:
        action()
    assert type(caught.value) is error
    missing = [name for name in named if name not in str(caught.value)]
    assert not missing, f"{missing} not named in: {caught.value}"

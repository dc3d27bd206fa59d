"""The pages of docs/play, and what is stored in them."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from backedge import Flow
from examples.cyclic import playable

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "play"
FLOWS = {"retries": playable.retries, "mutual": playable.mutual, "rounds": playable.rounds}


def flow_of(name: str) -> Flow:
    """The flow of one of the pages."""
    return FLOWS[name]()


@cache
def page(name: str) -> str:
    """The text of one of the pages."""
    return (FOLDER / f"{name}.html").read_text(encoding="utf-8")


def data_in(text: str) -> dict[str, Any]:
    """What was recorded, from a page."""
    found = re.search(r'<script type="application/json" id="recorded">(.*?)</script>', text, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def frames(data: dict[str, Any], node: int, before: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The sentences and frames of a run from a node on, as the page reads them."""
    found: list[tuple[str, dict[str, Any]]] = []
    frame = before
    while node >= 0:
        node, said, forgets, *changes = data["nodes"][node]
        frame = {} if forgets else dict(frame)
        for key, value in zip(changes[::2], changes[1::2], strict=True):
            if value < 0:
                del frame[data["keys"][key]]
            else:
                frame[data["keys"][key]] = data["values"][value]
        found.append((data["said"][said], frame))
    return found

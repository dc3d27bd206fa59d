"""The generated page follows the code, docs/protocol.md explains every break, and what the pages name exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from backedge.engine.simulation.breaks import BREAKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PROTOCOL = (ROOT / "docs/protocol.md").read_text()
COPIED = ("graphs", "recovery", "engine", "backedge", "proof", "docs", "scripts")


@pytest.mark.slow
def test_what_is_generated_follows_the_code():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/generated_pages.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_rule_that_can_be_broken_is_told_with_what_follows():
    rules = re.findall(r"^- ((?:`[\w-]+`(?:, )?)+)", PROTOCOL, flags=re.MULTILINE)
    told = {name for names in rules for name in re.findall(r"`([\w-]+)`", names)}
    assert told == set(BREAKS)


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/protocol.md", "docs/on_ray.md", "docs/evidence.md"])
def test_every_file_that_a_page_names_exists(page: str):
    assert _missing_files((ROOT / page).read_text()) == []


def test_every_symbol_that_the_index_of_questions_names_is_in_its_file():
    rows = [line for line in PAGE.splitlines() if re.match(r"\| [^|]+\? \|", line)]
    named = [pair for row in rows for pair in _symbols(row)]
    assert {"Sink", "ChannelLogs", "RemoteChannel.send", "Coordinator.on_manifest_written"} <= {s for s, _ in named}
    assert [pair for pair in named if not _is_defined(*pair)] == []
    assert not _is_defined("RemoteChannel.spend", "engine/task/channel_ends.py")


def _missing_files(page: str) -> list[str]:
    names = re.findall(r"`([\w./]+\.py)`", page)
    known = {file.name for layer in (*COPIED, "bench") for file in (ROOT / layer).rglob("*.py")}
    return [name for name in names if not ((ROOT / name).exists() if "/" in name else name in known)]


def _symbols(row: str) -> list[tuple[str, str]]:
    """The pairs of a row: `Symbol` in `path/of/file.py`."""
    return re.findall(r"`([A-Za-z_.]+)` in `([\w./]+\.py)`", row)


def _is_defined(symbol: str, path: str) -> bool:
    """Whether the file defines the class, method, function or constant."""
    body = ast.parse((ROOT / path).read_text()).body
    for name in symbol.split("."):
        found = [node for node in body if name in _defined_by(node)]
        if not found:
            return False
        body = found[0].body if isinstance(found[0], ast.ClassDef) else []
    return True


def _defined_by(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]

"""docs/files.md follows the docstrings, and ARCHITECTURE.md explains every rule that can be broken."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from engine.simulation.breaks import BREAKS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
COPIED = ("graphs", "recovery", "engine", "backedge", "proof", "docs", "scripts")


def test_the_list_of_files_is_what_the_docstrings_say():
    done = subprocess.run([sys.executable, ROOT / "scripts/file_map.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_docstring_that_changed_is_noticed(tmp_path: Path):
    project = tmp_path / "project"
    shutil.copytree(
        ROOT, project, ignore=lambda folder, names: [n for n in names if n not in COPIED] if folder == str(ROOT) else []
    )
    module = project / "graphs" / "ids.py"
    module.write_text(module.read_text().replace('"""', '"""Other words. ', 1))
    done = subprocess.run([sys.executable, project / "scripts/file_map.py", "--check"], capture_output=True, text=True)
    assert (done.returncode, "make map" in done.stderr) == (1, True)


def test_every_rule_that_can_be_broken_is_told_with_what_follows():
    rules = re.findall(r"^ +- ((?:`[\w-]+`(?:, )?)+)", PAGE, flags=re.MULTILINE)
    told = {name for names in rules for name in re.findall(r"`([\w-]+)`", names)}
    assert told == set(BREAKS)

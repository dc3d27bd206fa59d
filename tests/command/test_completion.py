"""`backedge completion`: what the shells make of its scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from backedge.command import main

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
asked=$(complete -p backedge | sed 's/.*-F \\([^ ]*\\).*/\\1/')
"$asked" backedge "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash_completes_commands_their_flags_choices_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "backedge.bash"
    file.write_text(script("bash", capsys))
    (tmp_path / "cuts-of-today").mkdir()

    def completed(*words: str) -> list[str]:
        asked = ["bash", "--norc", "-c", ASK, "bash", str(file), "backedge", *words]
        return subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()

    assert {"status", "state", "stop"} <= set(completed("st"))
    assert completed("snapshots", "de") == ["delete"]
    assert "--operator" in completed("logs", "--o")
    assert completed("graph", "m:f", "--format", "mer") == ["mermaid"]
    assert [name.rstrip("/") for name in completed("status", "shop", "--snapshots", "cuts")] == ["cuts-of-today"]


def test_without_its_package_the_extra_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    assert "pip install 'backedge[completion]'" in capsys.readouterr().err

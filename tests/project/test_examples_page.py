"""The page of the examples says what is in their files."""

from __future__ import annotations

import subprocess
import sys

import pytest

from examples.cyclic import page
from examples.cyclic.page import ENTRIES, FOLDER, SMALLER

APPARATUS = {"__main__", "command_line", "demo", "loopback", "model_server", "page", "playable", "small_web"}


def test_the_page_is_what_its_examples_say_of_themselves():
    written = (FOLDER / "README.md").read_text()
    assert written == page.page(), "an example has changed: run python -m examples.cyclic.page"


def test_every_example_has_its_place_on_the_page():
    files = {file.stem for file in FOLDER.glob("*.py")} - APPARATUS - {"__init__"}
    assert files == {*ENTRIES, *SMALLER}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "page", *SMALLER])
def test_a_program_without_options_says_so_before_it_does_anything(name: str):
    call = [sys.executable, "-m", f"examples.cyclic.{name}", "--bogus"]
    done = subprocess.run(call, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"python -m examples.cyclic.{name}: unrecognized arguments: --bogus; --help lists all options\n"
    )

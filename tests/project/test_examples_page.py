"""The page of the examples says what is in their files."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from examples.cyclic import page
from examples.cyclic.page import ENTRIES, FOLDER, SMALLER

APPARATUS = {"__main__", "command_line", "demo", "page"}


def test_the_page_is_what_its_examples_say_of_themselves():
    written = (FOLDER / "README.md").read_text()
    assert written == page.page(), "an example has changed: run python -m examples.cyclic.page"


def test_every_example_has_its_place_on_the_page():
    files = {file.stem for file in FOLDER.glob("*.py")} - APPARATUS - {"__init__"}
    assert files == {*ENTRIES, *SMALLER}


@pytest.mark.parametrize("name", ENTRIES)
def test_an_example_has_a_reference_and_shows_a_person_what_came_of_it(name: str):
    module = import_module(f"examples.cyclic.{name}")
    assert callable(module.reference)
    assert callable(module.show)
    assert f"python -m examples.cyclic.{name}" in str(module.__doc__)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["demo", "page", *SMALLER])
def test_a_program_without_options_says_so_before_it_does_anything(name: str):
    call = [sys.executable, "-m", f"examples.cyclic.{name}", "--bogus"]
    done = subprocess.run(call, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"python -m examples.cyclic.{name}: unrecognized arguments: --bogus; --help lists all options\n"
    )

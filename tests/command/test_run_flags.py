"""The flags of `backedge run` and of the examples are the fields of `RunOptions`, with their defaults and texts."""

from __future__ import annotations

import argparse
from dataclasses import fields, replace
from pathlib import Path

import pytest

from backedge import RunOptions, WrongCallError
from backedge.arguments import Parser
from backedge.engine.on_ray.run_options import option_docs
from backedge.run_flags import NO_FLAG, add_run_flags, flag, options_from
from examples.cyclic import transfers
from examples.cyclic.command_line import _parser as parser_of_example

WORDS = {
    "snapshots": ("cuts", "cuts"),
    "every": ("0.25", 0.25),
    "keep": ("7", 7),
    "policy": ("unaligned", "unaligned"),
    "cut_timeout": ("9", 9.0),
    "cut_patience": ("none", None),
    "cut_failures": ("4", 4),
    "cut_pause": ("0", 0.0),
    "cuts_in_progress": ("2", 2),
    "log_bytes": ("500", 500),
    "resume": ("12", 12),
    "replace_output": (None, True),
    "drop": ("count", ("count",)),
    "rename": ("count=counts", {"count": "counts"}),
    "audit": ("final", "final"),
    "parallelism": ("2", 2),
    "actors": ("slice", "slice"),
    "scope": ("job", "job"),
    "placement": ("SPREAD", "SPREAD"),
    "spares": ("0", 0),
    "max_restarts": ("0", 0),
    "restart_window": ("60", 60.0),
    "restart_strategy": ("fixed", "fixed"),
    "restart_pause": ("0.5", 0.5),
    "restart_pause_max": ("5", 5.0),
    "silence_timeout": ("5", 5.0),
    "on_silence": ("restart", "restart"),
    "credit_bytes": ("1000", 1000),
    "loop_bytes": ("0", 0),
    "loop_disk_bytes": ("5", 5),
    "keep_inputs": ("count", ("count",)),
    "seed": ("-3", -3),
    "metrics": ("off", "off"),
    "detached": (None, True),
}
"""Option -> a word on the command line, if it takes one, and the value that it stands for."""


def parser() -> argparse.ArgumentParser:
    made = Parser()
    add_run_flags(made)
    return made


def given(*words: str) -> RunOptions:
    return options_from(parser().parse_args(words))


@pytest.mark.parametrize("made", [parser(), parser_of_example(transfers)])
def test_each_option_has_a_flag_with_its_docstring(made: argparse.ArgumentParser):
    told = {action.dest: action.help or "" for action in made._actions}
    for option in fields(RunOptions):
        if option.name not in NO_FLAG:
            assert told[option.name].startswith(option_docs()[option.name])
    assert "--kill" in made.format_help() and "--key-file" in made.format_help()


def test_without_flags_the_options_have_their_defaults(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("BACKEDGE_KEY", raising=False)
    assert given() == RunOptions()


def test_each_flag_sets_its_option():
    assert {option.name for option in fields(RunOptions)} == WORDS.keys() | set(NO_FLAG)
    for name, (word, value) in WORDS.items():
        words = [flag(name)] if word is None else [flag(name), word]
        found = given(*words, "--snapshots", "cuts")
        assert found == replace(RunOptions(snapshots="cuts"), **{name: value})
        assert type(getattr(found, name)) is type(value)


@pytest.mark.parametrize(
    ("name", "word", "fix"),
    [
        ("every", "often", "'often': give seconds, at least 0.001"),
        ("keep", "0", "'0': give an integer of at least 1"),
        ("keep", "²", "give an integer of at least 1"),
        ("resume", "soon", "'soon': give 'latest', 'never' or the number of a cut"),
        ("policy", "lazy", "'lazy': give one of 'aligned', 'unaligned'"),
    ],
)
def test_a_word_that_an_option_does_not_take_is_refused_with_one_that_it_takes(
    name: str, word: str, fix: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        given(flag(name), word)
    said = capsys.readouterr().err
    assert f"argument {flag(name)}: " in said and fix in said


def test_a_key_comes_from_its_file(tmp_path: Path):
    (tmp_path / "key").write_bytes(b"a secret of 22 bytes..\n")
    found = given("--key-file", str(tmp_path / "key"), "--snapshots", "cuts")
    assert found.key == b"a secret of 22 bytes.."
    with pytest.raises(WrongCallError, match="name their folder with --snapshots"):
        given("--key-file", str(tmp_path / "key"))

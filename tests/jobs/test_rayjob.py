"""deploy/rayjob.yaml fits KubeRay's CustomResourceDefinition, and its command is one that `backedge` takes."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import jsonschema
import yaml

from backedge.command import _parser

SCHEMA = json.loads((Path(__file__).parent / "rayjob_schema.json").read_text())
FILE = Path(__file__).resolve().parents[2] / "deploy" / "rayjob.yaml"


def rayjob() -> dict[str, Any]:
    return cast(Any, yaml).safe_load(FILE.read_text())


def check(job: dict[str, Any]) -> None:
    cast(Any, jsonschema).validate(job, SCHEMA)


def test_the_file_fits_the_schema():
    check(rayjob())


def test_a_repetition_continues_the_run_with_the_ray_that_is_tested():
    spec = rayjob()["spec"]
    program, *words = shlex.split(spec["entrypoint"])
    given = _parser().parse_args(words)
    assert (program, given.command, given.resume) == ("backedge", "run", "latest")
    assert given.snapshots.startswith("file:///") and spec["backoffLimit"] > 0
    assert spec["rayClusterSpec"]["rayVersion"] == version("ray")

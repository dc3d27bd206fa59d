"""deploy/rayjob.yaml fits KubeRay's CustomResourceDefinition, and its command is one that `backedge` takes."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest
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


@pytest.mark.parametrize("wrong", [{"backofLimit": 1}, {"backoffLimit": "ten"}, {"submissionMode": 3}])
def test_a_field_that_is_misspelt_or_of_another_type_is_found(wrong: dict[str, Any]):
    job = rayjob()
    job["spec"] |= wrong
    with pytest.raises(jsonschema.ValidationError):
        check(job)


def test_a_pod_without_containers_is_found():
    job = rayjob()
    del job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    with pytest.raises(jsonschema.ValidationError, match="containers"):
        check(job)


def test_a_repetition_continues_the_run_with_the_ray_that_is_tested():
    spec = rayjob()["spec"]
    program, *words = shlex.split(spec["entrypoint"])
    given = _parser().parse_args(words)
    assert (program, given.command, given.resume) == ("backedge", "run", "latest")
    assert given.snapshots.startswith("file:///") and spec["backoffLimit"] > 0
    assert spec["rayClusterSpec"]["rayVersion"] == version("ray")

"""Between two hosts connections break again and again: each time the attempt fails, and every record counts once."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gates import HANG_S
from tests.on_ray.two_hosts import BREAKS, HERE, THERE, find_tools

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_loop_between_two_hosts_ends_exactly_though_connections_break(tmp_path: Path):
    find_tools()
    namespaces = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    given = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    ray_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    command = [*namespaces, sys.executable, "-m", "tests.on_ray.two_hosts", str(tmp_path)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**given, **ray_token}, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert said["nodes"] == [HERE, THERE]
    assert said["connections"] >= 2 * BREAKS, "connections were there, and broke"
    assert said["restores"] >= BREAKS, "each break fails the attempt"
    assert said["state"] == "finished" and said["is_exact"]

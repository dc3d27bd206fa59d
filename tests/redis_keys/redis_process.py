"""A Redis server of the tests, in a folder of its own, on a Unix socket."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Self

import redis

from tests.gates import HANG_S, wait_for

SETTINGS = {"port": "0", "unixsocket": "socket", "appendonly": "yes", "appendfsync": "always", "save": "''"}


class RedisProcess:
    """One server. What it has acknowledged is there when it is started again."""

    def __init__(self) -> None:
        if shutil.which("redis-server") is None:
            raise FileNotFoundError(
                "these tests start a Redis server of their own, and there is no redis-server: make setup installs it "
                "by apt as root; otherwise: sudo apt-get install redis-server (macOS: brew install redis)"
            )
        self.folder = Path(tempfile.mkdtemp(prefix="redis-", dir="/tmp"))
        self.url = f"unix://{self.folder}/socket"
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.client.close()
        self.kill()
        shutil.rmtree(self.folder)

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = [part for name, value in SETTINGS.items() for part in (f"--{name}", value)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["redis-server", *options], cwd=self.folder, stdout=log, stderr=log)
        self.client: Any = redis.Redis.from_url(self.url, decode_responses=True)
        wait_for(self._answers, f"Redis starts, see {self.folder / 'log'}")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(HANG_S)

    def _answers(self) -> bool:
        try:
            return self.client.ping()
        except redis.exceptions.ConnectionError:
            return False

"""A PostgreSQL server of the tests: in a folder of its own, on a Unix socket, as a user that is not root."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psycopg

from tests.gates import HANG_S, wait_for

USER = "nobody"
SETTINGS = {
    "listen_addresses": "''",
    # Processes die here, and never the system: what is written is in its memory.
    "fsync": "off",
    "max_prepared_transactions": "64",
}


def programs() -> Path:
    """The folder of initdb and postgres."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[4].split(".")[0]))
    on_path = shutil.which("initdb")
    if not found and on_path is None:
        raise FileNotFoundError(
            "these tests start a PostgreSQL server of their own, and there is no initdb: make setup installs it by apt "
            "as root; otherwise: sudo apt-get install postgresql (macOS: brew install postgresql)"
        )
    return found[-1].parent if found else Path(on_path or "").resolve().parent


class PostgresProcess:
    """One server. `pid` is its postmaster, from which all of its processes come."""

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        # Ctrl-C is meant for who has started it.
        self._as_user: dict[str, Any] = {"cwd": self.folder, "start_new_session": True}
        if os.geteuid() == 0:
            account = pwd.getpwnam(USER)
            os.chown(self.folder, account.pw_uid, account.pw_gid)
            self._as_user |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        self._data = self.folder / "data"
        self._run("initdb", "-D", str(self._data), "-A", "trust", "-U", "tests", "-N", "-E", "UTF8", "--locale=C")
        known = SETTINGS | {"unix_socket_directories": f"'{self.folder}'"} | settings
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in known.items())
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.start()

    @property
    def dsn(self) -> str:
        return f"host={self.folder} user=tests dbname=postgres"

    @property
    def socket(self) -> str:
        return str(self.folder / ".s.PGSQL.5432")

    def start(self) -> None:
        """Start it and wait until it answers; again as long as processes of a killed one are about to go."""

        def answers() -> bool:
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    command = [str(programs() / "postgres"), "-D", str(self._data)]
                    self._process = subprocess.Popen(command, stdout=log, stderr=log, **self._as_user)
            return self._answers()

        wait_for(answers, f"PostgreSQL starts, see {self.folder / 'log'}")
        self.starts += 1

    def kill(self) -> None:
        """SIGKILL to its postmaster; its other processes find out, and go."""
        self._end(signal.SIGKILL)

    def shut_down_at_once(self) -> None:
        """An immediate shutdown: nothing is finished, nothing is written."""
        self._end(signal.SIGQUIT)

    def remove(self) -> None:
        self._end(signal.SIGINT)
        shutil.rmtree(self.folder)

    def _end(self, number: int) -> None:
        if self._process is None or self._process.poll() is not None:
            raise ProcessLookupError("this server is not running: nothing was killed")
        self._process.send_signal(number)
        self._process.wait(HANG_S)

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def prepared(self) -> list[str]:
        return sorted(gid for (gid,) in self.execute("SELECT gid FROM pg_prepared_xacts"))

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        ran = subprocess.run([str(programs() / program), *arguments], capture_output=True, text=True, **self._as_user)
        if ran.returncode != 0:
            raise RuntimeError(f"{program} failed:\n{ran.stderr}")

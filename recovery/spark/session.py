"""Spark sessions: on this machine unless somebody says otherwise, by argument or as Spark users do.

In this order: `remote` and `master`, the variables SPARK_REMOTE and MASTER, PYSPARK_SUBMIT_ARGS, spark-defaults.conf
(in SPARK_CONF_DIR, or in SPARK_HOME/conf), and this machine. A session that is there already is reused.

On this machine nothing listens but on the loopback, nothing is left in the folder that one works in, and Spark is
quiet; what the user's own settings say goes first. Opened and closed are counted: the last to close a session ends it,
and its Java process. One that others started is left alone.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import tempfile
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from recovery.spark.errors import SparkJobError
from recovery.spark.gateway import end_gateway, start_gateway
from recovery.spark.java import check_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PACKAGES = {"pandas": "pandas", "grpc": "grpcio", "grpc_status": "grpcio-status", "zstandard": "zstandard"}
"""What PySpark imports to connect to a server, and what installs it."""

_lock = Lock()


@dataclass
class _Opened:
    """The session that was started here, how often it has been opened, and its Java process if that was started too."""

    session: Any
    count: int
    gateway: Any


_opened: list[_Opened] = []
"""One or none: a process has one session at a time."""


def open_session(name: str = "backedge", *, master: str | None = None, remote: str | None = None) -> SparkSession:
    """The session that is there, or a new one: on this machine, a cluster (`master`), or a Connect server (`remote`).

    `close_session` goes with each call.
    """
    with _lock:
        found = _active()
        ours = next((opened for opened in _opened if opened.session is found), None)
        if ours is not None:
            ours.count += 1
        if found is not None:
            return found
        remote = remote or (os.environ.get("SPARK_REMOTE") if master is None else None)
        opened = _connect(name, remote) if remote else _start(name, master or os.environ.get("MASTER"))
        _opened[:] = [opened]
        _hush()
        return opened.session


def close_session(spark: SparkSession) -> None:
    """Ends a session when the last who opened it closes it, and leaves no Java process."""
    with _lock:
        ours = next((opened for opened in _opened if opened.session is spark), None)
        if ours is None:
            return
        ours.count -= 1
        if ours.count:
            return
        _opened.clear()
        spark.stop()
        if ours.gateway is not None:
            _forget_gateway()
            end_gateway(ours.gateway)


def is_local(spark: SparkSession) -> bool:
    """Whether the session's tasks run in processes of this machine, with the Python that runs here."""
    return (spark.conf.get("spark.master", None) or "").startswith("local") and hasattr(spark, "_jvm")


def user_settings() -> dict[str, str]:
    """What spark-defaults.conf and PYSPARK_SUBMIT_ARGS say, the latter before the former."""
    found = _defaults_file()
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for word, following in pairwise([*words, ""]):
        option, _, value = word.partition("=")
        if option == "--master":
            found["spark.master"] = value or following
        elif word == "--conf" or word.startswith("--conf="):
            key, _, value = (value or following).partition("=")
            found[key] = value
    return found


def _defaults_file() -> dict[str, str]:
    folder = os.environ.get("SPARK_CONF_DIR") or os.path.join(os.environ.get("SPARK_HOME", ""), "conf")
    try:
        lines = Path(folder, "spark-defaults.conf").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.replace("=", " ", 1).split(maxsplit=1) for line in lines if not line.lstrip().startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def local_settings() -> dict[str, str]:
    """What suits a Spark on one machine that somebody else's program has started."""
    temporary = tempfile.gettempdir()
    ours = Path(__file__).resolve().parents[2]
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        # An audit is over before the second compiler of Java has paid for itself (measured: half the CPU time without).
        "spark.driver.extraJavaOptions": f'{_QUICK_JAVA} -XX:-UsePerfData "-Djava.io.tmpdir={temporary}"',
        # An error comes back as one; the log would only tell it again, with its trace.
        "spark.log.level": "FATAL",
        "spark.local.dir": temporary,
        "spark.executorEnv.PYTHONPATH": str(ours),
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.warehouse.dir": os.path.join(temporary, "spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

_EVERYWHERE = {
    # Batches of a loop log may be large, and thousands of them go to Python at once.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def _active() -> Any:
    """The session of this process, if there is one: ours in every thread alike."""
    if "pyspark.sql" not in sys.modules:
        return None
    session: Any = import_module("pyspark.sql").SparkSession
    context = import_module("pyspark").SparkContext._active_spark_context
    if context is None:
        return session.getActiveSession()
    if _opened and getattr(_opened[0].session, "_sc", None) is context:
        return _opened[0].session
    return session.getActiveSession() or session.builder.getOrCreate()


def _start(name: str, master: str | None) -> _Opened:
    theirs = user_settings()
    master = master or theirs.get("spark.master", "local[*]")
    settings = {"spark.app.name": name, **_EVERYWHERE}
    if master.startswith("local"):
        settings |= local_settings()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {key: value for key, value in settings.items() if key not in theirs} | {"spark.master": master}
    pyspark, sql = import_module("pyspark"), import_module("pyspark.sql")
    gateway = None
    if pyspark.SparkContext._gateway is None:
        check_java()
        gateway = start_gateway(settings)
    try:
        # The Java process of a session that was stopped has no settings of ours yet.
        conf = None if gateway else pyspark.SparkConf().setAll(list(settings.items()))
        return _Opened(sql.SparkSession(pyspark.SparkContext(master, gateway=gateway, conf=conf)), 1, gateway)
    except Exception as error:
        if gateway is not None:
            _forget_gateway()
            end_gateway(gateway)
        raise SparkJobError(f"Spark did not start on {master}: {_first_line(error)}") from error


def _hush() -> None:
    """An error of a query comes back as one. That PySpark prints it too, with all its frames, helps nobody."""
    loggers: Any = import_module("pyspark.logger").PySparkLogger
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        loggers.getLogger(name).setLevel(logging.CRITICAL + 1)


def _forget_gateway() -> None:
    context = import_module("pyspark").SparkContext
    context._gateway = context._jvm = None


def _connect(name: str, remote: str) -> _Opened:
    missing = [package for module, package in CONNECT_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise SparkJobError(
            f"a session on {remote} is of Spark Connect, which needs {', '.join(missing)}: pip install "
            "'backedge[connect]', or leave SPARK_REMOTE and remote= away for a Spark on this machine"
        )
    builder: Any = import_module("pyspark.sql").SparkSession.builder
    for key, value in _EVERYWHERE.items():
        builder = builder.config(key, value)
    try:
        return _Opened(builder.appName(name).remote(remote).getOrCreate(), 1, None)
    except Exception as error:
        raise SparkJobError(f"there is no session on {remote}: {_first_line(error)}; is that server up?") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)

"""Spark sessions: on this machine unless somebody says otherwise, by argument or as Spark users do.

In this order: `remote` and `master`, the variables SPARK_REMOTE and MASTER, PYSPARK_SUBMIT_ARGS, spark-defaults.conf
(in SPARK_CONF_DIR, or in SPARK_HOME/conf), and this machine. A session that is there already is reused. What begins
with sc:// is a Connect server, wherever it stands; any other URL is a master, so SPARK_REMOTE=local is this machine.

On this machine nothing listens but on the loopback, nothing is left in the folder that one works in, and Spark is
quiet; what the user's own settings say goes first. Elsewhere tasks are given our packages, and a server that does not
answer is given up after seconds. Opened and closed are counted: the last to close a session ends it, and its Java
process. One that others started is left alone.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeGuard

from recovery.spark.sessions.gateway import end_gateway, start_gateway
from recovery.spark.sessions.java import check_java
from recovery.spark.spark_errors import SparkJobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PACKAGES = {"pandas": "pandas", "grpc": "grpcio", "grpc_status": "grpcio-status", "zstandard": "zstandard"}
"""What PySpark imports to connect to a server, and what installs it."""

_HOME = str(Path(__file__).resolve().parents[3])
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
        url = remote or master or _from_environment()
        opened = _connect(url) if _is_server(url) else _start(name, url)
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
        _end(ours.session, ours.gateway)


@contextmanager
def session_for(name: str, url: str | None = None) -> Generator[SparkSession]:
    """A session for as long as the block lasts. What Spark complains of in it is a `SparkJobError`, in one line."""
    spark = open_session(name, master=url)
    errors: Any = import_module("pyspark.errors")
    java: Any = import_module("py4j.protocol")
    try:
        yield spark
    except (errors.PySparkException, java.Py4JError) as error:
        raise SparkJobError(f"Spark could not do it: {reason_of(error)}") from error
    finally:
        close_session(spark)


def check_start() -> None:
    """Say so if no session could start here, as far as that is known without one: before a long run, say."""
    url = _from_environment()
    if _is_server(url):
        _check_packages(url)
    else:
        check_java()


def is_local(spark: SparkSession) -> bool:
    """Whether the session's tasks run in processes of this machine, with the Python that runs here."""
    # The executors of local-cluster[...] are processes of their own, as those of any cluster.
    return re.match(r"local($|\[)", spark.conf.get("spark.master", None) or "") is not None and hasattr(spark, "_jvm")


def reason_of(error: Exception) -> str:
    """What Spark complains of, in the line that tells most.

    >>> reason_of(ValueError("It failed in a task:\\nTraceback:\\n  File ...\\nKeyError: 'x'\\n SQLSTATE: 38000"))
    "KeyError: 'x'"
    """
    text = str(error).strip()
    if (details := re.search(r'^\s*details = "(.*)"$', text, re.MULTILINE)) is not None:
        return details[1]
    lines = [line for line in text.splitlines() if line.strip()]
    if "Traceback" in text:
        # Of an exception in a task its last line tells what it was; what stands behind is for programs.
        lines = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt|Warning)\b", line)] or lines
        return lines[-1].strip()
    return lines[0].strip() if lines else type(error).__name__


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
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        # An audit is over before the second compiler of Java has paid for itself (measured: half the CPU time without).
        "spark.driver.extraJavaOptions": f'{_QUICK_JAVA} -XX:-UsePerfData "-Djava.io.tmpdir={temporary}"',
        # An error comes back as one; the log would only tell it again, with its trace.
        "spark.log.level": "FATAL",
        "spark.local.dir": temporary,
        # By itself a task looks for modules where one works, first of all: a folder `recovery` there may be anybody's.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([_HOME, *_work_folder()]),
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.warehouse.dir": os.path.join(temporary, "spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _work_folder() -> list[str]:
    """The current folder, if this process finds modules there: then tasks have to, too."""
    return [os.getcwd()] if {"", os.getcwd()} & set(sys.path) else []


# With one compiler alone Java has 48 MB for compiled code, which a long series of queries fills; two have 240 MB.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"

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
    ours: Any = _opened[0].session if _opened else None
    session: Any = import_module("pyspark.sql").SparkSession
    context = import_module("pyspark").SparkContext._active_spark_context
    if context is None:
        is_there = ours is not None and not getattr(ours, "is_stopped", True)
        return ours if is_there else session.getActiveSession()
    if getattr(ours, "_sc", None) is context:
        return ours
    return session.getActiveSession() or session.builder.getOrCreate()


def _from_environment() -> str | None:
    return os.environ.get("SPARK_REMOTE") or os.environ.get("MASTER")


def _is_server(url: str | None) -> TypeGuard[str]:
    return url is not None and url.startswith("sc:")


def _start(name: str, master: str | None) -> _Opened:
    theirs = user_settings()
    master = master or theirs.get("spark.master", "local[*]")
    settings = {"spark.app.name": name, **_EVERYWHERE}
    if master.startswith("local"):
        settings |= local_settings()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {key: value for key, value in settings.items() if key not in theirs} | {"spark.master": master}
    pyspark, sql = import_module("pyspark"), import_module("pyspark.sql")
    # A session on a server that was closed has left it, and functions would go on making expressions for servers.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    gateway = None
    if pyspark.SparkContext._gateway is None:
        check_java()
        gateway = start_gateway(settings)
    try:
        # The Java process of a session that was stopped has no settings of ours yet.
        conf = None if gateway else pyspark.SparkConf().setAll(list(settings.items()))
        session = sql.SparkSession(pyspark.SparkContext(master, gateway=gateway, conf=conf))
        return _supplied(_Opened(session, 1, gateway))
    except Exception as error:
        if gateway is not None:
            _forget_gateway()
            end_gateway(gateway)
        raise SparkJobError(f"Spark did not start on {master}: {reason_of(error)}") from error


def _supplied(opened: _Opened) -> _Opened:
    """The session, with our packages where its tasks run."""
    if not is_local(opened.session):
        import_module("recovery.spark.cut_tables.spark_source").ship(opened.session)
    return opened


def _hush() -> None:
    """An error of a query comes back as one. That PySpark prints it too, with all its frames, helps nobody."""
    loggers: Any = import_module("pyspark.logger").PySparkLogger
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        loggers.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Py4J tells of Ctrl-C, too, by logging to the root.
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _end(session: Any, gateway: Any) -> None:
    # Java may be gone: `ray job stop` ends all processes of a job at once.
    with suppress(OSError, import_module("py4j.protocol").Py4JError):
        session.stop()
    if gateway is not None:
        _forget_gateway()
        end_gateway(gateway)


def _forget_gateway() -> None:
    context = import_module("pyspark").SparkContext
    context._gateway = context._jvm = None


# -- Connect -----------------------------------------------------------------------------------------------------


def _connect(remote: str) -> _Opened:
    _check_packages(remote)
    # The error says it.
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
    session: Any = None
    try:
        with warnings.catch_warnings():
            # PySpark imports pandas, and warns of new ones. Nothing of ours goes through it.
            warnings.simplefilter("ignore", FutureWarning)
            session = import_module("pyspark.sql").SparkSession.builder.remote(remote).getOrCreate()
        # A server that is not there is asked for ten minutes otherwise, here and in every query.
        retries: Any = import_module("pyspark.sql.connect.client.retries")
        session.client.set_retry_policies([retries.DefaultPolicy(max_retries=_RETRIES)])
        for key, value in _EVERYWHERE.items():
            session.conf.set(key, value)
        return _supplied(_Opened(session, 1, None))
    except Exception as error:
        if session is not None:
            session.stop()
        raise SparkJobError(f"there is no session on {remote}: {reason_of(error)}; is that server up?") from error


def _check_packages(remote: str) -> None:
    missing = [package for module, package in CONNECT_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise SparkJobError(
            f"a session on {remote} is of Spark Connect, which needs {', '.join(missing)}: run `pip "
            f"install {' '.join(missing)}`, or leave SPARK_REMOTE and remote= away for a Spark on this machine"
        )


_RETRIES = 4
"""Each waits four times as long as the one before: some seconds in all."""

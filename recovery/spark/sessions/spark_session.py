"""Spark sessions: local by default, or on a cluster or server chosen by argument, variable or Spark's own settings.

The first of these decides: `remote` and `master`, the variables SPARK_REMOTE and MASTER, PYSPARK_SUBMIT_ARGS,
spark-defaults.conf (in SPARK_CONF_DIR or SPARK_HOME/conf), and otherwise this machine. An existing session is reused.
A URL that begins with sc:// is a Connect server; any other URL is a master, so SPARK_REMOTE=local means this machine.

A local Spark listens only on the loopback interface, leaves nothing in the working directory, and is quiet; the user's
own settings override ours. Remote tasks receive our packages, and an unresponsive server is abandoned within seconds.
Sessions are reference-counted: the last `close_session` ends the session and its Java process. A session started by
somebody else is left alone.
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
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeGuard

from backedge.graphs.public import public
from backedge.recovery.spark.sessions.gateway import end_gateway, start_gateway
from backedge.recovery.spark.sessions.java import check_java
from backedge.recovery.spark.spark_errors import SparkJobError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PACKAGES = {"pandas": "pandas", "grpc": "grpcio", "grpc_status": "grpcio-status", "zstandard": "zstandard"}
"""Modules that PySpark imports to connect to a server -> the packages that provide them."""

_HOME = str(Path(__file__).absolute().parents[4])
_lock = Lock()


@dataclass
class _Opened:
    """A session started here, its reference count, and its Java process if that was started too."""

    session: Any
    count: int
    gateway: Any


_opened: list[_Opened] = []
"""Empty or one entry: a process has at most one session."""


@public
def open_session(name: str = "backedge", *, master: str | None = None, remote: str | None = None) -> SparkSession:
    """Return the current session or start one: local, on a cluster (`master`), or on a Connect server (`remote`).

    Each call needs a matching `close_session`.
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


@public
def close_session(spark: SparkSession) -> None:
    """Release a session; the last release ends it and its Java process."""
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
    """A session for the duration of the block. Spark's errors become a one-line `SparkJobError`."""
    spark = open_session(name, master=url)
    try:
        yield spark
    except errors_of_spark() as error:
        raise SparkJobError(f"Spark failed: {reason_of(error)}") from error
    finally:
        close_session(spark)


def errors_of_spark() -> tuple[type[Exception], ...]:
    """What Spark raises, here and in Java. It is imported only where Spark is there anyway."""
    errors: Any = import_module("pyspark.errors")
    java: Any = import_module("py4j.protocol")
    return errors.PySparkException, java.Py4JError


def check_start() -> None:
    """Raise if a session certainly cannot start here. Cheap enough to call before a long run."""
    url = _from_environment()
    if _is_server(url):
        _check_packages(url)
    else:
        check_java()


def is_local(spark: SparkSession) -> bool:
    """Whether the session's tasks run on this machine with this Python."""
    # local-cluster[...] starts separate executor processes, like any cluster.
    return re.match(r"local($|\[)", spark.conf.get("spark.master", None) or "") is not None and hasattr(spark, "_jvm")


def reason_of(error: Exception) -> str:
    """The most telling line of one of Spark's errors.

    >>> reason_of(ValueError("It failed in a task:\\nTraceback:\\n  File ...\\nKeyError: 'x'\\n SQLSTATE: 38000"))
    "KeyError: 'x'"
    """
    text = str(error).strip()
    if (details := re.search(r'^\s*details = "(.*)"$', text, re.MULTILINE)) is not None:
        return details[1]
    lines = [line for line in text.splitlines() if line.strip()]
    if "Traceback" in text:
        # The last line of a task's traceback names the exception; the lines after it are for programs.
        lines = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit|Interrupt|Warning)\b", line)] or lines
        return lines[-1].strip()
    return lines[0].strip() if lines else type(error).__name__


def user_settings() -> dict[str, str]:
    """Settings from spark-defaults.conf and PYSPARK_SUBMIT_ARGS; the latter take precedence."""
    found = _defaults_file()
    try:
        words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    except ValueError as error:
        raise SparkJobError(f"PYSPARK_SUBMIT_ARGS cannot be read ({error}): correct it, or unset it") from error
    for word, following in pairwise([*words, ""]):
        option, _, value = word.partition("=")
        if option == "--master":
            found["spark.master"] = value or following
        elif word == "--conf" or word.startswith("--conf="):
            key, _, value = (value or following).partition("=")
            found[key] = value
    return found


def _defaults_file() -> dict[str, str]:
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    if not folder:
        return {}
    try:
        lines = Path(folder, "spark-defaults.conf").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.replace("=", " ", 1).split(maxsplit=1) for line in lines if not line.lstrip().startswith("#"))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def local_settings() -> dict[str, str]:
    """Settings for a local Spark inside somebody else's program."""
    temporary = tempfile.gettempdir()
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        # An audit ends before Java's second compiler pays off (measured: half the CPU time without it).
        "spark.driver.extraJavaOptions": f'{_QUICK_JAVA} -XX:-UsePerfData "-Djava.io.tmpdir={temporary}"',
        # Errors are raised here; the log would only repeat them with a stack trace.
        "spark.log.level": "FATAL",
        "spark.local.dir": temporary,
        # Noting for each call of a DataFrame where it stands takes a dozen requests to Java; it is always in our code.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # By default a task looks for modules in the working directory first, which may hold a foreign `recovery`.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join([_HOME, *_work_folder()]),
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        "spark.sql.warehouse.dir": os.path.join(temporary, "spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _work_folder() -> list[str]:
    """The working directory, if this process imports modules from it: then tasks must, too."""
    return [os.getcwd()] if {"", os.getcwd()} & set(sys.path) else []


# With only one compiler Java reserves 48 MB for compiled code, which a long series of queries fills; the default for
# two compilers is 240 MB.
_QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"

# PySpark imports pandas, where that is installed, and warns about new versions. We do not use it.
_no_word_of_pandas: Any = partial(warnings.catch_warnings, action="ignore", category=FutureWarning)

_EVERYWHERE = {
    # Batches of a loop log may be large, and by default thousands of them go to Python at once.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 << 20),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}


def _active() -> Any:
    """The current session of this process, if any; our own session in every thread."""
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
    # A closed Connect session leaves this variable behind, which makes functions build expressions for a server.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    gateway = None
    if pyspark.SparkContext._gateway is None:
        check_java()
        gateway = start_gateway(settings)
    try:
        # An existing Java process, left by a stopped session, does not have our settings yet.
        conf = None if gateway else pyspark.SparkConf().setAll(list(settings.items()))
        with _no_word_of_pandas():
            session = sql.SparkSession(pyspark.SparkContext(master, gateway=gateway, conf=conf))
        return _supplied(_Opened(session, 1, gateway))
    except Exception as error:
        if gateway is not None:
            _forget_gateway()
            end_gateway(gateway)
        raise SparkJobError(f"Spark did not start on {master}: {reason_of(error)}") from error


def _supplied(opened: _Opened) -> _Opened:
    """Ship our packages to the session's tasks if they run elsewhere."""
    if not is_local(opened.session):
        import_module("backedge.recovery.spark.cut_tables.spark_source").ship(opened.session)
    return opened


def _hush() -> None:
    """Keep PySpark from logging query errors with all their frames; they are raised anyway."""
    loggers: Any = import_module("pyspark.logger").PySparkLogger
    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        loggers.getLogger(name).setLevel(logging.CRITICAL + 1)
    # Py4J logs Ctrl-C to the root logger.
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


def _end(session: Any, gateway: Any) -> None:
    # Java may already be gone: `ray job stop` ends all processes of a job at once.
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
    # The error that we raise says the same.
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
    session: Any = None
    try:
        with _no_word_of_pandas():
            session = import_module("pyspark.sql").SparkSession.builder.remote(remote).getOrCreate()
        # By default an unreachable server is retried for ten minutes, here and in every query.
        retries: Any = import_module("pyspark.sql.connect.client.retries")
        session.client.set_retry_policies([retries.DefaultPolicy(max_retries=_RETRIES)])
        for key, value in _EVERYWHERE.items():
            session.conf.set(key, value)
        return _supplied(_Opened(session, 1, None))
    except Exception as error:
        if session is not None:
            session.stop()
        raise SparkJobError(f"cannot open a session on {remote}: {reason_of(error)}; is the server running?") from error


def _check_packages(remote: str) -> None:
    missing = [package for module, package in CONNECT_PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise SparkJobError(
            f"a session on {remote} uses Spark Connect, which needs {', '.join(missing)}: run `pip install "
            f"{' '.join(missing)}`, or unset SPARK_REMOTE and remote= to use a local Spark"
        )


_RETRIES = 4
"""Each retry waits four times as long as the previous one: some seconds in total."""

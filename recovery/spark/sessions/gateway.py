"""The Java process of a Spark session: started quietly, and gone when the session is.

Spark and Java say several lines on stderr at every start, whatever is configured. Those are left out. What else comes
is passed on, but what comes while it starts is kept: if that fails, the error says it in one line. If this process is
killed, the end of its pipes ends the other.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from subprocess import TimeoutExpired
from threading import Event, Thread
from typing import Any

from recovery.spark.spark_errors import SparkJobError

_NOISE = (
    "Using incubator modules",
    "Using Spark's default log4j profile",
    "Setting default log level to",
    "To adjust logging level use",
    "Setting Spark log level to",
    " WARN ",
)
_LINES_KEPT = 500
_EXIT_S = 30


def start_gateway(settings: Mapping[str, str]) -> Any:
    """A gateway to a new Java process, to which `spark-submit` gives these settings."""
    conf: Any = import_module("pyspark.conf").SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    launch: Any = import_module("pyspark.java_gateway").launch_gateway
    said: deque[str] = deque(maxlen=_LINES_KEPT)
    started = Event()
    read_end, write_end = os.pipe()
    reader = Thread(target=_pass_on, args=(read_end, said, started), name="spark-stderr", daemon=True)
    reader.start()
    failure: Exception | None = None
    # With it, Spark refuses whoever names a master.
    remote = os.environ.pop("SPARK_REMOTE", None)
    try:
        gateway = launch(conf, {"stderr": write_end})
    except Exception as error:  # noqa: BLE001  # whatever it is, what the process said tells more
        gateway, failure = None, error
    finally:
        os.close(write_end)
        if remote is not None:
            os.environ["SPARK_REMOTE"] = remote
    if failure is not None:
        reader.join(_EXIT_S)
        raise SparkJobError(f"Spark did not start on {settings['spark.master']}: {_reason(said, failure)}") from failure
    started.set()
    return gateway


def end_gateway(gateway: Any) -> None:
    """Ends the Java process, and waits until it is gone."""
    gateway.shutdown()
    process = gateway.proc
    if process is None:
        return
    process.stdin.close()
    try:
        process.wait(_EXIT_S)
    except TimeoutExpired:
        process.kill()
        process.wait()


def _pass_on(read_end: int, said: deque[str], started: Event) -> None:
    with os.fdopen(read_end, errors="replace") as lines:
        for line in lines:
            if any(noise in line for noise in _NOISE):
                continue
            said.append(line)
            # Whoever closed stderr does not want to know.
            with suppress(OSError, ValueError):
                while started.is_set() and said:
                    sys.stderr.write(said.popleft())


def _reason(said: deque[str], failure: Exception) -> str:
    """What tells most in one line: an exception of Spark's, or what came first."""
    lines = [line.strip() for line in said if line.strip()]
    line = next(iter([line for line in lines if "Exception:" in line] + lines), " ".join(str(failure).split()))
    # Who threw it, and in which thread, tells users nothing.
    return re.sub(r'^(Exception in thread "main" )?([\w$]+\.)+\w+(Exception|Error): ', "", line)

"""The Java process of a Spark session: started quietly, and ended with the session.

Spark and Java print several lines to stderr at every start, whatever is configured; these are dropped. Other output is
passed on, except during the start: if that fails, the error quotes the most telling line. If this process is killed,
its closed pipes end the Java process.
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

from backedge.recovery.spark.spark_errors import SparkJobError

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
    """Start a Java process with these settings through `spark-submit`; return its gateway."""
    conf: Any = import_module("pyspark.conf").SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    launch: Any = import_module("pyspark.java_gateway").launch_gateway
    said: deque[str] = deque(maxlen=_LINES_KEPT)
    started = Event()
    read_end, write_end = os.pipe()
    reader = Thread(target=_pass_on, args=(read_end, said, started), name="spark-stderr", daemon=True)
    reader.start()
    failure: Exception | None = None
    # Spark refuses an explicit master while SPARK_REMOTE is set.
    remote = os.environ.pop("SPARK_REMOTE", None)
    try:
        gateway = launch(conf, {"stderr": write_end})
    except Exception as error:  # noqa: BLE001  # the output of the process explains more than the exception
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
    """End the Java process and wait until it is gone."""
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
            # The caller may have closed stderr.
            with suppress(OSError, ValueError):
                while started.is_set() and said:
                    sys.stderr.write(said.popleft())


def _reason(said: deque[str], failure: Exception) -> str:
    """The most telling line: the first exception, or else the first line."""
    lines = [line.strip() for line in said if line.strip()]
    line = next(iter([line for line in lines if "Exception:" in line] + lines), " ".join(str(failure).split()))
    # Drop the thread and the exception class, which mean nothing to users.
    return re.sub(r'^(Exception in thread "main" )?([\w$]+\.)+\w+(Exception|Error): ', "", line)

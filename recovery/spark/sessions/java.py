"""Finds Java where PySpark will look for it: JAVA_HOME if set, else PATH."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from backedge.recovery.spark.spark_errors import JavaError

VERSION_MIN = 17

_FIX = (
    f"install it (Debian and Ubuntu: apt-get install openjdk-{VERSION_MIN}-jre-headless, macOS: brew install "
    f"openjdk@{VERSION_MIN}) or set JAVA_HOME, then try again"
)
_TIMEOUT_S = 30


def check_java() -> None:
    """Raise `JavaError` if Spark cannot start on this machine."""
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if path is None:
        raise JavaError(_message("no java is on PATH, and JAVA_HOME is not set"))
    origin = f"JAVA_HOME is {home}" if home else "found on PATH"
    try:
        answer = subprocess.run([path, "-version"], capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.strerror if isinstance(error, OSError) else type(error).__name__
        raise JavaError(_message(f"{path} does not run ({reason}; {origin})")) from error
    found = version_in(answer.stderr + answer.stdout)
    if found is None:
        raise JavaError(_message(f"{path} does not report its version ({origin})"))
    if found < VERSION_MIN:
        raise JavaError(_message(f"{path} is Java {found} ({origin})"))


def version_in(text: str) -> int | None:
    """The major version in the output of `java -version`; before Java 9 it was the second number.

    >>> version_in('openjdk version "17.0.15" 2025-04-15'), version_in('java version "1.8.0_402"'), version_in("?")
    (17, 8, None)
    """
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match[1]) if match else None


def _message(fact: str) -> str:
    return f"Spark needs Java {VERSION_MIN} or newer, but {fact}: {_FIX}"

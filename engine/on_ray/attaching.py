"""Checks for a Ray cluster at the address in the environment, or at the one that Ray has noted on this machine.

Ray itself tries for minutes to reach an address where nothing listens, and reports every attempt.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping

ANSWER_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 10.0
_PROBE = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1])
except Exception as error:
    print(type(error).__name__)
    sys.exit(1)
"""


class ClusterError(ConnectionError):
    """There is no Ray cluster to run on, or it refuses the connection."""


class TokenRefusedError(ClusterError):
    """The cluster requires a token that this process does not give."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"the Ray cluster at {address} requires its token: set RAY_AUTH_MODE=token, and put the token in "
            "~/.ray/auth_token or RAY_AUTH_TOKEN"
        )


class SeveralClustersError(ClusterError):
    """Several clusters run on this machine, and nothing says which of them is meant."""

    def __init__(self, addresses: Collection[str]) -> None:
        found = sorted(addresses)
        super().__init__(
            f"{len(found)} Rays run on this machine, and `ray start` has noted none of them: name one in RAY_ADDRESS, "
            f"{', '.join(found[:-1])} or {found[-1]}"
        )


def check_unambiguous(
    running: Callable[[], Collection[str]], noted: str | None, environment: Mapping[str, str] = os.environ
) -> None:
    """Raise `SeveralClustersError` if nothing says which of the running clusters is meant: Ray would take any of them.

    >>> check_unambiguous(lambda: {"10.0.0.1:1", "10.0.0.1:2"}, "10.0.0.1:2", {})
    >>> check_unambiguous(lambda: {"10.0.0.1:1"}, None, {})
    """
    if noted is None and (environment.get("RAY_ADDRESS") or "auto") == "auto" and len(found := running()) > 1:
        raise SeveralClustersError(found)


def check_address(environment: Mapping[str, str] = os.environ) -> None:
    """Raise `ClusterError` unless a cluster answers at RAY_ADDRESS, if that names a host and a port.

    >>> check_address({"RAY_ADDRESS": "auto"})
    """
    address = environment.get("RAY_ADDRESS", "")
    host_and_port = _host_and_port(address)
    if host_and_port is None:
        # Ray interprets these: a name such as "auto", a client's address, or one that it refuses at once.
        return
    fix = "start one there, correct RAY_ADDRESS, or unset it to run on a local Ray"
    try:
        socket.create_connection(host_and_port, ANSWER_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster at RAY_ADDRESS={address} ({error}): {fix}") from error
    try:
        # If something else listens there, Ray keeps trying for long, in code that cannot be interrupted.
        probe = [sys.executable, "-c", _PROBE, address]
        found = subprocess.run(probe, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        silent = f"does not answer like a Ray cluster within {PROBE_TIMEOUT_S:.0f} s"
        raise ClusterError(
            f"the process at RAY_ADDRESS={address} {silent}: try again if that machine is busy; or {fix}"
        ) from None
    if found.stdout.strip() == "AuthenticationError":
        raise TokenRefusedError(f"RAY_ADDRESS={address}")
    if found.returncode != 0:
        raise ClusterError(f"RAY_ADDRESS={address} is not a Ray cluster, or has another version: {fix}")


def is_gone(noted: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether nothing listens at the address of a former cluster, noted by `ray start` on this machine.

    The note is not used if RAY_ADDRESS is set.

    >>> is_gone(None, {}), is_gone("127.0.0.1:1", {}), is_gone("127.0.0.1:1", {"RAY_ADDRESS": "local"})
    (False, True, False)
    """
    host_and_port = _host_and_port(noted or "")
    if host_and_port is None or environment.get("RAY_ADDRESS"):
        return False
    try:
        socket.create_connection(host_and_port, ANSWER_TIMEOUT_S).close()
    except OSError:
        return True
    return False


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdecimal()):
        return None
    return host.strip("[]"), int(port)

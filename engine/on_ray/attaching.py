"""Finds the Ray cluster to join: the one at the address in the environment, or one that this user runs on this machine.

Ray itself takes any process for a cluster whose command line looks like one, and any note in a folder that everybody
can write to; then it sends the token there, with which anybody can run code in the cluster. So we search ourselves. We
believe only what this user or root has written or started, and join only if the socket at the address is theirs, too.

Ray also tries for minutes to reach an address where nothing listens, and reports every attempt.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ANSWER_TIMEOUT_S = 5.0
PROBE_TIMEOUT_S = 30.0
_PROBE = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1])
except Exception as error:
    print(type(error).__name__)
    sys.exit(1)
"""
LISTENERS = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENING = "0A"
_FLAG = "--gcs-address="
_NOTE_BYTES_MAX = 256


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


class Started(NamedTuple):
    """A process of this machine: its command line, and the user who has started it."""

    words: tuple[str, ...]
    uid: int


def trusted_users() -> frozenset[int]:
    """The users whose processes and files are taken for this user's own."""
    return frozenset({os.getuid(), 0})


def named_address(environment: Mapping[str, str] = os.environ) -> str | None:
    """The cluster that RAY_ADDRESS names; None if one is to be searched for.

    >>> named_address({"RAY_ADDRESS": "auto"}), named_address({"RAY_ADDRESS": "10.0.0.1:6379"})
    (None, '10.0.0.1:6379')
    """
    address = environment.get("RAY_ADDRESS") or "auto"
    return None if address == "auto" else address


def noted_address(note: str, users: Collection[int]) -> str | None:
    """The address in a note of `ray start`, if one of these users wrote it and a process of theirs listens there."""
    try:
        descriptor = os.open(note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in users or facts.st_mode & stat.S_IWOTH:
            return None
        address = file.read(_NOTE_BYTES_MAX).decode(errors="replace").strip()
    return address if belongs_to(users, address) else None


def address_to_join(noted: str | None, running: Callable[[], Collection[str]]) -> str | None:
    """The noted cluster, or the only one that runs here. Raises `SeveralClustersError` if there are several.

    >>> address_to_join("10.0.0.1:2", lambda: {"10.0.0.1:1", "10.0.0.1:2"})
    '10.0.0.1:2'
    >>> address_to_join(None, lambda: {"10.0.0.1:1"})
    '10.0.0.1:1'
    """
    if noted is not None:
        return noted
    found = running()
    if len(found) > 1:
        raise SeveralClustersError(found)
    return next(iter(found), None)


def running_here(processes: Iterable[Started], users: Collection[int]) -> set[str]:
    """The addresses of the clusters of which these users run a daemon on this machine."""
    found = set[str]()
    for words, uid in processes:
        if uid in users and words and "raylet" in os.path.basename(words[0]):
            # A process that has given itself a title has all its words in one.
            flags = (flag for word in words for flag in word.split(" "))
            found.update(flag.removeprefix(_FLAG) for flag in flags if flag.startswith(_FLAG))
    return {address for address in found if belongs_to(users, address)}


def belongs_to(users: Collection[int], address: str, tables: Collection[str] = LISTENERS) -> bool:
    """Whether this is an address of this machine at whose port only processes of these users listen.

    Where the system has no tables of sockets, as macOS has none, whether anything listens there is all that is known.
    """
    host_and_port = _host_and_port(address)
    if host_and_port is None or not _is_local(host_and_port[0]):
        return False
    there = [Path(table) for table in tables if os.path.exists(table)]
    if not there:
        return _listens(host_and_port)
    owners = {uid for table in there for port, uid in _listeners(table.read_text()) if port == host_and_port[1]}
    return bool(owners) and owners <= set(users)


def _listeners(table: str) -> Iterator[tuple[int, int]]:
    """The port and the owner of each listening socket, from a table of the kernel."""
    for line in table.splitlines()[1:]:
        columns = line.split()
        if columns[3] == _LISTENING:
            yield int(columns[1].rpartition(":")[2], 16), int(columns[7])


def _is_local(host: str) -> bool:
    """Whether a socket can be bound to this address. A name is not one: it may be resolved differently next time."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        packed = socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((socket.inet_ntop(family, packed), 0))
    except OSError:
        return False
    return True


def _listens(host_and_port: tuple[str, int]) -> bool:
    try:
        socket.create_connection(host_and_port, ANSWER_TIMEOUT_S).close()
    except OSError:
        return False
    return True


def may_answer(address: str) -> bool:
    """Whether something listens at an address, or it is none that can be asked.

    >>> may_answer("127.0.0.1:1"), may_answer("auto")
    (False, True)
    """
    host_and_port = _host_and_port(address)
    return host_and_port is None or _listens(host_and_port)


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
    except (OSError, OverflowError, UnicodeError) as error:
        # The latter two: the port or the name is one that no machine has.
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


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdecimal()):
        return None
    return host.strip("[]"), int(port)

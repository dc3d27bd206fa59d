"""A run on a Ray whose gRPC is encrypted (docs/security.md), alone and together with Ray's token.

Its processes have an environment of their own, so it also sends spans to a collector (docs/operations.md).
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import socket
import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.gates import HANG_S
from tests.jobs.rays import QUIET_RAY, short_folder
from tests.status.collector import attributes, collector

ROOT = Path(__file__).resolve().parents[2]

DRIVER = """
import json, sys
from backedge import Collect, Range
from backedge.engine.on_ray import cluster
from tests.gates import Gate
from tests.on_ray.flows import finish, trips, trips_made

cluster.connect()
address = cluster.ray.get_runtime_context().gcs_address
gate = Gate(sys.argv[2])
flow = trips(count=60, gate=gate)
flow.read(Range(20), name="questions").map_async(abs, name="ask").write(Collect(), name="answers")
_, result = finish(flow, gate=gate, snapshots=sys.argv[1], every=0.1, kills=["head@epoch=2"])
print(json.dumps({"address": address, "state": result.state, "restores": result.restores,
                  "is_exact": sorted(result.outputs["done"]) == trips_made(60)}), flush=True)
sys.stdin.readline()
cluster.disconnect()
"""


def write_certificate(folder: Path) -> dict[str, str]:
    """A key, a certificate that is its own authority, and the variables by which Ray finds them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "backedge tests")])
    now = datetime.now(UTC)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Nothing is sent: this asks which address of this host leads outside, as Ray does.
        probe.connect(("192.0.2.1", 9))
        own = probe.getsockname()[0]
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in sorted({"127.0.0.1", own})]
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.DNSName(socket.gethostname()), *addresses])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (folder / "tls.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return {
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(folder / "tls.crt"),
        "RAY_TLS_SERVER_KEY": str(folder / "tls.key"),
        "RAY_TLS_CA_CERT": str(folder / "tls.crt"),
    }


def shows_certificate(address: str, tls: dict[str, str]) -> bool:
    """Whether the other side speaks TLS under our certificate; `SSLError` if it speaks something else."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=tls["RAY_TLS_CA_CERT"])
    context.load_cert_chain(tls["RAY_TLS_SERVER_CERT"], tls["RAY_TLS_SERVER_KEY"])
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port)), 20) as plain,
        context.wrap_socket(plain, server_hostname=host) as connection,
    ):
        return connection.version() is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "with_token", [pytest.param(False, id="tls", marks=pytest.mark.long), pytest.param(True, id="tls and token")]
)
def test_a_run_recovers_on_a_ray_that_encrypts(tmp_path: Path, with_token: bool):
    tls = write_certificate(tmp_path)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)} if with_token else {}
    with short_folder() as folder, collector() as found:
        spans = {"OTEL_EXPORTER_OTLP_ENDPOINT": found.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        given = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environment = {**given, **QUIET_RAY, **tls, **token, **spans, "RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", DRIVER, str(tmp_path / "cuts"), str(tmp_path / "gate")]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes) as driver:  # type: ignore[call-overload]
            try:
                assert driver.stdout is not None and driver.stdin is not None
                said = json.loads(next(line for line in driver.stdout if line.startswith("{")))
                assert shows_certificate(said["address"], tls)
                driver.stdin.write("\n")
                driver.stdin.close()
                assert driver.wait(HANG_S) == 0
            finally:
                driver.kill()
    assert said["state"] == "finished" and said["is_exact"]
    (restored,) = said["restores"]
    (restore,) = found.named("restore")
    assert attributes(restore)["epoch"] == restored["epoch"]
    assert restored["epoch"] in {attributes(epoch)["epoch"] for epoch in found.named("epoch")}
    assert {attributes(call)["operator"] for call in found.named("call")} == {"ask"}

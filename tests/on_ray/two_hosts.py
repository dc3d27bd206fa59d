"""Two hosts of a cluster, each a network namespace of its own, and a wire between them that breaks connections.

    unshare --net python -m tests.on_ray.two_hosts FOLDER

runs a loop on both, breaks the connections between their actors `BREAKS` times, and prints what came of it as a line of
JSON. Without root: `unshare --net --map-root-user`. Ray wants RAY_AUTH_MODE=token and a
RAY_AUTH_TOKEN of 64 hexadecimal digits: over a network it lets nobody in without.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.jobs.rays import READY, short_folder

HERE, THERE = "10.99.0.1", "10.99.0.2"
PORT = 6379
COUNT, BREAKS = 100, 3
TOOLS = ("ip", "ss", "unshare", "nsenter")


def find_tools() -> None:
    """Install the commands that this needs, by apt when root; else say which are missing."""
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not lacking:
        return
    install = ["apt-get", "install", "--yes", "iproute2", "util-linux"]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"this test needs {', '.join(lacking)}: install them, as by: sudo {' '.join(install)}")
    subprocess.run(install, check=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"})


def call(*command: str) -> str:
    """Run a command to its end."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def other_host() -> Iterator[tuple[str, ...]]:
    """A second namespace, wired to this one; yields what runs a command there."""
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo there; exec sleep 3600"], stdout=-1, text=True
    ) as held:
        try:
            assert held.stdout is not None and held.stdout.readline() == "there\n"
            there = ("nsenter", "--target", str(held.pid), "--net")
            call("ip", "link", "add", "west", "type", "veth", "peer", "name", "east", "netns", str(held.pid))
            for prefix, device, address in (((), "west", HERE), (there, "east", THERE)):
                call(*prefix, "ip", "link", "set", "lo", "up")
                call(*prefix, "ip", "address", "add", f"{address}/24", "dev", device)
                call(*prefix, "ip", "link", "set", device, "up")
            yield there
        finally:
            held.kill()


@contextmanager
def ray_daemon(*command: str) -> Iterator[None]:
    """A Ray node, until it is stopped with all that it has started."""
    with subprocess.Popen(command, stdout=-1, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said: list[str] = []
            while not said or READY not in said[-1]:
                said.append(process.stdout.readline())
                assert said[-1], "".join(said)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def break_connections() -> int:
    """Break every connection between the actors of the two hosts; how many there were.

    Ray's own are sockets of IPv6 that speak IPv4, and stay: its GCS does not survive the loss of all of them at once.
    """
    return len(call("ss", "--kill", "--no-header", "--tcp", "--ipv4", "dst", THERE).splitlines())


def main(folder: str) -> None:
    """Run the loop."""
    from backedge.engine.on_ray import cluster
    from tests.gates import Gate
    from tests.on_ray.flows import begin, trips, trips_made, until

    with short_folder() as short, other_host() as there:
        os.environ["RAY_TMPDIR"] = short
        ray = os.path.join(os.path.dirname(sys.executable), "ray")
        here_node = (ray, "start", "--block", "--num-cpus=1", "--include-dashboard=false")
        with (
            ray_daemon(*here_node, "--head", f"--port={PORT}", f"--node-ip-address={HERE}", f"--temp-dir={short}"),
            ray_daemon(
                *there,
                ray,
                "start",
                "--block",
                "--num-cpus=1",
                f"--address={HERE}:{PORT}",
                f"--node-ip-address={THERE}",
            ),
        ):
            os.environ["RAY_ADDRESS"] = f"{HERE}:{PORT}"
            cluster.connect()
            nodes = [node["NodeManagerAddress"] for node in cluster.ray.nodes() if node["Alive"]]
            gate, connections = Gate(os.path.join(folder, "gate")), 0
            options: dict[str, Any] = {"snapshots": folder, "every": 0.3, "parallelism": 2, "actors": "task"}
            job = begin(trips(count=COUNT, gate=gate), placement="SPREAD", **options)
            for failures in range(1, BREAKS + 1):
                until(job, lambda story: story.state == "running" and story.last_epoch, "there is a cut")
                connections += break_connections()
                until(job, lambda story, n=failures: story.restarts >= n and story.state == "running", "it recovers")
            gate.open()
            result = job.wait()
            said: dict[str, Any] = {
                "nodes": sorted(nodes),
                "state": result.state,
                "is_exact": sorted(result.outputs["done"]) == trips_made(COUNT),
                "restores": len(result.restores),
                "connections": connections,
            }
            print(json.dumps(said), flush=True)
            cluster.disconnect()


if __name__ == "__main__":
    main(sys.argv[1])

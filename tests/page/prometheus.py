"""Debian's Prometheus, for tests: a server that scrapes the Ray of this process, and its tool that checks rules."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

from backedge.engine.on_ray import cluster
from tests.gates import HANG_S, wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus_rules.yaml"
CONFIG = """
global: {{scrape_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs: [{{job_name: ray, static_configs: [{{targets: ["{target}"]}}]}}]
"""


def program(name: str) -> str:
    """`prometheus` or `promtool` of this machine."""
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            f"this test calls {name}, which is not there: make setup installs it by apt as root; otherwise: "
            "sudo apt-get install prometheus (macOS: brew install prometheus)"
        )
    return found


def dashboard(job: str) -> list[str]:
    """The queries of the dashboard, as Grafana asks them for one job."""
    panels = json.loads((DEPLOY / "grafana_dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [query.replace("$job", job).replace("$__rate_interval", "1m") for query in queries]


class Prometheus:
    """A server that answers queries."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer of its API; None if it refuses the query, and as long as it does not answer."""
        try:
            with urlopen(f"{self._address}/api/v1/{path}?{urlencode(query)}", timeout=HANG_S) as reply:
                return json.load(reply)["data"]
        except URLError:
            return None

    def wait_for(self, query: str, at_least: int = 1) -> list[dict[str, str]]:
        """The labels of the series of a query, as soon as there are enough of them."""

        def found() -> list[Any] | None:
            series = (self.ask("query", query=query) or {}).get("result", [])
            return series if len(series) >= at_least else None

        return [series["metric"] for series in wait_for(found, f"{at_least} series for {query}") or ()]


@contextmanager
def scraping(folder: Path) -> Iterator[Prometheus]:
    """A Prometheus with our alerts that scrapes Ray each second, for as long as the block."""
    node = cluster.ray.nodes()[0]
    target = f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}"
    (folder / "prometheus.yaml").write_text(CONFIG.format(alerts=ALERTS, target=target))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = [
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address={address}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen([program("prometheus"), *options], stdout=log, stderr=log)
        try:
            yield Prometheus(f"http://{address}")
        finally:
            server.terminate()
            server.wait()

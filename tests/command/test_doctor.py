"""`backedge doctor`: each check finds what it is for, and names a repair."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from backedge.command import main
from backedge.doctor_command import cluster_findings, report
from backedge.engine.on_ray import cluster
from backedge.inspecting.health import (
    Finding,
    NodeFacts,
    browser_finding,
    files_finding,
    java_finding,
    memory_finding,
    node_findings,
    package_findings,
    python_finding,
    resource_findings,
    shared_memory_finding,
    snapshots_finding,
    tls_finding,
)
from backedge.recovery.stores.run_status import ResourceStatus, RunStatus

GB = 1_000_000_000
WRONG_JAVA = "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n"


def expect(finding: Finding | None, state: str, *told: str) -> None:
    assert finding is not None and finding.state == state, finding
    assert bool(finding.fix) == (state != "ok"), "a repair for all that is missing, and only for that"
    for text in told:
        assert text in finding.told + finding.fix, finding


def test_an_old_python_is_found():
    expect(python_finding((3, 12, 1)), "ok", "3.12.1")
    expect(python_finding((3, 10, 4)), "missing", "3.10.4", "venv")
    expect(python_finding((3, 15, 0)), "missing", "3.14")


def test_packages_are_compared_with_what_is_required():
    required = ["ray[default]>=2.60", "pyspark>=4.3", 'polars>=1.30; extra == "polars"', 'ruff>=0.14; extra == "dev"']
    versions = {"ray": "2.100.1", "pyspark": "4.2.9"}
    ray, pyspark, polars = package_findings(required, versions.get)
    expect(ray, "ok", "2.100.1")
    expect(pyspark, "missing", "4.2.9", "pip install --upgrade 'pyspark>=4.3'")
    expect(polars, "optional", "not installed", "pip install 'backedge[polars]'")


def test_every_requirement_of_backedge_is_understood():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    required = [f'{package}; extra == "{extra}"' for extra, packages in extras for package in packages]
    findings = package_findings([*project["dependencies"], *required], lambda _: None)
    names = [finding.what for finding in findings]
    optional = {"boto3", "obstore", "opentelemetry-exporter-otlp-proto-http", "pandas", "polars", "psycopg", "shtab"}
    assert {"ray", "pyspark", *optional} <= set(names)
    assert len(names) == len(set(names)) and "ruff" not in names
    with pytest.raises(ValueError, match="thing==1"):
        list(package_findings(["thing==1"], lambda _: None))


def test_java_is_found_or_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    expect(java_finding(), "missing", "does not run", "apt-get install openjdk")
    assert java_finding().told.endswith(f"JAVA_HOME is {tmp_path})"), "the fact is whole, and has no part of the fix"
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(WRONG_JAVA)
    java.chmod(0o755)
    expect(java_finding(), "missing", "is Java 11")
    java.write_text(WRONG_JAVA.replace("11", "21"))
    expect(java_finding(), "ok")


def test_memory_is_that_of_the_machine_or_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    meminfo = "MemTotal: 9 kB\nMemAvailable:   8000000 kB\n"
    expect(memory_finding(meminfo, "max"), "ok", "8.19 GB")
    expect(memory_finding(meminfo, str(GB)), "missing", "1 GB available")
    expect(memory_finding("MemAvailable: 1000 kB\n", ""), "missing", "1.02 MB")
    expect(memory_finding("", ""), "ok")
    assert shared_memory_finding(tmp_path / "none") is None
    monkeypatch.setattr("backedge.inspecting.health.SHARED_BYTES_MIN", 1 << 80)
    expect(shared_memory_finding(tmp_path), "missing", "remount", "--shm-size")


def test_the_limit_of_open_files_counts():
    expect(files_finding(-1), "ok")
    expect(files_finding(1_048_576), "ok")
    expect(files_finding(1_024), "missing", "1,024", "limits.conf")


def test_snapshots_must_be_writable_by_us_and_nobody_else(tmp_path: Path):
    expect(snapshots_finding(str(tmp_path)), "ok", "can be written")
    expect(snapshots_finding(str(tmp_path / "new" / "er")), "ok", "can be made")
    (tmp_path / "file").touch()
    expect(snapshots_finding(str(tmp_path / "file" / "cuts")), "missing", "is a file")
    tmp_path.chmod(0o777)
    expect(snapshots_finding(str(tmp_path)), "missing", "everyone may write", "chmod o-w")


def test_why_a_store_cannot_be_opened_is_told_whole(monkeypatch: pytest.MonkeyPatch):
    unknown = snapshots_finding("ftp://host/cuts")
    expect(unknown, "missing", "no installed package registers ftp://")
    assert unknown.told == "ftp://host/cuts cannot be opened"

    def refuse(place: str) -> None:
        raise PermissionError(13, "no credentials were found: set AWS_PROFILE", place)

    monkeypatch.setattr("backedge.inspecting.health.store_at", refuse)
    found = snapshots_finding("s3://bucket/cuts")
    assert (found.state, found.told, found.fix) == ("missing", "no credentials were found", "set AWS_PROFILE")


def test_a_repair_of_a_folder_can_be_copied_whatever_its_name(tmp_path: Path):
    folder = tmp_path / "of $HOME; x"
    folder.mkdir()
    folder.chmod(0o777)
    (tmp_path / "a file").touch()
    expect(snapshots_finding(str(folder)), "missing", f"chmod o-w '{folder}'")
    expect(snapshots_finding(str(tmp_path / "a file")), "missing", f"mv '{tmp_path}/a file' '{tmp_path}/a file.old'")


def test_a_folder_that_cannot_be_looked_at_is_a_finding(tmp_path: Path):
    found = snapshots_finding(str(tmp_path / (300 * "a")))
    assert found.state == "missing" and "File name too long" in found.told and found.fix


def test_a_browser_is_for_tests_only():
    expect(browser_finding(lambda name: None), "optional", "apt-get install chromium")
    expect(browser_finding(lambda name: f"/usr/bin/{name}"), "ok", "/usr/bin/chromium")


def test_machines_of_a_cluster_must_agree():
    good = NodeFacts("a", "3.12.1", "1.0", ahead_s=1.4, exact_s=0.5)
    nodes = [
        good,
        good._replace(host="b", python="3.12.2"),
        good._replace(host="c", backedge=""),
        good._replace(host="d", ahead_s=-1.6),
        good._replace(host="e", fault="no room"),
    ]
    a, b, c, d, e = node_findings(nodes, "3.12.1", "1.0")
    expect(a, "ok", "clocks agree")
    expect(b, "missing", "Python 3.12.2", "ssh b pip install")
    expect(c, "missing", "not installed")
    expect(d, "missing", "1.6 s behind", "timedatectl")
    expect(e, "missing", "no room")


def test_tls_is_asked_for_between_machines_only(tmp_path: Path):
    expect(tls_finding({}, 1), "ok")
    expect(tls_finding({}, 2), "optional", "RAY_USE_TLS=1")
    file = tmp_path / "cert"
    file.touch()
    names = dict.fromkeys(("RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"), str(file))
    expect(tls_finding({"RAY_USE_TLS": "1", **names}, 2), "ok", "on")
    expect(tls_finding({"RAY_USE_TLS": "1", **names, "RAY_TLS_SERVER_KEY": "/none"}, 2), "missing", "SERVER_KEY")


def test_resources_of_living_runs_are_counted():
    run = RunStatus("shop", "4f", "running", True, 0.0, 1.0, None, 1, None, 0, resources={"db": ResourceStatus(1, 12)})
    (found,) = resource_findings([run])
    expect(found, "ok", "open in 1 process, opened 12 times")
    assert found.what == "resource db of shop"


def test_a_cluster_that_cannot_be_reached_is_told_from_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    def refuse(**options: bool) -> None:
        raise cluster.ClusterError("no answer")

    monkeypatch.setattr(cluster, "is_connected", lambda: False)
    monkeypatch.setattr(cluster, "connect", refuse)
    monkeypatch.setattr(cluster, "runs_here", lambda: True)
    expect(next(cluster_findings({})), "missing", "no answer", "RAY_AUTH_MODE")
    expect(next(cluster_findings({"RAY_ADDRESS": "far:6379"})), "missing", "far:6379: no answer", "unset RAY_ADDRESS")
    monkeypatch.setattr(cluster, "runs_here", lambda: False)
    expect(next(cluster_findings({})), "ok", "none is running")

    def doubt(must_exist: bool) -> None:
        raise cluster.SeveralClustersError({"192.0.2.9:1", "192.0.2.9:2"})

    monkeypatch.setattr(cluster, "connect", doubt)
    expect(next(cluster_findings({})), "ok", "2 Rays run on this machine")


def test_the_exit_code_says_whether_something_is_missing(capsys: pytest.CaptureFixture[str]):
    optional = Finding("polars", "optional", "not installed", "pip install polars")
    assert report([Finding("Python", "ok", "3.12"), optional], as_json=False) == 0
    out = capsys.readouterr().out
    assert (
        "\n\npolars is optional. To repair it:\n    pip install polars\n" in out
        and out.splitlines()[-1] == "nothing is missing"
    )
    assert report([Finding("Java", "missing", "none", "apt-get install java")], as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["fix"] == "apt-get install java"


@pytest.mark.usefixtures("local_ray")
def test_the_cluster_is_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert main(["doctor", "--json", "--snapshots", str(tmp_path)]) in (0, 1)
    findings = {finding["what"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["Ray cluster"]["told"] == "1 daemon on 1 host"
    (machine,) = (finding for what, finding in findings.items() if what.startswith("machine "))
    assert machine["state"] == "ok", machine

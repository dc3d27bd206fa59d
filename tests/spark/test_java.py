"""Java is looked for where PySpark will look, and what is wrong with it is said in one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from backedge.recovery.spark.sessions.java import check_java
from backedge.recovery.spark.spark_errors import JavaError, SparkJobError

ROOT = Path(__file__).resolve().parents[2]


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def java(folder: Path, version: str) -> None:
    program(folder / "java", f"""echo 'openjdk version "{version}" 2025-04-15' >&2""")


def test_a_java_of_today_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java(tmp_path, "17.0.15")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_java() is None


@pytest.mark.parametrize(("version", "found"), [("1.8.0_402", "Java 8"), ("11.0.2", "Java 11")])
def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, found: str):
    java(tmp_path / "home" / "bin", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JavaError) as caught:
        check_java()
    said = str(caught.value)
    assert said.startswith(f"Spark needs Java 17 or newer, but {tmp_path}/home/bin/java is {found} (JAVA_HOME is ")
    assert said.endswith("then try again")
    assert "\n" not in said
    assert isinstance(caught.value, SparkJobError)


def test_no_java_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=r"no java is on PATH, and JAVA_HOME is not set: install it \(.*apt-get"):
        check_java()


def test_a_java_home_without_java_counts_though_path_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    java(tmp_path, "17.0.15")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(JavaError, match=r"/nowhere/bin/java does not run \(No such file or directory; JAVA_HOME is"):
        check_java()


@pytest.mark.parametrize(("script", "said"), [("exit 3", "does not run"), ("echo hello", "does not report")])
def test_a_java_that_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str):
    program(tmp_path / "java", script)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=said):
        check_java()


FOR_TESTS = {
    "initdb": ("PostgreSQL", "postgresql"),
    "chromium": ("Chromium", "chromium"),
    "prometheus": ("Prometheus", "prometheus"),
    "promtool": ("Prometheus", "prometheus"),
}
"""Programs that tests start; their names, and the packages that have them."""


class Machine:
    """A machine for `setup.sh`: its Java, its apt and its user are ours, its Python part does nothing."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self._folder = folder
        (folder / "scripts").mkdir()
        script = (ROOT / "scripts" / "setup.sh").read_text()
        # What it writes as root is in the folder, too.
        (folder / "scripts" / "setup.sh").write_text(script.replace("/etc/", f"{folder}/etc/"))
        (folder / "scripts" / "setup.py").write_text("print('python part')\n")
        self.bin.mkdir()
        (self.bin / "python3").symlink_to(sys.executable)
        for name in ("bash", "dirname", "ln", "mkdir", "sed"):
            (self.bin / name).symlink_to(shutil.which(name) or name)

    def user(self, number: int) -> None:
        program(self.bin / "id", f"echo {number}")

    def apt_of_java(self, offers: int, installs: str) -> None:
        program(self.bin / "apt-cache", f'[ "$2" = openjdk-{offers}-jre-headless ]')
        make_java = (
            f"""echo 'echo "openjdk version \\"{installs}\\"" >&2' > {self.bin}/java; /bin/chmod +x {self.bin}/java"""
        )
        program(self.bin / "apt-get", f'echo "apt-get $*"; [ "$1" != install ] || {{ {make_java}; }}')

    def set_up(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "scripts/setup.sh"],
            cwd=self._folder,
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    for name in FOR_TESTS:
        program(made.bin / name, "exit 0")
    return made


def test_setup_says_nothing_of_a_java_that_will_do(machine: Machine):
    java(machine.bin, "21.0.1")
    done = machine.set_up()
    assert (done.returncode, done.stdout, done.stderr) == (0, "python part\n", "")


@pytest.mark.parametrize("lacking", FOR_TESTS)
def test_setup_says_in_one_line_how_to_get_what_tests_start_and_goes_on(machine: Machine, lacking: str):
    name, package = FOR_TESTS[lacking]
    machine.user(1000)
    java(machine.bin, "21.0.1")
    (machine.bin / lacking).unlink()
    done = machine.set_up()
    assert (done.returncode, done.stdout) == (0, "python part\n")
    (line,) = done.stderr.splitlines()
    assert f"no {name} found" in line and f"apt-get install -y {package} " in line


@pytest.mark.parametrize("works", ["at once", "after an update", "never"])
def test_setup_installs_what_tests_start_as_root_and_goes_on_if_it_cannot(machine: Machine, works: str):
    machine.user(0)
    java(machine.bin, "21.0.1")
    for lacking in FOR_TESTS:
        (machine.bin / lacking).unlink()
    asked = machine.bin.parent / "asked"
    works_now = {"at once": "true", "after an update": f"[ -e {asked}.update ]", "never": "false"}[works]
    program(
        machine.bin / "apt-get",
        f"""for last; do :; done; echo "$last" >> {asked}; echo noise
        if [ "$last" = update ]; then : > {asked}.update; else {works_now}; fi""",
    )
    done = machine.set_up()
    assert done.returncode == 0 and done.stdout.endswith("python part\n") and "noise" not in done.stdout
    packages = ["postgresql", "chromium", "prometheus"]
    again = {"at once": packages, "after an update": ["postgresql", "update", *packages]}
    every = [word for package in packages for word in (package, "update", package)]
    assert asked.read_text().split() == again.get(works, every)
    lines = done.stderr.splitlines()
    assert [line.partition(";")[0] for line in lines] == (
        [f"setup: apt could not install {name}" for name in ("PostgreSQL", "Chromium", "Prometheus")]
        if works == "never"
        else []
    )


def test_setup_installs_java_as_root(machine: Machine):
    machine.user(0)
    machine.apt_of_java(offers=21, installs="21.0.1")
    java(machine.bin, "11.0.2")
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "apt-get update\n" in done.stdout
    assert "apt-get install -y --no-install-recommends openjdk-21-jre-headless\n" in done.stdout
    assert done.stdout.endswith("python part\n")


def test_setup_says_what_to_run_where_it_may_not_install(machine: Machine):
    machine.user(1000)
    machine.apt_of_java(offers=17, installs="17")
    done = machine.set_up()
    assert done.returncode == 1
    assert "no Java 17 or newer found, which Spark needs. Run this, then make setup again" in done.stderr
    assert "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless" in done.stderr


def test_setup_says_what_to_do_where_there_is_no_apt(machine: Machine):
    done = machine.set_up()
    assert done.returncode == 1
    assert "Install one (macOS: brew install openjdk@17) and let PATH or JAVA_HOME name it" in done.stderr


def test_setup_says_that_apt_offers_none(machine: Machine):
    machine.user(0)
    machine.apt_of_java(offers=8, installs="8")
    done = machine.set_up()
    assert done.returncode == 1
    assert "apt offers no Java 17 or newer; install one by hand" in done.stderr


def test_setup_takes_java_home_at_its_word(machine: Machine):
    java(machine.bin, "17.0.1")
    done = machine.set_up(JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert "JAVA_HOME=/nowhere is no Java 17 or newer" in done.stderr

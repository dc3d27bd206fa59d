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


CURRENT = "17.0.15"


@pytest.mark.parametrize(
    ("on_path", "home", "named"),
    [
        (CURRENT, None, None),
        ("1.8.0_402", None, r"\bJava 8\b"),
        (CURRENT, "11.0.2", r"/home/bin/java .*\bJava 11\b.*\bJAVA_HOME\b"),
        (CURRENT, "nowhere", r"/home/bin/java .*No such file.*\bJAVA_HOME\b"),
        (None, None, r"\bPATH\b.*\bJAVA_HOME\b.*apt-get"),
    ],
)
def test_java_is_taken_from_java_home_or_else_from_the_path_and_a_fault_is_told_in_a_line(
    on_path: str | None, home: str | None, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if on_path is not None:
        java(tmp_path, on_path)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        if home != "nowhere":
            java(tmp_path / "home" / "bin", home)
    if named is None:
        return check_java()
    with pytest.raises(JavaError, match=named) as caught:
        check_java()
    assert "\n" not in str(caught.value) and isinstance(caught.value, SparkJobError)


@pytest.mark.parametrize("script", ["exit 3", "echo hello"])
def test_a_java_that_is_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str):
    program(tmp_path / "java", script)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaError, match=f"{tmp_path}/java"):
        check_java()


FOR_TESTS = {
    "initdb": ("PostgreSQL", "postgresql"),
    "redis-server": ("Redis", "redis-server"),
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
    packages = ["postgresql", "redis-server", "chromium", "prometheus"]
    again = {"at once": packages, "after an update": ["postgresql", "update", *packages]}
    every = [word for package in packages for word in (package, "update", package)]
    assert asked.read_text().split() == again.get(works, every)
    lines = done.stderr.splitlines()
    assert [line.partition(";")[0] for line in lines] == (
        [f"setup: apt could not install {name}" for name in ("PostgreSQL", "Redis", "Chromium", "Prometheus")]
        if works == "never"
        else []
    )


def test_setup_installs_java_as_root(machine: Machine):
    machine.user(0)
    machine.apt_of_java(offers=21, installs="21.0.1")
    java(machine.bin, "11.0.2")
    done = machine.set_up()
    assert done.returncode == 0, done.stderr
    assert "apt-get install -y --no-install-recommends openjdk-21-jre-headless\n" in done.stdout
    assert done.stdout.endswith("python part\n")


@pytest.mark.parametrize(
    ("user", "offers", "home", "named"),
    [
        (1000, 17, None, "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless"),
        (1000, None, None, "brew install openjdk@17"),
        (0, 8, None, "install one by hand"),
        (1000, None, "/nowhere", "JAVA_HOME=/nowhere"),
    ],
)
def test_setup_ends_with_what_to_do_where_it_can_get_no_java(
    machine: Machine, user: int, offers: int | None, home: str | None, named: str
):
    machine.user(user)
    if offers is not None:
        machine.apt_of_java(offers, installs=str(offers))
    done = machine.set_up(**({} if home is None else {"JAVA_HOME": home}))
    assert done.returncode == 1 and named in done.stderr

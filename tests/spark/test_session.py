"""A session starts where users say, is quiet, listens to nobody else, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from backedge.recovery.spark.sessions import spark_session as sessions
from backedge.recovery.spark.sessions.spark_session import (
    check_start,
    close_session,
    local_settings,
    open_session,
    user_settings,
)
from backedge.recovery.spark.spark_errors import JavaError, SparkJobError
from tests.gates import HANG_S, wait_for
from tests.jobs.rays import commands_below, descendants
from tests.spark.cuts import job_of_cuts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
VARIABLES = ("MASTER", "SPARK_REMOTE", "SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON")


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    return monkeypatch


class Program:
    """A program of a user's, in a folder of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.temporary, self.work = folder / "temporary files", folder / "work"
        self.temporary.mkdir()
        self.work.mkdir()
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def start(self, script: str) -> subprocess.Popen[str]:
        script = f"from backedge.recovery.spark.sessions.spark_session import open_session, close_session\n{script}"
        pipe = subprocess.PIPE
        # -P: as for a command that is installed, the folder is no place for modules.
        return subprocess.Popen(
            [sys.executable, "-P", "-c", script], cwd=self.work, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, script: str) -> tuple[str, str]:
        return self.start(script).communicate(timeout=HANG_S)

    def java(self) -> list[int]:
        """The Java processes that were started for it."""
        found: list[int] = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if f"-Djava.io.tmpdir={self.temporary}" in command:
                found.append(int(folder.name))
        return found


@pytest.fixture
def program(tmp_path: Path, no_settings: pytest.MonkeyPatch) -> Program:
    return Program(tmp_path, no_settings)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return job_of_cuts(tmp_path_factory.mktemp("snapshots"))


def listening() -> Iterator[str]:
    """The addresses at which the Java of this process, and what that has started, listen, as /proc writes them."""
    inodes: set[str] = set()
    java = [pid for pid, command in commands_below(os.getpid()).items() if command.split(" ")[0].endswith("java")]
    for process in {below for pid in java for below in (pid, *descendants(pid))}:
        # Files are closed meanwhile, and processes end.
        with suppress(FileNotFoundError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with suppress(FileNotFoundError):
                    target = os.readlink(descriptor)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                yield fields[1].rpartition(":")[0]


# -- one session, in use -----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_there_is_room_for_all_the_code_that_java_compiles(spark: SparkSession):
    # With one compiler Java reserves 48 MB. An hour of queries fills them; then it warns, and compiles nothing more.
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()  # pyright: ignore
    room = {pool.getName(): pool.getUsage().getMax() for pool in pools}
    assert sum(size for name, size in room.items() if "Code" in name) >= 200 << 20, room


@pytest.mark.slow
def test_nobody_but_this_machine_can_talk_to_it(spark: SparkSession):
    assert spark.range(3).rdd.map(lambda n: n).count() == 3
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    found = set(listening())
    assert found
    assert found <= loopback


@pytest.mark.slow
def test_a_session_that_is_there_is_reused_and_outlives_all_but_the_last_who_close_it(spark: SparkSession):
    again = open_session("another", master="local[7]")
    assert again is spark
    close_session(again)
    assert spark.range(3).count() == 3


@pytest.mark.slow
def test_a_query_that_is_wrong_is_told_once(spark: SparkSession, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
        spark.range(3).select("nothing")
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("SELECT * FROM nothing")
    assert capfd.readouterr().err == ""


# -- processes of their own --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """What a program that is over has said, and the files in its working directory when it began."""

    program: Program
    out: list[str]
    err: list[str]
    before: set[Path]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory, path: Path) -> Ended:
    """A program that opens a session, reads a job in its tasks, and closes the session. Each start takes seconds."""
    with pytest.MonkeyPatch.context() as changes:
        for variable in VARIABLES:
            changes.delenv(variable, raising=False)
        program = Program(tmp_path_factory.mktemp("ended"), changes)
        for name in ("recovery", "graphs"):
            (program.work / name).mkdir()
            (program.work / name / "__init__.py").write_text("raise ImportError('this is not the one of backedge')\n")
        (program.work / "mine.py").write_text("def doubled(n):\n    return 2 * n\n")
        before = set(program.work.rglob("*"))
        out, err = program.run(
            "import sys\nsys.dont_write_bytecode = True\nsys.path.append('')\nimport mine\n"
            "from pyspark.sql.functions import udf\n"
            "from backedge.recovery.spark import register\n"
            "from backedge.recovery.spark.cut_tables.cut_tables import cut_tables\n"
            "from backedge.recovery.spark.cut_tables.job_folder import JobFolder\n"
            "spark = open_session()\n"
            f"state = cut_tables(spark, JobFolder.open({str(path)!r}), [1])['state']\n"
            "print(len(state.select('value').collect()) > 0)\n"
            "print([row[0] for row in spark.range(3).select(udf(mine.doubled, 'long')('id')).collect()])\n"
            "register(spark)\n"
            f"print(spark.read.format('backedge').option('table', 'state').load({str(path)!r}).count() > 0)\n"
            "close_session(spark)\ninput()"
        )
    return Ended(program, out.splitlines(), err.splitlines(), before)


@pytest.mark.slow
def test_tasks_import_our_packages_and_the_users_modules_whatever_lies_in_the_folder(ended: Ended):
    assert ended.out == ["True", "[0, 2, 4]", "True"], "\n".join(ended.err)


@pytest.mark.slow
def test_a_session_is_quiet_and_leaves_nothing_behind(ended: Ended):
    assert ended.err[-1:] == ["EOFError: EOF when reading a line"]
    # What PySpark says of the user's own function is said to the user.
    assert [line for line in ended.err if re.search("WARN|[Ww]arning: ", line) and "/udf.py:" not in line] == []
    assert ended.program.java() == []
    # Python's own: tasks import a module from there.
    left = {path for path in ended.program.work.rglob("*") if "__pycache__" not in path.parts}
    assert left == ended.before
    assert [path for path in ended.program.temporary.rglob("*") if path.is_file()] == []


@pytest.mark.slow
def test_java_dies_with_a_process_that_is_killed(program: Program):
    process = program.start("spark = open_session()\nprint('up', flush=True)\nimport signal\nsignal.pause()")
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert len(program.java()) == 1
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: program.java() == [], "the Java of the program ends")


@pytest.mark.slow
def test_a_session_of_somebody_else_is_left_alone_and_one_can_follow_it(program: Program):
    out, err = program.run(
        "from pyspark.sql import SparkSession\n"
        "theirs = SparkSession.builder.config('spark.ui.enabled', 'false')\n"
        "theirs = theirs.config('spark.driver.extraJavaOptions', '-XX:TieredStopAtLevel=1').getOrCreate()\n"
        "ours = open_session()\nprint(ours is theirs)\nclose_session(ours)\n"
        "print(theirs.range(3).count())\ntheirs.stop()\n"
        "last = open_session('last')\nprint(last.range(2).count(), last.conf.get('spark.app.name'))\n"
        "close_session(last)"
    )
    assert out == "True\n3\n2 last\n", err


@pytest.mark.slow
def test_a_start_that_fails_says_why_in_one_line(program: Program, no_settings: pytest.MonkeyPatch):
    script = "try:\n    open_session({})\nexcept RuntimeError as error:\n    print(error)"
    out, err = program.run(script.format("master='nonsense'"))
    assert err == ""
    assert out == "Spark did not start on nonsense: Master must either be yarn or start with spark, k8s, or local\n"
    no_settings.setenv("PYSPARK_SUBMIT_ARGS", "--driver-memory 1z pyspark-shell")
    out, _ = program.run(script.format(""))
    assert out.startswith("Spark did not start on local[*]: ")
    assert "1z" in out
    assert out.count("\n") == 1
    assert program.java() == []


# -- where it starts ---------------------------------------------------------------------------------------------


def test_settings_of_the_user_are_found(tmp_path: Path, no_settings: pytest.MonkeyPatch):
    assert user_settings() == {}
    (tmp_path / "spark-defaults.conf").write_text(
        "# of ours\nspark.master   spark://there:7077\nspark.ui.enabled=true\n\nspark.sql.ansi.enabled\tfalse\nempty\n"
    )
    no_settings.setenv("SPARK_CONF_DIR", str(tmp_path))
    there = {"spark.master": "spark://there:7077", "spark.ui.enabled": "true", "spark.sql.ansi.enabled": "false"}
    assert user_settings() == there
    no_settings.setenv(
        "PYSPARK_SUBMIT_ARGS", "--master local[3] --conf spark.ui.enabled=false --conf 'a=b c' pyspark-shell"
    )
    assert user_settings() == {**there, "spark.master": "local[3]", "spark.ui.enabled": "false", "a": "b c"}
    no_settings.setenv("PYSPARK_SUBMIT_ARGS", "--master=yarn pyspark-shell")
    assert user_settings()["spark.master"] == "yarn"
    no_settings.setenv("PYSPARK_SUBMIT_ARGS", "--conf 'a=b")
    with pytest.raises(SparkJobError, match=r"PYSPARK_SUBMIT_ARGS .*No closing quotation"):
        user_settings()


def test_a_folder_of_the_user_that_is_called_conf_is_not_that_of_spark(tmp_path: Path, no_settings: pytest.MonkeyPatch):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.master spark://elsewhere:7077\n")
    no_settings.chdir(tmp_path)
    assert user_settings() == {}


class Started:
    """Stands where Java would start: it remembers with which settings, and goes no further."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.settings: dict[str, str] = {}
        monkeypatch.setattr(sessions, "start_gateway", self.start)
        monkeypatch.setattr(sessions, "_active", lambda: None)
        monkeypatch.setattr("pyspark.SparkContext._gateway", None)

    def start(self, settings: dict[str, str]) -> Any:
        self.settings = settings
        raise SparkJobError("that is far enough")

    def on(self, **arguments: str) -> str:
        with pytest.raises(SparkJobError, match="far enough"):
            open_session(**arguments)
        return self.settings["spark.master"]


@pytest.mark.slow
def test_an_argument_goes_before_variables_and_those_before_files(tmp_path: Path, no_settings: pytest.MonkeyPatch):
    started = Started(no_settings)
    assert started.on() == "local[*]"
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[4]\nspark.driver.memory 5g\n")
    no_settings.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert started.on() == "local[4]"
    assert "spark.driver.memory" not in started.settings
    no_settings.setenv("PYSPARK_SUBMIT_ARGS", "--master local[3] pyspark-shell")
    assert started.on() == "local[3]"
    no_settings.setenv("MASTER", "local[2]")
    assert started.on() == "local[2]"
    assert started.on(master="local[1]") == "local[1]"


def test_a_cluster_gets_nothing_that_suits_one_machine(no_settings: pytest.MonkeyPatch):
    started = Started(no_settings)
    assert started.on(master="spark://there:7077") == "spark://there:7077"
    assert set(started.settings) & set(local_settings()) == set()
    assert "PYSPARK_PYTHON" not in os.environ


def test_connect_says_what_it_needs(no_settings: pytest.MonkeyPatch):
    Started(no_settings)
    no_settings.setattr(sessions, "find_spec", {"grpc": "found", "grpc_status": "found"}.get)
    with pytest.raises(SparkJobError) as caught:
        open_session(remote="sc://there")
    assert "sc://there uses Spark Connect" in str(caught.value)
    assert "pip install pandas zstandard`" in str(caught.value) and "SPARK_REMOTE" in str(caught.value)
    no_settings.setenv("SPARK_REMOTE", "sc://elsewhere")
    with pytest.raises(SparkJobError, match="sc://elsewhere"):
        open_session()
    with pytest.raises(SparkJobError, match="sc://elsewhere"):
        check_start()


def test_a_server_may_be_named_as_a_master_and_this_machine_as_a_server(no_settings: pytest.MonkeyPatch):
    started = Started(no_settings)
    no_settings.setattr(sessions, "find_spec", {}.get)
    with pytest.raises(SparkJobError, match="sc://there"):
        open_session(master="sc://there")
    assert started.on(remote="local[3]") == "local[3]"
    no_settings.setenv("SPARK_REMOTE", "local[5]")
    assert started.on() == "local[5]"
    no_settings.setenv("SPARK_REMOTE", "sc://there")
    assert started.on(master="local[2]") == "local[2]"


def test_a_server_needs_no_java_here(no_settings: pytest.MonkeyPatch, tmp_path: Path):
    no_settings.setenv("JAVA_HOME", str(tmp_path / "none"))
    with pytest.raises(JavaError):
        check_start()
    no_settings.setattr(sessions, "find_spec", lambda _: "found")
    no_settings.setenv("SPARK_REMOTE", "sc://there")
    assert check_start() is None
    no_settings.setenv("SPARK_REMOTE", "local")
    with pytest.raises(JavaError):
        check_start()

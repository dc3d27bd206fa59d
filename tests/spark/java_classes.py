"""The classes of Spark as Java has loaded and verified them once, in a file that every Java of the tests maps.

Tests start Spark two dozen times, because users' programs do, and each start loads and verifies thousands of classes.
`make test` writes the file, 185 MB in build/, if this Java and this Spark have none yet. Without it the same tests run,
and take longer.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "SPARK_SUBMIT_OPTS"
"""Spark starts Java with the options in it, and says nothing of them."""

BUILD = Path(__file__).resolve().parents[2] / "build"
NAME = "spark-classes-{}.jsa"
SEED = 3
WRITE_S = 600
CRASHES = 10


def archive() -> Path | None:
    """The file for this Java and this Spark, whether or not it is there; Java refuses that of another."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=home and os.path.join(home, "bin"))
    spark = find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        return None
    parts = (Path(java).resolve(), Path(spark.origin).parent / "jars")
    key = "".join(f"{part}{part.stat().st_mtime_ns}" for part in parts)
    return BUILD / NAME.format(hashlib.sha256(key.encode()).hexdigest()[:16])


def java_options() -> dict[str, str]:
    """The variable with which a Java of Spark's maps the file, if it is there."""
    found = archive()
    if found is None or not found.exists():
        return {}
    # Without its log, Java says nothing about a file that does not suit it.
    return {VARIABLE: f"-XX:SharedArchiveFile={found} -Xlog:disable"}


def write(path: Path) -> None:
    """Audit a run with crashes, and read and write tables, in a Java that writes its classes to the file as it ends."""
    from backedge.recovery.spark.audit.audit_job import audit
    from backedge.recovery.spark.cut_tables.job_folder import JobFolder
    from backedge.recovery.spark.sessions import gateway
    from backedge.recovery.spark.sessions.spark_session import session_for
    from proof.runner import run_seed
    from tests.spark.simulated import write_run

    # By then most Javas are stuck; this one writes 185 MB, which takes a busy machine longer.
    gateway._EXIT_S = WRITE_S

    BUILD.mkdir(exist_ok=True)
    for old in BUILD.glob(NAME.format("*")):
        old.unlink()
    unfinished = path.with_suffix(f".{os.getpid()}")
    os.environ[VARIABLE] = f"-XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    with tempfile.TemporaryDirectory() as folder, session_for("classes", "local[2]") as spark:
        _, world, _ = run_seed(SEED, CRASHES)
        verdict = audit(spark, JobFolder.open(str(write_run(world, Path(folder)))), "all")
        if not verdict.consistent:
            raise RuntimeError("\n".join(verdict.lines()))
        rows = spark.range(8).selectExpr("id AS number", "CAST(id AS STRING) AS word")
        for kind in ("parquet", "json", "csv"):
            rows.write.format(kind).save(f"{folder}/{kind}")
            spark.read.format(kind).load(f"{folder}/{kind}").exceptAll(rows).collect()
    unfinished.replace(path)


if __name__ == "__main__":
    wanted = archive()
    if wanted is not None and not wanted.exists():
        write(wanted)

"""JobDocuments that somebody has changed and sealed again, and all commands that read documents without Spark.

`python -m tests.stores.fuzzing COUNT [SEED]` does as many as it is told and prints how many were refused.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from backedge.command import main
from backedge.recovery.spark.audit.job_documents import conclude, judge_documents, read_documents
from backedge.recovery.spark.audit.manifest_checks import has_readable_files
from backedge.recovery.spark.cut_tables.job_folder import JobFolder
from backedge.recovery.spark.cut_tables.manifest_tables import MANIFEST_TABLES, rows_of
from backedge.recovery.spark.report.verdict_page import page_of
from backedge.recovery.spark.spark_errors import UnreadableError
from backedge.recovery.stores import chain as chains
from backedge.recovery.stores.documents import FORMAT, sealed, sha256
from proof.runner import run_seed
from tests.spark.simulated import write_run

# A run with rounds, crashes and several cuts.
SEED, CRASHES = 99, 3

WEIGHTS = {"manifest": 6, "chain": 2, "graph": 2}
"""How often a kind of document is changed; the others once."""

PLANTED = "nobody may execute this"
"""What a pickle in the documents would print."""

NASTY: list[Any] = [
    *(None, True, -1, 0, 1, 2.5, 1e308, (1 << 31) - 1, 1 << 31, 1_000_000_000, (1 << 63) - 1, 1 << 63, -(1 << 200)),
    *("", "x", "7", "\0", "\ud800", "ä\u202eb", "a\nconsistent: 1 cut of job", "\x1b[2J\x1b[1mconsistent", "x" * 300),
    *("../../../etc/passwd", "/etc/passwd", "epoch=1/attempt=1/manifest-00000002.json"),
    # Calls print.
    (b"cbuiltins\nprint\n(V" + PLANTED.encode() + b"\ntR.").hex(),
    *([], {}, [[]], [None], {"": None}, {"x": {"y": [1, "z"]}}),
]


class Watched:
    """What Python does while documents are read: no pickle is resolved, no program started, no code compiled."""

    EVENTS = frozenset({"pickle.find_class", "exec", "compile", "subprocess.Popen"})
    EVENTS |= {"os.system", "os.exec", "os.posix_spawn", "os.fork"}

    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        "".encode("unicode_escape")  # importing the codec, which messages need, executes its module
        # A hook stays for good; switched off it does nothing.
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Any) -> None:
        if self.is_on and event in self.EVENTS:
            self.seen.append(f"{event} {arguments}")

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False


class Fuzzed:
    """A job whose documents are changed one after the other; all are put right again in between."""

    def __init__(self, root: Path) -> None:
        _, world, _ = run_seed(SEED, CRASHES)
        kept, chains.ENTRIES_KEPT = chains.ENTRIES_KEPT, 4
        try:
            self.path = write_run(world, root, "job", keep=3)
        finally:
            chains.ENTRIES_KEPT = kept
        self.root = root
        self.files = sorted(path for path in self.path.rglob("*.json"))
        self.right = {path: path.read_bytes() for path in self.files}
        self.entries = sorted((self.path / "chain").glob("*.json"))
        self.epochs = JobFolder.open(str(self.path)).cuts()

    def kinds(self) -> dict[str, list[Path]]:
        kinds: dict[str, list[Path]] = {}
        for path in self.files:
            name = path.parent.name if path.parent.name in {"chain", "past"} else path.name.partition("-")[0]
            kinds.setdefault(name, []).append(path)
        return kinds

    def change(self, rng: random.Random) -> str:
        """Change one document, seal it, and make the chain whole again. Says which kind it was."""
        kinds = self.kinds()
        kind = rng.choice([kind for kind in sorted(kinds) for _ in range(WEIGHTS.get(kind, 1))])
        path = rng.choice(kinds[kind])
        if rng.random() < 0.1:
            path.write_bytes(torn(self.right[path], rng))
            return kind
        document = plain(self.right[path])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            if document:
                mutate(document, rng)
        with contextlib.suppress(ValueError, RecursionError):  # it cannot be written as JSON: the document stays
            path.write_bytes(sealed(document, None))
            self.seal_chain()
        return kind

    def seal_chain(self) -> None:
        """Let the chain list the manifests that are there now."""
        past = max((self.path / "past").glob("*.json"))
        parent = plain(past.read_bytes()).get("sha256")
        for path in self.entries:
            entry = plain(path.read_bytes())
            with contextlib.suppress(KeyError, TypeError, ValueError, OSError, AttributeError):
                data = (self.path / entry["manifest"]["name"]).read_bytes()
                entry["manifest"].update(size=len(data), sha256=sha256(data))
            if entry.get("parent") != plain(self.right[path]).get("parent"):
                parent = entry.get("parent")  # it was changed on purpose
            entry["parent"] = parent
            path.write_bytes(sealed(entry, None))
            parent = sha256(path.read_bytes())

    def put_right(self) -> None:
        for path, data in self.right.items():
            path.write_bytes(data)


def plain(data: bytes) -> dict[str, Any]:
    return {name: value for name, value in json.loads(data).items() if name not in ("seal", "format")}


def mutate(document: Any, rng: random.Random) -> None:
    holder = rng.choice(list(_holders(document)))
    places = list(range(len(holder))) if isinstance(holder, list) else list(holder)
    place, value = rng.choice(places), deepcopy(rng.choice(NASTY))
    match rng.randrange(8):
        case 0:
            del holder[place]
        case 1:
            if isinstance(holder, list):
                holder.append(holder[place])
            else:
                holder[rng.choice(["more", "\x1b[31m", "ä\ud800"])] = value
        case 2:
            other = rng.choice(places)
            holder[place], holder[other] = holder[other], holder[place]
        case 3:
            number = holder[place]
            holder[place] = number + rng.choice((-1, 1)) if type(number) is int else [number]
        case 4:
            holder[place] = deep(rng.choice((5, 500)))
        case _:
            holder[place] = value


def deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


def _holders(value: Any) -> Iterator[Any]:
    if isinstance(value, list | dict) and value:
        yield value
        for part in value.values() if isinstance(value, dict) else value:
            yield from _holders(part)


def torn(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    broken = [data[:place], data[:place] + bytes([rng.randrange(256)]) + data[place + 1 :], data + data]
    broken += [b"", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"null", b"\0" * 1_000]
    formats = (b"9" * 5_000, b"1e999", b"NaN", b'%d,"format":%d' % (FORMAT, FORMAT))
    return rng.choice([*broken, *(b'{"format":%s}' % of for of in formats)])


def read_everything(job: Fuzzed) -> Counter[str]:
    """List, show, and judge without Spark. Raises `AssertionError` where it is not told in clean lines."""
    outcomes: Counter[str] = Counter()
    for name, arguments in {
        "list": ["list"],
        "list json": ["list", "--json"],
        "show": ["show", str(job.epochs[-1])],
        "show json": ["show", str(job.epochs[0]), "--json"],
    }.items():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["snapshots", *arguments, "--snapshots", str(job.root)])
        check(code in {0, 1, 2}, f"exit code {code}")
        check_clean(out.getvalue())
        check_clean(err.getvalue())
        check(len(err.getvalue().splitlines()) == (code == 2), err.getvalue())
        outcomes[f"{name} {code}"] += 1
    try:
        outcomes[f"audit {judge(job)}"] += 1
    except UnreadableError as refused:
        check_clean(f"{refused}\n")
        check(len(str(refused).splitlines()) == 1, str(refused))
        outcomes["audit refused"] += 1
    return outcomes


def judge(job: Fuzzed) -> str:
    """The part of an audit that needs no Spark, its lines and its page."""
    folder = JobFolder.open(str(job.path))
    documents = read_documents(folder, "all")
    found = judge_documents(documents)
    verdict = conclude(folder, documents, found, set())
    check_clean("\n".join(verdict.lines()))
    json.dumps(verdict.to_json())
    page_of(verdict.to_json())
    for cut in documents.cuts.values():
        if has_readable_files(cut):
            manifests = {cut.epoch: cut.manifest}
            for table in MANIFEST_TABLES:
                rows_of(table, folder, manifests)
    return "consistent" if verdict.consistent else "not consistent"


def check_clean(text: str) -> None:
    """Nothing that a terminal obeys, and no line that looks like ours."""
    for line in text.split("\n"):
        check(line.isprintable(), f"printed raw: {line!r}")
    check(PLANTED not in text.split("\n"), "a pickle was executed")


def check(holds: bool, told: str) -> None:
    """Not an assertion: it holds under -O, too."""
    if not holds:
        raise AssertionError(told)


def fuzz(root: Path, count: int, seed: int, progress: Callable[[int], None] = lambda _: None) -> Counter[str]:
    """Change so many documents, one after the other, and have each read by all."""
    rng, job, watched = random.Random(seed), Fuzzed(root), Watched()
    outcomes = read_everything(job)  # imports what it needs
    check(outcomes["audit consistent"] == 1 and outcomes["list 0"] == 1 and outcomes["show 0"] == 1, str(outcomes))
    for number in range(count):
        kind = job.change(rng)
        try:
            with watched.on():
                found = read_everything(job)
        except Exception as error:
            error.add_note(f"seed {seed}, document {number}, {kind}")
            raise
        check(not watched.seen, f"seed {seed}, document {number}, {kind}: {watched.seen}")
        outcomes += found
        outcomes[f"changed {kind}"] += 1
        job.put_right()
        progress(number + 1)
    return outcomes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        count, seed = map(int, [*sys.argv[1:], "1"][:2])
        for outcome, times in sorted(fuzz(Path(folder), count, seed).items()):
            print(f"{times:7,} {outcome}")

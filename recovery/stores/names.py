"""Names of files and folders below the folder of a job. Every one of them is made here.

A name becomes one part of a path: what could lead elsewhere, or means something to a reader of partition folders, is
percent-encoded, and a name that would be too long for a file system ends in its digest. What comes back from a
manifest is taken apart and checked part by part. So no name leads out of the folder, whoever made it up.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from typing import Literal

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.stores.digests import digits_in

Parts = tuple[str, ...]
"""A path below the folder of a job, part by part."""

Table = Literal["state", "rows", "log", "transactions", "rounds"]
KEYED: tuple[Table, ...] = ("state", "rows")
"""Tables whose files hold state by key group: entries, and the rows of a process class's table."""

_SPECIAL = frozenset("/\\=:%*?\"'<>|#{}~")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_NAME_BYTES_MAX = 200
_LATER_PART = re.compile(r"(?<=\.)([0-9]+)-[0-9]+\.parquet\Z")

JOB = "job.json"
STATUS = "status.json"
CHAIN = "chain"
PAST = "past"
INPUTS = "inputs"
ANSWERS = "answers"
CONSTANTS = "constants"
TEMPORARY = ".part-"
"""What a name begins with under which a file is written that is not whole yet. It is never read."""


def encoded(name: str) -> str:
    """A name as a part of a path, or of a file's name. Different names stay different.

    >>> encoded("rank"), encoded("../rank"), encoded("a.out->b.in")
    ('rank', '%2E.%2Frank', 'a.out-%3Eb.in')
    """
    text = "".join(_escaped(c) if c in _SPECIAL or unicodedata.category(c) in _INVISIBLE else c for c in name)
    # Readers of partition folders take what begins with a dot or an underscore for hidden.
    if text[:1] in {"", ".", "_", " "}:
        text = (_escaped(text[0]) if text else "%") + text[1:]
    if text[-1] in ". ":
        text = text[:-1] + _escaped(text[-1])
    data = text.encode()
    if len(data) <= _NAME_BYTES_MAX:
        return text
    # No name that fits holds a bare "~", so a shortened one is never another's.
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return data[: _NAME_BYTES_MAX - 65].decode("utf-8", "ignore").rstrip("%. ") + "~" + digest


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def epoch_folder(epoch: Epoch | None) -> str:
    """The folder of an epoch; None is for the last states of tasks that have ended."""
    return "epoch=last" if epoch is None else f"epoch={int(epoch)}"


def attempt_folder(attempt: Attempt, epoch: Epoch | None) -> Parts:
    """Where an attempt writes an epoch.

    >>> attempt_folder(Attempt(2), Epoch(7))
    ('epoch=7', 'attempt=2')
    """
    return (epoch_folder(epoch), f"attempt={int(attempt)}")


def manifest_file(attempt: Attempt, epoch: Epoch, number: int) -> Parts:
    """The manifest of a cut, and the number of the entry that names it.

    Another entry may get that number. The removal of this file may then be carried out late, so its name is used for no
    other one.

    >>> manifest_file(Attempt(2), Epoch(7), 12)
    ('epoch=7', 'attempt=2', 'manifest-00000012.json')
    """
    return (*attempt_folder(attempt, epoch), f"manifest-{number:08d}.json")


def is_unfinished(name: str) -> bool:
    """Whether a file is one that is being written, or that a process has left which died.

    >>> is_unfinished("constants/.part-0123"), is_unfinished("constants/f00d-77aa.constant")
    (True, False)
    """
    return name.rpartition("/")[2].startswith(TEMPORARY)


def has_manifest_name(name: str) -> bool:
    """Whether a file in the folder of an attempt is a manifest.

    >>> has_manifest_name("manifest-00000012.json"), has_manifest_name("manifest.json"), has_manifest_name("job.json")
    (True, False, False)
    """
    start, _, number = name.partition("-")
    return start == "manifest" and entry_number(number) is not None


def number_in(part: str, key: Literal["epoch", "attempt"]) -> int | None:
    """The number of an epoch's or attempt's folder; None for any other name.

    >>> number_in("epoch=7", "epoch"), number_in("epoch=last", "epoch"), number_in("graph-1.json", "epoch")
    (7, None, None)
    """
    name, _, number = part.partition("=")
    return int(number) if name == key and number.isascii() and number.isdigit() else None


def task_file(task: TaskId, part: int = 0) -> str:
    """The name of the files of a task, one in each table; a large table has further parts.

    >>> task_file(TaskId("rank", 0)), task_file(TaskId("rank", 0), 2)
    ('rank.0.parquet', 'rank.0-2.parquet')
    """
    return f"{encoded(task.name)}.{int(task.index)}{f'-{part}' if part else ''}.parquet"


def first_part(name: str) -> str:
    """The name of the first part of a table, from that of any part.

    >>> first_part("rank.0-2.parquet"), first_part("rank.0.parquet")
    ('rank.0.parquet', 'rank.0.parquet')
    """
    return _LATER_PART.sub(r"\1.parquet", name)


def table_file(folder: Parts, table: Table, of: str | None, task: TaskId, part: int = 0) -> Parts:
    """A task's file in a table; `of` is the operator, the loop in the table of logs, None in a table of whole tasks.

    >>> "/".join(table_file(("epoch=7", "attempt=2"), "log", "again", TaskId("rank", 0)))
    'epoch=7/attempt=2/table=log/loop=again/rank.0.parquet'
    """
    return (*folder, *table_folder(table, of), task_file(task, part))


def table_folder(table: Table, of: str | None) -> Parts:
    """Where the files of a table are in the folder of an attempt.

    >>> table_folder("state", "rank"), table_folder("rounds", None)
    (('table=state', 'operator=rank'), ('table=rounds',))
    """
    key = "loop" if table == "log" else "operator"
    return (f"table={table}",) if of is None else (f"table={table}", f"{key}={encoded(of)}")


def table_of(name: str) -> Parts:
    """The folders of the table that a file is in, by the file's name; none if it says none.

    >>> table_of("epoch=7/attempt=2/table=state/operator=rank/rank.0.parquet"), table_of("job.json")
    (('table=state', 'operator=rank'), ())
    """
    parts = (parts_of(name) or ())[2:-1]
    return parts if len(parts) in (1, 2) and path_of(parts).startswith("table=") else ()


def is_of_rows(name: str) -> bool:
    """Whether a file holds rows of a process class's table, by the file's name.

    >>> is_of_rows("epoch=7/attempt=2/table=rows/operator=sums/sums.0.parquet")
    True
    """
    return table_of(name)[:1] == table_folder("rows", None)


def input_piece(epoch: Epoch, attempt: Attempt, task: TaskId, number: int) -> Parts:
    """A piece of what a task got after an epoch (`input_pieces.py`).

    >>> "/".join(input_piece(Epoch(7), Attempt(2), TaskId("rank", 0), 3))
    'inputs/epoch=7/attempt=2/rank.0-3.piece'
    """
    return (INPUTS, *attempt_folder(attempt, epoch), f"{encoded(task.name)}.{int(task.index)}-{number}.piece")


def answer_group(segment: Epoch, operator: str, group: str) -> Parts:
    """Some answers of an operator (`answer_journal.py`).

    >>> "/".join(answer_group(Epoch(7), "ask", "2-1f0c9a-c0de"))
    'answers/epoch=7/ask.2-1f0c9a-c0de.answers'
    """
    return (ANSWERS, epoch_folder(segment), f"{encoded(operator)}.{group}.answers")


def answer_groups_of(operator: str, name: str) -> bool:
    """Whether this is the name of some answers of an operator.

    >>> [answer_groups_of(operator, "answers/epoch=7/ask.2-1f0c9a-c0de.answers") for operator in ("ask", "as", "ask.2")]
    [True, False, False]
    """
    return name.rpartition("/")[2].rsplit(".", 2)[0] == encoded(operator)


def attempt_of_group(name: str) -> Attempt:
    """The attempt that has written a group of answers.

    >>> attempt_of_group("answers/epoch=7/ask.2-1f0c9a-c0de.answers")
    2
    """
    return Attempt(int(name.rsplit(".", 2)[1].partition("-")[0]))


def kept_flow(digest: str) -> Parts:
    """The flow that attempts ran whose inputs are kept."""
    return (INPUTS, f"flow-{digest}.pickle")


def constant_file(digest: str, run: str) -> Parts:
    """The value of a constant, by its digest and the number of the run that wrote it.

    >>> "/".join(constant_file("sha256:f00d", "77aa"))
    'constants/f00d-77aa.constant'
    """
    return (CONSTANTS, f"{digits_in(digest)}-{run}.constant")


def is_of_constant(name: str) -> bool:
    """Whether a file is the value of a constant, by its name.

    >>> is_of_constant("constants/f00d-77aa.constant"), is_of_constant("constants/../job.json")
    (True, False)
    """
    parts = parts_of(name) or ()
    return len(parts) == 2 and parts[0] == CONSTANTS and parts[1].endswith(".constant")


def version_file(digest: str, attempt: Attempt, of: str, number: int) -> Parts:
    """The version `number` of `of` that a task has published in an attempt, by its digest: no two have one file.

    >>> "/".join(version_file("blake3:f00d", Attempt(2), "weights", 11))
    'constants/f00d-2.11.9a129038.constant'
    """
    return constant_file(digest, f"{attempt}.{number}.{hashlib.sha256(of.encode()).hexdigest()[:8]}")


def attempt_of_version(name: str) -> Attempt | None:
    """The attempt that has published a version; None for any other file.

    >>> attempt_of_version("constants/f00d-2.11.9a129038.constant"), attempt_of_version("constants/f00d-77aa.constant")
    (2, None)
    """
    attempt, dot, _ = (run_of_constant(name) or "").partition(".")
    return Attempt(int(attempt)) if dot and attempt.isascii() and attempt.isdigit() else None


def run_of_constant(name: str) -> str | None:
    """The run that wrote the value of a constant; None for any other file.

    >>> run_of_constant("constants/f00d-77aa.constant"), run_of_constant("constants/lost+found")
    ('77aa', None)
    """
    return name.removesuffix(".constant").rpartition("-")[2] if is_of_constant(name) else None


def entry_file(number: int) -> Parts:
    """An entry of the chain.

    >>> entry_file(3)
    ('chain', '00000003.json')
    """
    return (CHAIN, f"{number:08d}.json")


def past_file(ordinal: int) -> Parts:
    """What is needed of the first entries of a chain, when it was shortened for this time.

    >>> past_file(2)
    ('past', '00000002.json')
    """
    return (PAST, f"{ordinal:08d}.json")


def entry_number(name: str) -> int | None:
    """The number of an entry's file, or of a past's; None for any other name, a torn temporary file's for instance."""
    stem, _, ending = name.partition(".")
    return int(stem) if ending == "json" and len(stem) >= 8 and stem.isascii() and stem.isdigit() else None


def graph_file(graph_hash: str) -> Parts:
    return (f"graph-{encoded(graph_hash)}.json",)


def path_of(parts: Parts) -> str:
    """The parts as one name, as a manifest says it."""
    return "/".join(parts)


def parts_of(name: str) -> Parts | None:
    """The parts of a name that a manifest says; None if it leads anywhere but down.

    >>> parts_of("epoch=7/attempt=2/manifest-00000012.json"), parts_of("../job.json"), parts_of("/etc/passwd")
    (('epoch=7', 'attempt=2', 'manifest-00000012.json'), None, None)
    """
    parts = tuple(name.split("/"))
    return None if "\0" in name or any(part in {"", ".", ".."} for part in parts) else parts

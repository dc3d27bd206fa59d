"""The journal of answers: what a restore reads of it, what is removed, and what is refused before it is decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from backedge.graphs.ids import Attempt, Epoch
from backedge.recovery.protocol.answers import Known, Question
from backedge.recovery.stores.answer_journal import AnswerJournal
from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.names import ANSWERS
from backedge.recovery.stores.store_errors import OutcomeUnknownError, SnapshotAuthError, SnapshotCorruptError
from tests.stores.lost_replies import LosesAReply

KEY = b"a key of sixteen"


def known(number: int) -> Known:
    return Known(Question(-5, "why", number), b"because %d" % number)


def journal(folder: Path, key: bytes | None = None) -> AnswerJournal:
    return CutStore(str(folder), "job", key).answers


def groups(folder: Path) -> list[Path]:
    return sorted((folder / "job" / "answers").rglob("*.answers"))


def test_a_restore_reads_the_segments_from_its_cut_on_of_every_attempt_and_process(tmp_path: Path):
    for segment, attempt in ((0, 1), (2, 1), (2, 2), (3, 2)):
        journal(tmp_path).write(Epoch(segment), Attempt(attempt), "ask", [known(10 * segment + attempt)])
    journal(tmp_path).write(Epoch(3), Attempt(2), "as", [known(99)])
    assert sorted(journal(tmp_path).read("ask", Epoch(2))) == [(2, known(21)), (2, known(22)), (3, known(32))]


def test_a_group_that_was_written_although_its_reply_is_lost_is_there_once(tmp_path: Path):
    """Each entry with a cost is a call that was paid for."""
    kept = CutStore(LosesAReply(str(tmp_path), ANSWERS), "job").answers
    with pytest.raises(OutcomeUnknownError):
        kept.write(Epoch(1), Attempt(1), "ask", [known(1)])
    kept.write(Epoch(1), Attempt(1), "ask", [known(1)])
    kept.write(Epoch(1), Attempt(1), "ask", [known(2)])
    assert sorted(journal(tmp_path).read("ask", Epoch(0))) == [(1, known(1)), (1, known(2))]


def test_segments_are_read_in_their_order(tmp_path: Path):
    """An answer that was written again, without its cost, comes behind the one with the cost."""
    for segment in (10, 9, 2):
        journal(tmp_path).write(Epoch(segment), Attempt(1), "ask", [known(segment)])
    assert [segment for segment, _ in journal(tmp_path).read("ask", Epoch(0))] == [2, 9, 10]


def test_segments_before_the_oldest_cut_are_removed(tmp_path: Path):
    for segment in (0, 1, 2):
        journal(tmp_path).write(Epoch(segment), Attempt(1), "ask", [known(segment)])
    journal(tmp_path).remove(Epoch(1))
    assert sorted(journal(tmp_path).read("ask", Epoch(0))) == [(1, known(1)), (2, known(2))]


def test_segments_are_not_listed_at_each_cut_while_an_old_savepoint_is_kept(tmp_path: Path):
    """There is one for each cut since."""

    class Listing(FolderStore):
        listed = 0

        def folders(self, folder: str = "") -> list[str]:
            Listing.listed += folder == ANSWERS
            return super().folders(folder)

    kept = CutStore(Listing(str(tmp_path)), "job").answers
    for segment in range(1, 6):
        kept.write(Epoch(segment), Attempt(1), "ask", [known(segment)])
        kept.remove(Epoch(1))
    assert Listing.listed == 1
    kept.remove(Epoch(5))
    assert Listing.listed == 2 and [segment for segment, _ in kept.read("ask", Epoch(0))] == [5]


@pytest.mark.parametrize("key", [None, KEY], ids=["unsigned", "signed"])
def test_a_group_that_was_changed_is_refused(tmp_path: Path, key: bytes | None):
    journal(tmp_path, key).write(Epoch(1), Attempt(1), "ask", [known(1)])
    (group,) = groups(tmp_path)
    group.write_bytes(group.read_bytes().replace(b"because 1", b"because 2"))
    with pytest.raises(SnapshotCorruptError, match="SHA-256"):
        list(journal(tmp_path, key).read("ask", Epoch(0)))


def test_a_group_under_another_name_is_refused(tmp_path: Path):
    journal(tmp_path).write(Epoch(1), Attempt(1), "ask", [known(1)])
    (group,) = groups(tmp_path)
    group.rename(group.with_name(group.name.replace("ask", "tell")))
    with pytest.raises(SnapshotCorruptError, match="another group"):
        list(journal(tmp_path).read("tell", Epoch(0)))


def test_a_group_without_a_signature_is_refused_where_a_key_is_given(tmp_path: Path):
    journal(tmp_path, KEY).write(Epoch(1), Attempt(1), "ask", [known(1)])
    (signed,) = groups(tmp_path)
    journal(tmp_path / "forged").write(Epoch(1), Attempt(1), "ask", [known(2)])
    (forged,) = groups(tmp_path / "forged")
    signed.with_name(forged.name).write_bytes(forged.read_bytes())
    with pytest.raises(SnapshotAuthError):
        list(journal(tmp_path, KEY).read("ask", Epoch(0)))

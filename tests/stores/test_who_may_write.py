"""Whoever can write into the folder of a job can have code run when it is restored: such folders need a key."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from backedge.recovery.stores.cut_store import CutStore
from backedge.recovery.stores.folder_store import FolderStore, check_own
from backedge.recovery.stores.job_identity import is_job, jobs_in
from backedge.recovery.stores.keys import derived_key, key_in_file, signing_key
from backedge.recovery.stores.store_errors import StoreError
from tests.stores.snapshots import begin, begun, complete

KEY = b"of the owner"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_only_the_owner_can_read_what_a_store_keeps(tmp_path: Path):
    before = os.umask(0)
    try:
        store = CutStore(str(tmp_path / "root"), "job")
        begin(store)
        complete(store, 1)
    finally:
        os.umask(before)
    everything = [Path(store.path), *Path(store.path).rglob("*")]
    assert len(everything) > 7
    assert {(path.is_dir(), mode_of(path)) for path in everything} == {(True, 0o700), (False, 0o600)}
    assert mode_of(tmp_path / "root") == 0o777, "the folder above is the user's affair"


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_to_is_refused_without_a_key(tmp_path: Path, mode: int):
    (tmp_path / "job").mkdir()
    (tmp_path / "job").chmod(mode)
    with pytest.raises(StoreError, match=r"\(mode \d+\).*`chmod go-w`.* BACKEDGE_KEY"):
        CutStore(str(tmp_path), "job")
    assert list((tmp_path / "job").iterdir()) == []


def test_a_folder_that_others_may_write_to_can_be_used_with_a_key(tmp_path: Path):
    (tmp_path / "job").mkdir()
    (tmp_path / "job").chmod(0o777)
    store = CutStore(str(tmp_path), "job", KEY)
    begin(store)
    complete(store, 1)
    assert CutStore(str(tmp_path), "job", KEY).cut(store.chain()[-1].epoch).epoch == 1  # type: ignore[union-attr]


def test_a_folder_that_is_opened_to_others_later_is_refused_before_anything_is_read(tmp_path: Path):
    store = begun(tmp_path)
    complete(store, 1)
    Path(store.path).chmod(0o777)
    for read in (store.chain, lambda: store.cut(1), lambda: store.create(9, store.chain()[0])):  # type: ignore[arg-type]
        with pytest.raises(StoreError, match=r"\(mode \d+\)"):
            read()


def test_a_folder_of_another_user_is_refused_and_one_of_root_is_not(tmp_path: Path):
    ours = os.geteuid()
    owned = [os.stat_result((0o40700, 0, 0, 2, owner, 0, 0, 0, 0, 0)) for owner in (ours, 0, ours + 1)]
    for found in owned[:2]:
        check_own(str(tmp_path), found)
    with pytest.raises(StoreError, match=rf"\(uid {ours + 1}\b.*\bsign"):
        check_own(str(tmp_path), owned[2])


# -- where the key comes from --------------------------------------------------------------------------------------


class OfAnotherUser(FolderStore):
    """The folder of a job that another user runs: nobody else may look into it."""

    def facts(self, name: str) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", name)


def test_a_job_of_another_user_does_not_hide_the_others(tmp_path: Path):
    begin(CutStore(str(tmp_path), "job"))
    (tmp_path / "nothing").mkdir()
    root = FolderStore(str(tmp_path))
    assert jobs_in(root) == ["job"]
    assert is_job(OfAnotherUser(str(tmp_path)).below("theirs")), "opening it says what is wrong"


def test_a_key_that_is_given_goes_before_that_of_the_environment():
    given, other = b"given" * 4, b"other" * 4
    assert signing_key(given, {"BACKEDGE_KEY": other.decode()}) == given
    assert signing_key(None, {"BACKEDGE_KEY": other.decode()}) == other
    assert signing_key(None, {"BACKEDGE_KEY": os.fsdecode(b"\xff" * 16)}) == b"\xff" * 16


def test_a_key_that_is_none_is_refused_and_not_shown(tmp_path: Path):
    for given, environment, told in (
        (b"", {}, "key= is empty"),
        ("secret", {}, "key= is of type str: give the key as bytes"),
        (None, {"BACKEDGE_KEY": ""}, "variable BACKEDGE_KEY is empty"),
        (b"s3cr", {}, r"key= has 4 bytes, fewer than 16: make a key with `head -c 32 /dev/urandom"),
        (None, {"BACKEDGE_KEY": "fifteen bytes.."}, "variable BACKEDGE_KEY has 15 bytes"),
    ):
        with pytest.raises(StoreError, match=told) as refused:
            signing_key(given, environment)  # type: ignore[arg-type]
        assert all(key not in str(refused.value) for key in ("secret", "s3cr", "fifteen bytes"))


def test_the_key_in_a_file_has_no_line_end(tmp_path: Path):
    file = tmp_path / "key"
    file.write_bytes(b"\nsixteen bytes...\r\n\n")
    assert key_in_file(str(file), "--key-file key") == b"\nsixteen bytes..."
    too_large = (b"x" * 70_000, "is larger than 65,536 bytes")
    for content, told in ((b"\n", "is empty"), (b"fifteen bytes..\n", "has 15 bytes"), too_large):
        file.write_bytes(content)
        with pytest.raises(StoreError, match=f"--key-file key {told}"):
            key_in_file(str(file), "--key-file key")


def test_what_signs_output_is_not_what_signs_documents():
    assert derived_key(None, "output") == b""
    assert len({derived_key(KEY, "output"), derived_key(KEY, "other"), derived_key(b"another", "output"), KEY}) == 4

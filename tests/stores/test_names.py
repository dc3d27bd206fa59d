"""No name leads out of the folder of a job, and different names stay different."""

from __future__ import annotations

import pytest

from backedge.graphs.ids import TaskId
from backedge.recovery.stores.digests import Digest
from backedge.recovery.stores.names import encoded, entry_number, number_in, parts_of, table_file
from backedge.recovery.stores.shapes import ShapeError, converted

HOSTILE = [
    *("../rank", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "rank\0", "a\nb", "_hidden", ".hidden", "table=state"),
    *("100%", "%2E", "~", "ends.", " spaces ", "\ud800", "CON", "%" * 100, "ä" * 300),
    *("x" * 300, "x" * 301, "x" * 3000 + "/.."),
]


def test_an_encoded_name_is_one_visible_part_of_a_path_and_different_names_stay_different():
    parts = [encoded(name) for name in HOSTILE]
    assert len({*parts}) == len(HOSTILE)
    for part in parts:
        assert part not in {"", ".", ".."} and part[0] not in "._ "
        assert not set(part) & {"/", "\\", "\0", "\n", "="}
        assert len(part.encode()) <= 200


def test_a_harmless_name_stays_as_it_is():
    for name in ("rank", "map-1", "a.b c", "größe", "x" * 150):
        assert encoded(name) == name


def test_every_part_of_a_file_of_hostile_names_fits_a_file_system():
    for name in HOSTILE:
        parts = table_file(("epoch=1", "attempt=1"), "log", name, TaskId(name, 123456))
        assert parts_of("/".join(parts)) == parts
        assert all(len(part.encode()) <= 255 for part in parts)


def test_names_that_lead_elsewhere_or_are_no_entry_or_epoch_are_not_taken_for_one():
    assert {*map(parts_of, ("../x", "/x", "a//b", "a/./b", "a/..", "", "a\0b", "a/"))} == {None}
    arabic = "\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661.json"
    no_entries = (".part-00000001.json", "00000001.json.bak", "1.json", "00000001", arabic)
    assert {*map(entry_number, no_entries)} == {None}
    assert [number_in(part, "epoch") for part in ("epoch=12", "epoch=", "epoch=x", "attempt=1")] == [12, *[None] * 3]
    assert number_in("epoch=-1", "epoch") is None


def test_what_is_no_digest_is_refused():
    for digest in ("0" * 64, "md5:" + "0" * 64, "blake3:" + "0" * 63, "blake3:" + "G" * 64, 7, None):
        with pytest.raises(ShapeError):
            converted(digest, Digest)

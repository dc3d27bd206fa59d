"""No name leads out of the folder of a job, and different names stay different."""

from __future__ import annotations

import pytest

from backedge.graphs.ids import TaskId
from backedge.recovery.stores.digests import Digest
from backedge.recovery.stores.names import encoded, entry_number, number_in, parts_of, table_file
from backedge.recovery.stores.shapes import ShapeError, converted

HOSTILE = [
    "../rank",
    "..",
    ".",
    "",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "rank\0",
    "a\nb",
    "_hidden",
    ".hidden",
    "table=state",
    "100%",
    "%2E",
    "~",
    "ends.",
    " spaces ",
    "\ud800",
    "ä" * 300,
    "x" * 300,
    "x" * 301,
    "x" * 3000 + "/..",
    "%" * 100,
    "CON",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_an_encoded_name_is_one_visible_part_of_a_path(name: str):
    part = encoded(name)
    assert part not in {"", ".", ".."}
    assert not set(part) & {"/", "\\", "\0", "\n", "="}
    assert part[0] not in "._ "
    assert len(part.encode()) <= 200


def test_different_names_stay_different():
    assert len({encoded(name) for name in HOSTILE}) == len(HOSTILE)


@pytest.mark.parametrize("name", ["rank", "map-1", "a.b c", "größe", "x" * 150])
def test_a_harmless_name_stays_as_it_is(name: str):
    assert encoded(name) == name


def test_every_part_of_a_file_of_hostile_names_fits_a_file_system():
    for name in HOSTILE:
        parts = table_file(("epoch=1", "attempt=1"), "log", name, TaskId(name, 123456))
        assert parts_of("/".join(parts)) == parts
        assert all(len(part.encode()) <= 255 for part in parts)


@pytest.mark.parametrize("name", ["../x", "/x", "a//b", "a/./b", "a/..", "", "a\0b", "a/"])
def test_a_name_that_leads_elsewhere_has_no_parts(name: str):
    assert parts_of(name) is None


@pytest.mark.parametrize(
    "name",
    [
        ".part-00000001.json",
        "00000001.json.bak",
        "1.json",
        "00000001",
        "\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661.json",
    ],
)
def test_only_numbered_files_are_entries(name: str):
    assert entry_number(name) is None


def test_folders_of_epochs_are_told_from_all_others():
    assert [number_in(part, "epoch") for part in ("epoch=12", "epoch=", "epoch=x", "attempt=1", "epoch=-1")] == [
        12,
        None,
        None,
        None,
        None,
    ]


@pytest.mark.parametrize("digest", ["0" * 64, "md5:" + "0" * 64, "blake3:" + "0" * 63, "blake3:" + "G" * 64, 7, None])
def test_what_is_no_digest_is_refused(digest: object):
    with pytest.raises(ShapeError):
        converted(digest, Digest)

"""What travels between two processes comes out as it went in."""

from __future__ import annotations

import pickle

from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.on_ray.transport.frames import (
    NO_CHANNEL,
    Kind,
    pack_credit,
    pack_item,
    pack_note,
    unpack_credit,
    unpack_header,
    unpack_item,
)
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.credit import Credit
from backedge.recovery.protocol.messages import Barrier, Data, End, Item, Marker, Mode, encode_marker
from tests.every import every

MARKER = Marker((3, 0), ((TaskId("grow", 1), 2.5),), Epoch(7))
ITEMS: list[Item] = [
    Data(1, encode(Batch(["a", {"b": 2}], [0, 3]))),
    Data(2**40, b""),
    Data(9, encode_marker(MARKER), MARKER),
    Barrier(Epoch(4), Mode.ALIGNED, 17, 0xFFFFFFFF),
    Barrier(Epoch(5), Mode.UNALIGNED_PROBE, 0, 0, 40, Epoch(3)),
    End(12, 99),
]


@every("item", ITEMS)
def test_an_item_comes_out_as_it_went_in(item: Item):
    header, payload = pack_item(Attempt(2), 5, item)
    kind, attempt, channel, number = unpack_header(header)
    assert (attempt, channel) == (2, 5)
    assert unpack_item(kind, number, payload) == item


def test_the_bytes_on_the_wire_are_the_bytes_of_the_batch():
    payload = encode(Batch([1, 2, 3]))
    header, sent = pack_item(Attempt(1), 0, Data(4, payload))
    assert sent is payload
    assert decode(unpack_item(*_kind_and_number(header), sent).payload).records == [1, 2, 3]


def test_the_kind_of_an_item_stands_in_its_header():
    kinds = [unpack_header(pack_item(Attempt(1), 0, item)[0])[0] for item in ITEMS]
    assert kinds == [Kind.BATCH, Kind.BATCH, Kind.MARKER, Kind.BARRIER, Kind.BARRIER, Kind.END]
    assert max(Kind.BATCH, Kind.MARKER, Kind.BARRIER, Kind.END) < Kind.CREDIT, "what goes to a core comes first"


def test_credit_of_any_size_passes():
    credit = Credit(7, 1 << 40, 4_000_000_000)
    header, payload = pack_credit(Attempt(3), 8, credit)
    assert unpack_header(header) == (Kind.CREDIT, 3, 8, 7)
    assert unpack_credit(7, payload) == credit


def test_a_note_belongs_to_no_channel():
    header, payload = pack_note(Kind.ORDERS, Attempt(3), ["one", "two"])
    assert unpack_header(header) == (Kind.ORDERS, 3, NO_CHANNEL, 0)
    assert pickle.loads(payload) == ["one", "two"]


def _kind_and_number(header: bytes) -> tuple[int, int]:
    kind, _, _, number = unpack_header(header)
    return kind, number

"""The pictures of ARCHITECTURE.md: the way of a batch through a loop, and the messages of a cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from svg_picture import picture, text

MARGIN = 16

# -- the way of a batch ----------------------------------------------------------------------------------------------

BOX_WIDTH, BOX_HEIGHT, BOX_TOP, GAP = 134, 58, 72, 36
BOXES = (
    ("source task", "reads a batch"),
    ("inbox of the head", "counts and queues it"),
    ("head", "runs user code"),
    ("body of the loop", "runs user code"),
    ("sink task", "writes a transaction"),
)
SOURCE, INBOX, HEAD, BODY = range(4)
BATCH_WIDTH, BATCH_HEIGHT = 2 * MARGIN + len(BOXES) * BOX_WIDTH + (len(BOXES) - 1) * GAP, 208
STEPS_ON_EDGES = (1, 3, None, 6)
"""The number of the step that each edge to the right belongs to, in the list below the picture."""


def _batch() -> Iterator[str]:
    top, middle, bottom = BOX_TOP, BOX_TOP + BOX_HEIGHT / 2, BOX_TOP + BOX_HEIGHT
    for number, (name, does) in enumerate(BOXES):
        yield f'<rect class="task" x="{_left(number)}" y="{top}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>'
        yield text(_center(number), middle - 4, name)
        yield text(_center(number), middle + 14, does, "small")
    for number, step in enumerate(STEPS_ON_EDGES):
        begin = _left(number) + BOX_WIDTH
        yield f'<path class="edge" d="M{begin} {middle} h{GAP} m-6 -4 l6 4 l-6 4"/>'
        if step is not None:
            yield from _step(step, begin + GAP / 2 - 2, middle - 16)
        over = top - 26
    yield (
        f'<path class="edge" stroke-dasharray="4 4" d="M{_center(HEAD)} {top} V{over} H{_center(SOURCE)} V{top} '
        'm-4 -6 l4 6 l4 -6"/>'
    )
    yield from _step(4, _center(INBOX), over)
    yield text(_center(INBOX), over - 16, "grants credit", "small")
    under, entry = bottom + 44, _left(INBOX) + 14
    yield (
        f'<path class="edge" stroke-width="3" d="M{_center(BODY)} {bottom} V{under} H{entry} V{bottom} '
        'm-5 7 l5 -7 l5 7"/>'
    )
    yield from _step(2, entry + 22, bottom + 16)
    yield text(entry + 36, bottom + 20, "while a log is open, it goes there as well", "small", "start")
    yield from _step(5, _center(HEAD), under)
    yield text(_center(HEAD), under + 22, "back edge: never waits for credit", "small")


def _left(box: int) -> int:
    return MARGIN + box * (BOX_WIDTH + GAP)


def _center(box: int) -> int:
    return _left(box) + BOX_WIDTH // 2


def _step(number: int, x: float, y: float) -> Iterator[str]:
    yield f'<circle class="task" cx="{x:.0f}" cy="{y:.0f}" r="10"/>'
    yield text(x, y + 4, str(number), "label")


# -- the messages of a cut -------------------------------------------------------------------------------------------

COORDINATOR, OF_SOURCE, OF_HEAD, OF_BODY, STORE = range(5)
LINES = ("coordinator", "source", "head", "body", "store")
LINE_GAP, ROW = 168, 30
CUT_WIDTH, CUT_TOP = 2 * MARGIN + (len(LINES) - 1) * LINE_GAP + 104, 62


@dataclass(frozen=True)
class Sent:
    """A message from one line to another; records are drawn with dashes."""

    sender: int
    receiver: int
    words: str
    is_records: bool = False


@dataclass(frozen=True)
class Does:
    """What the process of a line does."""

    line: int
    words: str


CUT = (
    Sent(COORDINATOR, OF_SOURCE, "trigger 7"),
    Sent(COORDINATOR, OF_HEAD, "trigger 7"),
    Does(OF_SOURCE, "captures its positions"),
    Sent(OF_SOURCE, OF_HEAD, "barrier 7"),
    Does(OF_HEAD, "has all regular barriers: captures, opens the log"),
    Sent(OF_HEAD, OF_BODY, "barrier 7"),
    Sent(OF_BODY, OF_HEAD, "earlier records", is_records=True),
    Does(OF_HEAD, "writes them to the log"),
    Does(OF_BODY, "captures"),
    Sent(OF_BODY, OF_HEAD, "barrier 7"),
    Does(OF_HEAD, "barrier 7 has come round: seals the log"),
    Sent(OF_SOURCE, STORE, "snapshot"),
    Sent(OF_HEAD, STORE, "snapshot and loop log"),
    Sent(OF_BODY, STORE, "snapshot"),
    Sent(OF_SOURCE, COORDINATOR, "acknowledge 7"),
    Sent(OF_HEAD, COORDINATOR, "acknowledge 7"),
    Sent(OF_BODY, COORDINATOR, "acknowledge 7"),
    Sent(COORDINATOR, STORE, "manifest: cut 7 is complete"),
    Sent(COORDINATOR, OF_BODY, "publish the output that cut 7 lists"),
)
CUT_HEIGHT = CUT_TOP + len(CUT) * ROW + MARGIN


def _cut() -> Iterator[str]:
    for line, name in enumerate(LINES):
        yield f'<path class="edge" d="M{_at(line)} {MARGIN + 28} V{CUT_HEIGHT - MARGIN}"/>'
        yield f'<rect class="task" x="{_at(line) - 52}" y="{MARGIN}" width="104" height="28" rx="6"/>'
        yield text(_at(line), MARGIN + 19, name)
    for row, event in enumerate(CUT):
        y = CUT_TOP + row * ROW + 14
        yield from _message(event, y) if isinstance(event, Sent) else _deed(event, y)


def _message(sent: Sent, y: int) -> Iterator[str]:
    begin, end = _at(sent.sender), _at(sent.receiver)
    back = -6 if end > begin else 6
    dashes = ' stroke-dasharray="4 4"' if sent.is_records else ""
    yield f'<path class="edge"{dashes} d="M{begin} {y} H{end}"/>'
    yield f'<path class="edge" d="M{end + back} {y - 4} L{end} {y} l{back} 4"/>'
    # Beside its sender, a label crosses no other line.
    yield text(begin - back, y - 5, sent.words, "label", "start" if end > begin else "end")


def _deed(does: Does, y: int) -> Iterator[str]:
    yield f'<circle class="record" cx="{_at(does.line)}" cy="{y - 4}" r="4"/>'
    yield text(_at(does.line) + 10, y, does.words, "label good", "start")


def _at(line: int) -> int:
    return MARGIN + 52 + line * LINE_GAP


def pictures() -> dict[str, str]:
    """Names of files, and their content."""
    batch = "A batch goes from the source through the inbox and the code of the head to the body, and back to the inbox"
    cut = "The messages of cut 7 in their order, from the first trigger to the publication of output"
    return {
        "one_batch.svg": picture(batch, BATCH_WIDTH, BATCH_HEIGHT, _batch()),
        "one_cut.svg": picture(cut, CUT_WIDTH, CUT_HEIGHT, _cut()),
    }

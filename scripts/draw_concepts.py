"""The pictures of docs/concepts.md: a loop, a barrier that goes round it, what a cut consists of, and a recovery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from svg_picture import picture, text

WIDTH, SCENE_HEIGHT, MARGIN = 680, 176, 16
TASK_WIDTH, TASK_HEIGHT, TASK_TOP = 104, 38, 46
LEFT_OF = {"source": 24, "head": 200, "body": 376, "sink": 552}
FORWARD = {"in": ("source", "head"), "on": ("head", "body"), "out": ("body", "sink")}
BACK = "back"
BACK_BOTTOM = 138
LOG_LEFT, LOG_TOP, LOG_WIDTH, LOG_HEIGHT = 24, 108, 190, 44


@dataclass(frozen=True)
class Scene:
    """One moment of the loop. Positions on an edge go from 0, at its sender, to 1."""

    caption: str
    records: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, "tuple[float, ...]"])
    barrier: tuple[str, float] | None = None
    saved: frozenset[str] = frozenset()
    dead: str = ""
    logged: int | None = None
    """Records in the loop log; None where none is open."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What stands above a task."""


EVERY_TASK = frozenset(LEFT_OF)

PICTURES = {
    "loop": (
        "A loop: records go from the source through head and body, and some of them return to the head",
        [
            Scene(
                "Records enter at the head, and leave from the body or go round once more.",
                {"in": (0.3, 0.75), "on": (0.25, 0.6), "out": (0.5,), BACK: (0.15, 0.5, 0.8)},
                notes={"source": "reads", "head": "entry of the loop", "body": "decides", "sink": "writes"},
            )
        ],
    ),
    "barrier": (
        "Barrier 7 travels from the source through the head, round the loop, and back to the head",
        [
            Scene(
                "1. The source saves its position and sends barrier 7 behind the records that it has sent.",
                {"in": (0.8,), "on": (0.5,), BACK: (0.3, 0.7)},
                ("in", 0.35),
                frozenset({"source"}),
            ),
            Scene(
                "2. The head saves its state. It does not wait for the back edge: it opens the loop log instead.",
                {"in": (0.4,), "on": (0.75,), BACK: (0.45, 0.8)},
                ("on", 0.3),
                frozenset({"source", "head"}),
                logged=0,
            ),
            Scene(
                "3. The body saves its state. What reaches the head before the barrier is written to the log.",
                {"in": (0.6,), "on": (0.4,), "out": (0.7,), BACK: (0.55,)},
                (BACK, 0.25),
                frozenset({"source", "head", "body"}),
                logged=2,
            ),
            Scene(
                "4. The barrier has come round, so the log is complete, and with it cut 7.",
                {"in": (0.3,), "on": (0.3, 0.7), "out": (0.4,), BACK: (0.35,)},
                (BACK, 0.97),
                EVERY_TASK,
                logged=3,
            ),
        ],
    ),
    "cut": (
        "A cut consists of the position of the source, the states, the loop log and the prepared output",
        [
            Scene(
                "Cut 7 has each record exactly once: not yet read, in a state, in the loop log, or in the output.",
                saved=EVERY_TASK,
                logged=3,
                notes={
                    "source": "position: 120 read",
                    "head": "state by key",
                    "body": "state by key",
                    "sink": "prepared output",
                },
            )
        ],
    ),
    "recovery": (
        "The process of the body dies; all tasks return to cut 7, and the records of the log go round again",
        [
            Scene(
                "1. Later, the process of the body dies. Its state and what was on its way are gone.",
                {"in": (0.4,), "on": (0.3, 0.7), "out": (0.5,), BACK: (0.4, 0.75)},
                dead="body",
                notes={"source": "135 read", "body": "SIGKILL"},
            ),
            Scene(
                "2. Every task returns to cut 7, the body in a new process. Nothing runs before all are back.",
                saved=EVERY_TASK,
                logged=3,
                notes={"source": "120 read", "body": "a new process"},
            ),
            Scene(
                "3. The logged records go through the head first. The source reads 121 to 135 again.",
                {"in": (0.5,), BACK: (0.7, 0.82, 0.94)},
                notes={"source": "123 read"},
            ),
        ],
    ),
}


def pictures() -> dict[str, str]:
    """Names of files, and their content."""
    return {f"{name}.svg": _picture(title, scenes) for name, (title, scenes) in PICTURES.items()}


def _picture(title: str, scenes: list[Scene]) -> str:
    """The scenes below one another, as SVG."""
    drawn = (
        f'<g transform="translate(0 {MARGIN // 2 + number * SCENE_HEIGHT})">\n' + "\n".join(_drawn(scene)) + "\n</g>"
        for number, scene in enumerate(scenes)
    )
    return picture(title, WIDTH, len(scenes) * SCENE_HEIGHT + MARGIN, drawn)


def _drawn(scene: Scene) -> Iterator[str]:
    yield text(MARGIN, 18, scene.caption, "", "start")
    for edge in FORWARD:
        (x, y), (end, _) = _place(edge, 0), _place(edge, 1)
        yield f'<path class="edge" d="M{x} {y} H{end} m-6 -4 l6 4 l-6 4"/>'
    (x, y), (end, _) = _place(BACK, 0), _place(BACK, 1)
    yield f'<path class="edge" d="M{x} {y} V{BACK_BOTTOM} H{end} V{y} m-4 6 l4 -6 l4 6"/>'
    yield text((x + end) / 2, BACK_BOTTOM + 16, "back edge", "small")
    for task, left in LEFT_OF.items():
        look = "dead" if task == scene.dead else "saved" if task in scene.saved else "task"
        yield f'<rect class="{look}" x="{left}" y="{TASK_TOP}" width="{TASK_WIDTH}" height="{TASK_HEIGHT}" rx="6"/>'
        yield text(left + TASK_WIDTH / 2, TASK_TOP + 24, task)
        if task in scene.notes:
            tone = "small bad" if task == scene.dead else "small"
            yield text(left + TASK_WIDTH / 2, TASK_TOP - 6, scene.notes[task], tone)
    for edge, positions in scene.records.items():
        for position in positions:
            x, y = _place(edge, position)
            yield f'<circle class="record" cx="{x:.0f}" cy="{y:.0f}" r="5"/>'
    if scene.logged is not None:
        yield from _log(scene.logged)
    if scene.barrier is not None:
        yield from _barrier(*scene.barrier)


def _log(records: int) -> Iterator[str]:
    yield f'<rect class="log" x="{LOG_LEFT}" y="{LOG_TOP}" width="{LOG_WIDTH}" height="{LOG_HEIGHT}" rx="4"/>'
    yield text(LOG_LEFT + 10, LOG_TOP + 27, "loop log", "good", "start")
    for number in range(records):
        yield f'<circle class="record" cx="{LOG_LEFT + 92 + 20 * number}" cy="{LOG_TOP + 22}" r="5"/>'


def _barrier(edge: str, position: float) -> Iterator[str]:
    x, y = _place(edge, position)
    is_upright = edge == BACK and y < BACK_BOTTOM
    yield (
        f'<path class="barrier" d="M{x - 10:.0f} {y:.0f} h20"/>'
        if is_upright
        else (f'<path class="barrier" d="M{x:.0f} {y - 10:.0f} v20"/>')
    )
    yield text(x + 20, y + 5, "7", "good") if is_upright else text(x, y - 14, "7", "good")


def _place(edge: str, position: float) -> tuple[float, float]:
    """The point of an edge."""
    if edge in FORWARD:
        sender, receiver = FORWARD[edge]
        left, right = LEFT_OF[sender] + TASK_WIDTH, LEFT_OF[receiver]
        return left + position * (right - left), TASK_TOP + TASK_HEIGHT / 2
    begin, end = LEFT_OF["body"] + TASK_WIDTH / 2, LEFT_OF["head"] + TASK_WIDTH / 2
    top = TASK_TOP + TASK_HEIGHT
    down, across = BACK_BOTTOM - top, begin - end
    way = position * (2 * down + across)
    if way < down:
        return begin, top + way
    if way < down + across:
        return begin - (way - down), BACK_BOTTOM
    return end, BACK_BOTTOM - (way - down - across)

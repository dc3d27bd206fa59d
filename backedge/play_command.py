"""`backedge play`: a recorded run of a flow as one HTML file, in which a reader kills any process at any moment."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from backedge.arguments import check_page
from backedge.engine.simulation.play import Recorder, recorded
from backedge.engine.simulation.simulation import SimulationError
from backedge.flows import flow_at, settings_in
from backedge.graphs.deployment import Deployment
from backedge.graphs.flow import Flow
from backedge.graphs.picture_layout import Spot
from backedge.graphs.task_errors import TaskError
from backedge.printing import refuse
from backedge.recovery.spark.report.graph_places import Size, place

NODE = Size(190, 82, across=130)


def write_play(options: argparse.Namespace) -> int:
    """Record the flow that the command line names, and write the page."""
    flow = flow_at(options.flow, settings_in(options.settings))
    path = Path(options.page)
    check_page(path)
    try:
        page = page_of(flow, options.seed)
    except (SimulationError, TaskError) as error:
        return refuse("play", error)
    path.write_text(page, encoding="utf-8")
    return 0


def page_of(flow: Flow, seed: int = 0) -> str:
    """The page of a flow. The same flow and seed give the same text.

    >>> from backedge import Collect, Items
    >>> flow = Flow("shop")
    >>> flow.read(Items([1]), name="orders").write(Collect(), name="shipped")
    >>> "Play with the flow 'shop'" in page_of(flow)
    True
    """
    recorder = Recorder(flow, seed)
    plan = recorder.deployment.plan
    return page_with({"flow": plan.name, **recorded(recorder), "layout": layout_of(recorder.deployment)})


def page_with(data: Mapping[str, Any]) -> str:
    """The page that shows what was recorded."""
    return Template(_asset("play.html")).substitute(
        title=escape(f"Play with the flow {data['flow']!r}", quote=False),
        style=_asset("style.css") + _asset("play.css"),
        # In a script nothing but its end has a meaning for HTML, and texts of the flow might spell it.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        script=_asset("play.js"),
    )


def _asset(name: str) -> str:
    return files("backedge.page").joinpath("assets", name).read_text(encoding="utf-8")


def layout_of(deployment: Deployment) -> dict[str, Any]:
    """Where the processes and channels are, in the order of the deployment."""
    channels = list(deployment.channels.values())
    depth = Counter[Spot](str(task) for component in deployment.components for task in component.tasks)
    ends = [(str(channel.id.sender), str(channel.id.receiver)) for channel in channels]
    names = [str(task) for task in deployment.tasks]
    # Of two loops that feed each other, one back edge leads to the right: only what closes a cycle returns below.
    at, lines, width, height = place(names, ends, [False] * len(ends), NODE, depth)
    return {
        "node": NODE._asdict(),
        "nodes": {name: at[name] for name in names},
        "in_loop": [name for name in names if depth[name]],
        "channels": [
            {
                "sender": sender,
                "receiver": receiver,
                "path": line.path,
                "loop": (channel.edge.loop or channel.edge.name) if channel.is_back else None,
                "label": line.label,
            }
            for (sender, receiver), line, channel in zip(ends, lines, channels, strict=True)
        ],
        "width": width,
        "height": height,
    }

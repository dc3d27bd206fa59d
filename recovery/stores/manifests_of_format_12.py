"""Manifests of format 12: they have an object for each channel, where later ones have tables."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from backedge.graphs.describing import channel_tables
from backedge.recovery.stores.channel_tables import ChannelFigures, tables_of
from backedge.recovery.stores.shapes import Index, Text, converted

FIRST_FORMAT = 12
"""The first layout that later versions read (docs/recovery.md). Only manifests are different."""


class _Channel(Struct, forbid_unknown_fields=True):
    edge: Text
    sender: Text
    sender_index: Index
    receiver: Text
    receiver_index: Index
    is_back: bool
    within_actor: bool


class _Deployment(Struct):
    channels: list[_Channel]


class _Task(Struct):
    channels: list[ChannelFigures]


class _Channels(Struct):
    """What is different in such a manifest. The rest is checked afterwards."""

    deployment: _Deployment
    tasks: list[_Task]


def upgraded(document: Any) -> Any:
    """The same manifest as later versions write it. Raises `ShapeError` if a channel has the wrong shape."""
    if document["format"] != FIRST_FORMAT:
        return document
    found = converted(document, _Channels)
    channels = channel_tables(map(to_builtins, found.deployment.channels))
    return {
        **document,
        "deployment": {**document["deployment"], "channels": channels},
        "tasks": [
            {**task, "channels": to_builtins(tables_of(of_task.channels))}
            for task, of_task in zip(document["tasks"], found.tasks, strict=True)
        ],
    }

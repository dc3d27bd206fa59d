"""What a call of `run` or `start` has to be, before it starts anything or leaves anything behind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, cast

from engine.on_ray.planned_faults import Kill
from graphs.flow import checked_flow
from graphs.graph_errors import BadOptionError
from graphs.ids import Epoch
from graphs.naming import check_name
from graphs.options import is_above_zero, is_whole
from recovery.stores.local import LocalStore
from recovery.stores.manifests import CutDescription
from recovery.stores.names import JOB, epoch_folder
from recovery.stores.store_errors import NoSuchCutError
from recovery.supervisor import Supervisor


def faults_in(
    flow: object, snapshots: object, every: object, resume: object, seed: object, kills: object
) -> tuple[Kill, ...]:
    """The faults that a call plans. Raises unless all is of its type and in its range: not every user checks types.

    >>> from graphs import Flow
    >>> faults_in(Flow("rank"), None, 1.0, "never", 0, ["head@epoch=3"])
    (Kill(who='head', when='epoch', amount=3),)
    >>> faults_in(Flow("rank"), None, 1.0, "never", 0, "head@epoch=3")
    Traceback (most recent call last):
    graphs.graph_errors.BadOptionError: flow 'rank' has kills='head@epoch=3': give a list, as in kills=["head@epoch=3"]
    """
    what = f"flow {checked_flow(flow, 'run').name!r}"
    if snapshots is not None and not _is_path(snapshots):
        raise BadOptionError(f"{what} has snapshots={snapshots!r}: give the path of a folder, '.' for the current one")
    if not is_above_zero(every):
        raise BadOptionError(f"{what} has every={every!r}: give seconds above 0")
    if resume not in ("latest", "never") and not (is_whole(resume) and resume >= 1):
        raise BadOptionError(f"{what} has resume={resume!r}: give 'latest', 'never' or the number of an epoch")
    if snapshots is None and resume != "never":
        raise BadOptionError(
            f"{what} has resume={resume!r} and no snapshots=, so there is nothing to resume from: give snapshots= the "
            "folder of the run to go on with, or leave resume= out"
        )
    if not is_whole(seed):
        raise BadOptionError(f"{what} has seed={seed!r}: give an integer")
    faults = cast(Sequence[Any], kills)
    if isinstance(kills, str) or not isinstance(kills, Sequence) or not all(isinstance(kill, str) for kill in faults):
        raise BadOptionError(f'{what} has kills={kills!r}: give a list, as in kills=["head@epoch=3"]')
    return tuple(map(Kill.parse, faults))


def _is_path(given: object) -> bool:
    path = cast(Any, os.fspath(cast(str, given))) if isinstance(given, str | os.PathLike) else None
    return isinstance(path, str) and path != "" and "\0" not in path


def last_cut(store: LocalStore) -> Epoch | None:
    """The cut from which a run goes on that is asked for the latest; None if it begins."""
    return _read(store).continues_from


def _read(store: LocalStore) -> Supervisor:
    reader = Supervisor("")
    reader.read(store.numbered())
    return reader


def find_cut(root: str, job: str, epoch: int, key: bytes | None = None) -> CutDescription:
    """What a cut to go on from tells of itself. Makes nothing where there is no such job, as a store would."""
    if not os.path.isfile(os.path.join(root, check_name(job, "job"), JOB)):
        raise NoSuchCutError(
            f"{root} holds no run of {job!r}, and so no cut {epoch} to resume from: give the folder that the run was "
            "given, or resume from another; `backedge snapshots list` shows the cuts of a folder"
        )
    store = LocalStore(root, job, key)
    there = [str(cut) for cut in _read(store).cuts if os.path.isdir(os.path.join(store.path, epoch_folder(cut)))]
    if str(epoch) not in there:
        others = f"resume from one of {', '.join(there)}" if there else "it has none, so resume from latest to begin"
        raise NoSuchCutError(f"epoch {epoch} is no complete cut in {store.path}: {others}")
    return store.manifest_of(Epoch(epoch))

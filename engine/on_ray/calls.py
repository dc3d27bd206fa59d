"""What a call of `run` or `start` has to be, before it starts anything or leaves anything behind."""

from __future__ import annotations

import os

from graphs.ids import Epoch
from graphs.naming import check_name
from recovery.stores.errors import NoSuchCutError
from recovery.stores.local import LocalStore
from recovery.stores.manifests import CutDescription
from recovery.stores.names import JOB


def find_cut(root: str, job: str, epoch: int) -> CutDescription:
    """What a cut to go on from tells of itself. Makes nothing where there is no such job, as a store would."""
    if not os.path.isfile(os.path.join(root, check_name(job, "job"), JOB)):
        raise NoSuchCutError(
            f"{root} holds no run of {job!r}, and so no cut {epoch} to resume from: give the folder that the run was "
            "given, or resume from another; `backedge snapshots list` shows the cuts of a folder"
        )
    return LocalStore(root, job).manifest_of(Epoch(epoch))

"""Finds the cut to resume from in place of one that is damaged, or that other numbers of tasks cannot restore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from backedge.graphs.graph_errors import GraphError
from backedge.graphs.ids import Epoch
from backedge.recovery.protocol.protocol_errors import RescaleError
from backedge.recovery.stores.manifests import CutDescription
from backedge.recovery.stores.store_errors import SnapshotCorruptError, StoreError


def with_older_cut(
    fault: SnapshotCorruptError, damaged: Epoch, cuts: Sequence[Epoch], read: Callable[[Epoch], CutDescription]
) -> SnapshotCorruptError:
    """The same error, which also names the latest older cut that does not need the damaged file, if there is one.

    `read` reads the manifest of one of the `cuts`. The files of the older cut are not verified: that may take minutes.
    """
    try:
        is_of_cut = _is_about(fault, read(damaged))
    except SnapshotCorruptError:
        is_of_cut = True  # its manifest is damaged
    except (StoreError, OSError):
        is_of_cut = False
    for epoch in sorted(cuts, reverse=True) if is_of_cut else ():
        with suppress(StoreError, OSError):
            if epoch < damaged and not _is_about(fault, read(epoch)):
                return type(fault)(
                    f"{fault}; cut {epoch} does not need this file: resume={epoch} (--resume {epoch}) continues from "
                    "it, and publishes again what was published since"
                )
    return fault


def with_divisible_cut(
    fault: RescaleError, refused: Epoch, cuts: Sequence[Epoch], plan: Callable[[Epoch], object]
) -> RescaleError:
    """The same error, which also names the latest older cut that can be restored so, if there is one.

    `plan` plans the restore of one of the `cuts`, and raises if that is impossible.
    """
    for epoch in sorted((cut for cut in cuts if cut < refused), reverse=True):
        with suppress(RescaleError, GraphError, StoreError, OSError):
            plan(epoch)
            told = f"{fault}; cut {epoch} can be restored so: resume={epoch} (--resume {epoch}) continues from it"
            return RescaleError(f"{told}, and publishes again what was published since", is_for_good=fault.is_for_good)
    return fault


def _is_about(fault: SnapshotCorruptError, cut: CutDescription) -> bool:
    """Whether the error names a file of this cut."""
    return any(file.name in str(fault) for file in cut.files)

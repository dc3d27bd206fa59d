"""The options of a run's cuts."""

from __future__ import annotations

from msgspec import Struct

from backedge.recovery.protocol.messages import Mode
from backedge.recovery.protocol.state_files import COMPACTED_KEYS_MAX


class SnapshotOptions(Struct, frozen=True):
    """Options of a run's snapshots. `mode` is the policy of periodic epochs; `keep` counts cuts, not savepoints.

    `timeout_ms` is how long an epoch may stall before it is given up. `patience_ms` is how long tasks wait for the
    barriers of an aligned epoch before they capture past their queues; None means for ever. `files_max` is how many
    files may make up the keyed state of a task; with 1 each cut holds everything. `compacted_keys_max` is how many
    entries may be in those that are put into one.
    """

    mode: Mode = Mode.ALIGNED
    interval_ms: int = 1000
    timeout_ms: int = 60_000
    patience_ms: int | None = None
    pause_ms_min: int = 0
    probe_pause_ms: int = 20
    probe_pause_ms_max: int = 500
    quiet_ms: int = 300
    hopping_pause_ms: int = 5_000
    open_epochs_max: int = 1
    failures_tolerated: int = 10
    keep: int = 3
    files_max: int = 1
    compacted_keys_max: int = COMPACTED_KEYS_MAX

"""What goes wrong with a store. Each message says the fact, its context and the fix.

A full disk is none of these: an `OSError` of a write passes, the epoch is declined and the run goes on. Only
`OutcomeUnknownError` is an `OSError` after which nothing may be given up yet.
"""

from __future__ import annotations

from backedge.graphs.public import public


@public
class StoreError(Exception):
    """A store that cannot be used as asked. Catch this one to catch them all."""


@public
class SnapshotCorruptError(StoreError):
    """A file of the chain or of a cut is not what was written: torn, changed or gone. The message names its path.

    Fix: resume from the older cut that the message names (`resume=EPOCH`; `backedge snapshots list` shows all) and find
    out what changed the file. If it names none, restore the file from a backup.
    """


@public
class SnapshotAuthError(SnapshotCorruptError):
    """A record without the signature of the key: unsigned, of another key, or forged.

    Fix: give the key that the job was started with (`key=`, `--key-file` or BACKEDGE_KEY).
    """


@public
class NoSuchCutError(StoreError, LookupError):
    """No complete cut of that epoch: there never was one, or retention has dropped it.

    Fix: choose one of the cuts that `backedge snapshots list` shows.
    """


@public
class UnknownStoreError(StoreError):
    """No installed package registers the scheme of a URI, or the package that it needs is missing.

    Fix: correct the scheme, or install the package on all hosts: `pip install 'backedge[s3]'` or `'backedge[objects]'`.
    """


@public
class StoreContractError(StoreError):
    """A store does not give a guarantee that runs rely on. The message names the guarantee.

    Fix: use another store; for one of your own, run `backedge.testing.check_store`.
    """


@public
class OutcomeUnknownError(OSError):
    """Whether a file was created is unknown: the disk failed, or the reply was lost.

    Nothing was removed.

    Fix: create the same file again until the answer is known.
    """

"""What goes wrong with a store. Each message says the fact, its context and the fix.

A full disk is none of these: an `OSError` of a write passes, the epoch is declined and the run goes on. Only
`OutcomeUnknownError` is an `OSError` after which nothing may be given up yet.
"""

from __future__ import annotations


class StoreError(Exception):
    """A store that cannot be used as asked. Catch this one to catch them all."""


class SnapshotCorruptError(StoreError):
    """A file of the chain or of a cut is not what was written: torn, changed or gone. The message names its path."""


class SnapshotAuthError(SnapshotCorruptError):
    """A record without the signature of the key: unsigned, of another key, or forged."""


class NoSuchCutError(StoreError, LookupError):
    """No complete cut of that epoch: there never was one, or retention has dropped it."""


class UnknownStoreError(StoreError):
    """No installed package registers the scheme of a URI, or the package that it needs is missing."""


class StoreContractError(StoreError):
    """A store does not give a guarantee that runs rely on. The message names the guarantee."""


class OutcomeUnknownError(OSError):
    """Whether a file was created is unknown: the disk failed, or the reply was lost.

    Nothing was removed. Create the same file again until the answer is known.
    """

"""The constants and the versions of a job, below the folder `constants` of a job.

    constants/SHA256-RUN.constant                    the value of a constant, by the SHA-256 of its bytes
    constants/BLAKE3-ATTEMPT.NUMBER.NAME.constant    a version that a task has published (rule 17), by their BLAKE3

- The manifest of each cut names the constants of its run, with size and digest as it does for other files. So a value
  is written once, before the run that introduces it begins, and later runs that continue from its cuts name the same
  file. Its bytes are verified before anything of them is decoded.
- A removal may be carried out late, when another run has begun with the same value. So a run uses the file of another
  one only if the cut that it continues from names it. Otherwise it writes its own: a name ends with the id of its run.
- A file is removed with the last cut that names it. If a run dies before its first cut, a later run removes the file:
  when that has claimed the job, a run with an earlier entry in the chain is dead for good. A run that has no entry may
  be about to claim, so its files stay.
- A version is written by the first snapshot whose task keeps it, and is named by the manifests of all cuts whose task
  keeps it. What an attempt has published and no cut names is removed when a later attempt has claimed the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from backedge.recovery.cut.cut import Version
from backedge.recovery.stores.digests import digest_of_constant, has_digest
from backedge.recovery.stores.names import CONSTANTS, constant_file, is_of_constant, path_of
from backedge.recovery.stores.shapes import shown
from backedge.recovery.stores.store_calls import full_name, read_sized
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.task_files import StoredFile, VersionFile


class StoredConstants:
    """The constants of one job."""

    def __init__(self, store: Store) -> None:
        self._store = store
        # The files of the versions that this process has written.
        self._written: set[str] = set()

    def keep(self, values: Iterable[bytes], run: str) -> list[StoredFile]:
        """Write the values of a run that starts; return their files, in that order. Equal values have one file."""
        found: list[StoredFile] = []
        for data in values:
            digest = digest_of_constant(data)
            file = StoredFile(path_of(constant_file(digest, run)), len(data), digest, None)
            if file not in found:
                self._store.write({file.name: data})
                self._store.make_durable([file.name])
            found.append(file)
        return found

    def keep_versions(self, versions: Iterable[Version]) -> bool:
        """Write the versions that a capture holds and no earlier one has held. Returns whether there are any."""
        known = len(self._written)
        for version in versions:
            if version.data is not None and version.file not in self._written:
                self._store.write({version.file: b"".join(version.data)})
                self._store.make_durable([version.file])
                self._written.add(version.file)
        return len(self._written) > known

    def read_version(self, version: VersionFile) -> bytes:
        """The verified bytes of a version."""
        what = f"version {version.number} of {version.of!r}"
        return self._read(version.file, what, "restore it from a backup, or restore another cut")

    def read(self, name: str, file: StoredFile) -> bytes:
        """The verified bytes of a constant of this name."""
        fix = f"restore it from a backup, or give the value up with drop=[{name!r}] (--drop {name})"
        return self._read(file, f"the value of constant {name!r}", fix)

    def _read(self, file: StoredFile, what: str, fix: str) -> bytes:
        path = full_name(self._store, self._checked(file))
        try:
            data = read_sized(self._store, file.name, file.size)
        except FileNotFoundError as error:
            raise SnapshotCorruptError(f"{path} is missing, {what}: {fix}") from error
        if not has_digest(data, file.digest):
            raise SnapshotCorruptError(
                f"{path} was changed: its digest is not the one that the cut names for {what}, so nothing of it is "
                f"decoded; {fix}"
            )
        return data

    def remove(self, files: Iterable[StoredFile]) -> None:
        """Remove the values that no cut names."""
        self._store.remove(list(map(self._checked, files)))

    def of(self, is_dead: Callable[[str], bool]) -> list[str]:
        """The names of the files that a run or an attempt has written which is dead."""
        return [name for name in self._store.list(CONSTANTS) if is_dead(name)]

    def _checked(self, file: StoredFile) -> str:
        if not is_of_constant(file.name):
            raise SnapshotCorruptError(
                f"a manifest in {self._store.location} names {shown(file.name)} as the value of a constant: it is "
                "forged; nothing of it is read"
            )
        return file.name

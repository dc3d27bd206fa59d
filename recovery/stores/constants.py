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
  keeps it. Its digest is taken then, not while records wait. If the task keeps another one of the same content, both
  are in one file. What an attempt has published and no cut names is removed when a later attempt has claimed the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec.structs import replace

from backedge.graphs.ids import Attempt
from backedge.recovery.cut.cut import TaskSnapshot, Version
from backedge.recovery.stores.digests import digest_of_constant, digest_of_task_file
from backedge.recovery.stores.names import CONSTANTS, constant_file, is_of_constant, path_of, version_file
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.shapes import shown
from backedge.recovery.stores.store_calls import read_verified
from backedge.recovery.stores.store_errors import SnapshotCorruptError
from backedge.recovery.stores.store_protocol import Store
from backedge.recovery.stores.task_files import StoredFile, VersionFile


class StoredConstants:
    def __init__(self, store: Store) -> None:
        self._store = store
        # The versions of the last captures that this process has written, in their files; by attempt, name and number.
        self._written: dict[tuple[Attempt, str, int], Version] = {}

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

    def keep_versions(self, attempt: Attempt, snapshot: TaskSnapshot, settling: Settling) -> TaskSnapshot:
        """Write the versions that a capture holds and no earlier one has held; return it with all in their files.

        Call `have_kept` when these are durable.
        """
        operators = dict(snapshot.operators)
        for name, state in operators.items():
            in_files: list[Version] = []
            for version in state.versions:
                is_new = version.data is not None
                known = self._written.get((attempt, version.of, version.number)) if is_new else version
                in_files.append(known or self._write_version(attempt, version, in_files, settling))
            if in_files:
                operators[name] = replace(state, versions=tuple(in_files))
        return replace(snapshot, operators=operators)

    def _write_version(
        self, attempt: Attempt, version: Version, others: Iterable[Version], settling: Settling
    ) -> Version:
        digest = digest_of_task_file(version.data)
        for same in others:
            if same.digest == digest and same.of == version.of:
                return replace(same, number=version.number)
        file = path_of(version_file(digest, attempt, version.of, version.number))
        settling.write_pieces(file, [version.data])
        return Version(version.of, version.number, None, file, len(version.data), digest)

    def have_kept(self, attempt: Attempt, snapshot: TaskSnapshot) -> None:
        """The versions of a capture are durable. A later one of this task holds no others that are written."""
        kept = {(attempt, v.of, v.number): v for state in snapshot.operators.values() for v in state.versions}
        if kept:
            names = {of for _, of, _ in kept}
            self._written = {each: at for each, at in self._written.items() if each[1] not in names} | kept

    def read_version(self, version: VersionFile) -> bytes:
        what = f"version {version.number} of {version.of!r}"
        return self._read(version.file, what, "restore it from a backup, or restore another cut")

    def read(self, name: str, file: StoredFile) -> bytes:
        fix = f"restore it from a backup, or give the value up with drop=[{name!r}] (--drop {name})"
        return self._read(file, f"the value of constant {name!r}", fix)

    def _read(self, file: StoredFile, what: str, fix: str) -> bytes:
        self._checked(file)
        return read_verified(self._store, file, what, fix)

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

"""Which files make up the keyed state of each task, cut by cut (rule 14): the coordinator's part of incremental cuts.

- A task knows cuts, never files. Its trigger names a base; it writes what changed since, or everything, and says which.
- The list of a task is one file if it wrote everything, else the list of the base and one more. If a delta holds all
  keys of the base's own delta, the task says so by naming the base's base. Then it takes the place of that delta,
  unless a compaction of that very list is under way, on which it is as good. So a list does not grow while the same
  keys change.
- A list has two limits: its number of files, and its deltas have no more bytes than the file below them. A task is not
  given a base if the next delta could exceed a limit, taken to be as large as the largest one in the list, and as an
  eighth of the state (of many keys it has no more, see `engine/state/touched_keys.py`). So a restore reads at most
  twice the state, even if no compaction ever succeeds. A larger delta exceeds that once: the next cut is whole.
  (`FEW_BYTES` cost nothing.)
- A compaction reads the list of a complete cut and writes one new file. It takes that leading part's place in the next
  manifest whose list begins with exactly that part. If none does, it is forgotten, and a sweep removes it.
- A compaction decodes the entries a second time. So of a large state only the deltas are put into one, and the file
  below them stays. When they hold too many keys for that as well, the list grows to its limit, and then a cut is whole.
  A capture of everything stops a large task for long, so a state of which the same keys change needs none.
- The deltas of a large state are put into one before they hold too many keys, but only if the later ones hold as many
  as the first, which may be such a compaction: otherwise each cut would write it once more.
- A compaction is filed under an epoch number of its own, later than every sweep that was ordered before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.protocol.effects import Report
from backedge.recovery.protocol.orders import Compact, FileId, StateFile

FEW_BYTES = 1_000_000
FEW_KEYS = 2_000
"""Twice what a small state may change from cut to cut: so where all of it changes, nothing is put into one in vain."""
COMPACTED_KEYS_MAX = 100_000
COMPACTED_SHARE = 8
"""A compaction decodes this number of entries at most, or an eighth of a larger state, all in memory at once."""

StateLists = Mapping[TaskId, tuple[StateFile, ...]]
"""Task -> the files with its keyed state, oldest first."""


class StateFiles:
    """The lists of one attempt's cuts.

    - lists: complete cut -> its lists; of the cuts that an open or future epoch may have as its base.
    - running: task -> the compaction that is under way. ready: task -> one that is done, and its file.
    """

    def __init__(
        self,
        attempt: Attempt,
        files_max: int,
        restored: Epoch | None,
        states: StateLists,
        compacted_keys_max: int = COMPACTED_KEYS_MAX,
    ) -> None:
        self.attempt = attempt
        self.files_max = files_max
        self.compacted_keys_max = compacted_keys_max
        self.lists: dict[Epoch, StateLists] = {} if restored is None else {restored: states}
        self.running: dict[TaskId, Compact] = {}
        self.ready: dict[TaskId, tuple[Compact, StateFile]] = {}

    def may_be_base(self, epoch: Epoch) -> bool:
        """Whether tasks may write what changed since this cut: no list has reached its limit."""
        return epoch in self.lists and not any(self._is_at_limit(files) for files in self.lists[epoch].values())

    def _is_at_limit(self, files: tuple[StateFile, ...]) -> bool:
        below, *deltas = (file.size for file in files)
        room = max(below, FEW_BYTES)
        return len(files) >= self.files_max or sum(deltas) + max(room // 8, *deltas, 0) > room

    def composed(
        self, base: Epoch | None, files: Mapping[TaskId, Epoch | None], reports: Mapping[TaskId, Report]
    ) -> StateLists:
        """The lists of a cut with this base, from what its tasks have written and say of it."""
        found: dict[TaskId, tuple[StateFile, ...]] = {}
        for task, report in reports.items():
            own = StateFile(self.attempt, files[task], report.keys, report.size)
            below = () if base is None or report.base is None else self._below(task, base, report.base)
            found[task] = (*below, own)
        return found

    def _below(self, task: TaskId, base: Epoch, since: Epoch) -> tuple[StateFile, ...]:
        """The files below a delta that holds what changed since a cut: the base, or the base's own."""
        files = self.lists[base][task]
        replaced = self._replaced(task, files)
        return replaced[:-1] if since < base and self._compacted_files(task) != files else replaced

    def _compacted_files(self, task: TaskId) -> tuple[StateFile, ...] | None:
        """The files that a compaction puts into one, or has put into one that is not named yet."""
        if task in self.ready:
            return self.ready[task][0].files
        return self.running[task].files if task in self.running else None

    def _replaced(self, task: TaskId, files: tuple[StateFile, ...]) -> tuple[StateFile, ...]:
        if task in self.ready:
            order, file = self.ready[task]
            if files[: len(order.files)] == order.files:
                return (*files[: order.left], file, *files[len(order.files) :])
        return files

    def on_complete(self, epoch: Epoch, lists: StateLists, bases: Iterable[Epoch]) -> None:
        """The cut is complete; `bases` are those of the epochs that are open."""
        wanted = {*bases, epoch}
        self.lists = {cut: of_cut for cut, of_cut in {**self.lists, epoch: lists}.items() if cut in wanted}
        self.running = {task: order for task, order in self.running.items() if self._fits(order)}
        self.ready = {task: one for task, one in self.ready.items() if self._fits(one[0])}

    def _fits(self, order: Compact) -> bool:
        """Whether a list that a later one may continue begins with what the compaction replaces."""
        return any(of_cut[order.task][: len(order.files)] == order.files for of_cut in self.lists.values())

    def due(self, epoch: Epoch) -> list[TaskId]:
        """The tasks whose list in this complete cut is to be put into one file."""
        lists = self.lists[epoch]
        return [task for task in lists if not self._is_busy(task) and self._left(lists[task]) is not None]

    def _is_busy(self, task: TaskId) -> bool:
        return task in self.running or task in self.ready

    def _left(self, files: tuple[StateFile, ...]) -> int | None:
        """How many of the first files a compaction is to leave as they are; None if the list needs none."""
        below, *deltas = (file.keys for file in files)
        changed, keys_max = sum(deltas), self.compacted_keys_max
        # Half way to a limit.
        is_long = 2 * len(files) > self.files_max
        if below + changed <= keys_max:
            return 0 if deltas and (is_long or 2 * changed > max(below, FEW_KEYS)) else None
        keys_max = max(keys_max, below // COMPACTED_SHARE)
        if len(deltas) < 2 or changed > keys_max:
            return None
        return 1 if is_long or (2 * changed > keys_max and changed >= 2 * deltas[0]) else None

    def compact(self, task: TaskId, cut: Epoch, epoch: Epoch) -> Compact:
        """Have the task's list in a complete cut put into one file, filed under this epoch."""
        files = self.lists[cut][task]
        order = self.running[task] = Compact(task, epoch, files, self._left(files) or 0)
        return order

    def on_compacted(self, task: TaskId, epoch: Epoch, keys: int | None, size: int = 0) -> None:
        """The file is durable, with `keys` entries and `size` bytes; None if it could not be written.

        Repeating changes nothing.
        """
        order = self.running.get(task)
        if order is not None and order.epoch == epoch:
            del self.running[task]
            if keys is not None:
                self.ready[task] = order, StateFile(self.attempt, epoch, keys, size)

    @property
    def outputs(self) -> frozenset[FileId]:
        """The files of compactions that run, or wait to be named: a sweep spares them."""
        orders = [*self.running.values(), *(order for order, _ in self.ready.values())]
        return frozenset(FileId(self.attempt, order.epoch, order.task) for order in orders)

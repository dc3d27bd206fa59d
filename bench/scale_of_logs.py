"""What a loop's log costs in a cut and after it, in one process, without Ray; files go into a folder.

`python -m bench.scale_of_logs RECORDS` prints a line of JSON: records, and for each step its CPU seconds and the memory
in MB at its peak beyond what was there before. The records travel round a loop in batches of a thousand, encoded as
between processes. Half of them wait at the head when it captures, the others arrive before its barrier returns.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
from functools import partial
from typing import Any

from backedge import Collect, Flow, Range
from backedge.engine.batches.batch import Batch, decode, encode
from backedge.engine.operators.rerouting import reroute
from backedge.engine.state.split_own_state import move_whole
from backedge.graphs.deployment import Deployment
from backedge.graphs.expansion import expand, resized
from backedge.graphs.ids import Attempt, Epoch, TaskId
from backedge.recovery.cut.cut import InputRecord, OperatorState, TaskSnapshot
from backedge.recovery.protocol.channel_log import ChannelLogs, OpenEpoch
from backedge.recovery.protocol.channels import Inbox, Queued
from backedge.recovery.protocol.messages import Data, Mode
from backedge.recovery.protocol.restored import RestoredLog, restored_inboxes
from backedge.recovery.restore.outline import CutOutline
from backedge.recovery.restore.plan import plan_restore
from backedge.recovery.restore.restore_task import take_back
from backedge.recovery.stores.folder_store import FolderStore
from backedge.recovery.stores.settling import Settling
from backedge.recovery.stores.store_calls import has_content
from backedge.recovery.stores.task_files import StoredFile, TaskFiles
from backedge.recovery.stores.task_tables import StoredCut, write_files
from bench.metering import Meter

HEAD = TaskId("head", 0)
EPOCH, ATTEMPT = Epoch(1), Attempt(1)
BATCH_RECORDS = 1_000


def make_flow() -> Flow:
    """A loop whose records go to its head by key."""
    flow = Flow("log")
    again = flow.loop("again")
    keyed = flow.read(Range(0), name="numbers").merge(again).key_by("key")
    done, rest = keyed.stateful_map(_count, initial=0, name="head").split(_is_done, name="split")
    again.feed(rest)
    done.write(Collect(), name="done")
    return flow


def _count(seen: int, record: Any) -> tuple[int, Any]:
    return seen + 1, {**record, "trips": record["trips"] + 1}


def _is_done(record: Any) -> bool:
    return record["trips"] > 3


class Steps:
    """The steps of the log of one head."""

    def __init__(self, records: int, folder: str) -> None:
        self.records, self.meter, self.store = records, Meter(), FolderStore(folder)
        self.deployment = expand(make_flow().plan())
        (self.channel,) = [channel for channel in self.deployment.channels.values() if channel.is_back]

    def figures(self) -> dict[str, Any]:
        """Take every step, and check that each restore has the records that it should."""
        starts = range(0, self.records, BATCH_RECORDS)
        records = ([{"key": key, "trips": 1} for key in range(start, start + BATCH_RECORDS)] for start in starts)
        payloads = [encode(Batch(batch, 1)) for batch in records]
        files = self._written(self._logged(payloads))
        del payloads
        gc.collect()
        self.meter("verify", lambda: self._verify(files))
        outline = CutOutline(EPOCH, self.deployment.plan.hash, self.deployment.parallelism, {HEAD: files.outline})
        (log,) = self.meter("restore", lambda: self._taken_back(files, outline, self.deployment))
        replayed = self.meter("replay", partial(self._replayed, log))
        del log
        wider = resized(self.deployment, {**self.deployment.parallelism, "head": 2})
        half = self.meter("rescale", lambda: self._taken_back(files, outline, wider))
        routed = sum(len(decode(payload)) for log in half for payload in log.payloads)
        if replayed != self.records or not 0.4 * self.records < routed < 0.6 * self.records:
            raise RuntimeError(f"of {self.records} records {replayed} came back, and {routed} in one task of two")
        return {"records": self.records, "steps": self.meter.found, "bytes": sum(file.size for file in files.files)}

    def _inbox(self) -> Inbox:
        return Inbox(self.channel.id, is_back=True, depth=0, within_actor=False, encode=encode)

    def _logged(self, payloads: list[bytes]) -> InputRecord:
        """The end of the back edge at the capture, with its log."""
        inbox, logs = self._inbox(), ChannelLogs()
        half = len(payloads) // 2
        for seq, payload in enumerate(payloads[:half], start=1):
            inbox.receive(Data(seq, payload))
        log = OpenEpoch(EPOCH, Mode.ALIGNED, (inbox.record(),), (), None)
        self.meter("capture", lambda: logs.start(log, [inbox]))

        def receive() -> None:
            for seq, payload in enumerate(payloads[half:], start=half + 1):
                logs.receive(inbox, inbox.receive(Data(seq, payload)))

        self.meter("receive", receive)
        if logs.seal(self.channel.id, EPOCH) is not log:
            raise RuntimeError("the log is not complete")
        (record,) = log.task_record(ended=False).inputs
        return record

    def _written(self, record: InputRecord) -> TaskFiles:
        snapshot = TaskSnapshot(HEAD, EPOCH, ATTEMPT, dict.fromkeys(self._operators, OperatorState()), (record,), ())
        loops = {self.channel.id.edge: "again"}
        with Settling(self.store, 0) as settling:
            return self.meter("write", lambda: write_files(ATTEMPT, EPOCH, snapshot, loops, {}, settling))

    @property
    def _operators(self) -> tuple[str, ...]:
        return self.deployment.tasks[HEAD].operators

    def _verify(self, files: TaskFiles) -> None:
        if not all(has_content(self.store, file.name, file.size, file.digest) for file in files.files):
            raise RuntimeError("a file has other bytes than were written")

    def _taken_back(self, files: TaskFiles, cut: CutOutline, deployment: Deployment) -> tuple[RestoredLog, ...]:
        plan = plan_restore(cut, deployment)[HEAD]
        return take_back(plan, StoredCut({HEAD: files}, self._read), deployment, reroute, move_whole).logs

    def _read(self, file: StoredFile) -> bytes:
        return self.store.read(file.name)

    def _replayed(self, log: RestoredLog) -> int:
        """How many records go through the head before new ones."""
        (inbox,) = restored_inboxes([log], [self._inbox()], encode)
        return sum(len(decode(item.payload)) for item in inbox.queue if isinstance(item, Queued))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as place:
        print(json.dumps(Steps(int(sys.argv[1]), place).figures()))

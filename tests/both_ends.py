"""Which worker of pytest-xdist runs which file: the first one takes files from the front, the others from the end.

Files are in an order in which those that need Spark are at the front, and those that need Ray at the end. So Spark
starts in one worker, and while files on Ray wait for processes, Java uses what they leave of the processors.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FromBothEnds(LoadFileScheduling):
    """Hands out whole files, as `--dist loadfile` does."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

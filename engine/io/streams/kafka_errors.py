"""What goes wrong with a topic of Kafka.

A `KafkaTopicError` stays until somebody repairs the topic, the account or the flow, so it fails the run. A
`KafkaLostError` may be gone a moment later: the attempt fails, and the next one tries again.
"""

from __future__ import annotations

from backedge.graphs.public import public
from backedge.graphs.task_errors import TaskError


@public
class KafkaTopicError(TaskError):
    """A Kafka cluster that refuses what a source or a sink needs of it.

    Fix: create the topic that the message names, or grant the right to it.
    """


@public
class OffsetGoneError(KafkaTopicError):
    """Records that a source was to read next and that the topic has removed.

    Fix: begin a new run with `start="earliest"`, which reads what is left; let `retention.ms` be longer than a run may
    stand still.
    """


@public
class KafkaLostError(ConnectionError):
    """A Kafka cluster that has not answered in time.

    Fix: nothing, if it returns: the run tries again. Otherwise correct `servers`.
    """

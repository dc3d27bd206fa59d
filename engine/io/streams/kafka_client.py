"""confluent-kafka: settings, and what its errors mean."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from backedge.engine.io.packages import package
from backedge.engine.io.streams.kafka_errors import KafkaLostError, KafkaTopicError
from backedge.recovery.protocol.protocol_errors import FencedError

T = TypeVar("T")

PATIENCE_S = 30.0
"""How long a task waits for an answer. librdkafka connects again by itself."""

PAUSE_S = 0.1

_DEFAULTS = {"log_level": 3, "queued.max.messages.kbytes": 8192, "partitioner": "murmur2_random"}
"""Less memory for each partition than librdkafka takes, and the partitions that clients in Java choose."""

_READS = {
    "group.id": "backedge",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
}
_WRITES = {
    "enable.idempotence": True,
    "acks": "all",
    "delivery.report.only.error": True,
    # When it bootstraps again, librdkafka does not find the coordinator of a group again (its issue 5511).
    "metadata.recovery.strategy": "none",
}

FIXED = frozenset({"bootstrap.servers", "transactional.id", *_READS, *_WRITES})
"""Settings that the guarantees rest on."""

_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
_GONE = {"_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"}
_FOR_GOOD = {
    *("UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"),
    *("MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "POLICY_VIOLATION", "INVALID_CONFIG", "_INVALID_ARG"),
    *("TOPIC_AUTHORIZATION_FAILED", "GROUP_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"),
    *("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "SASL_AUTHENTICATION_FAILED", "_AUTHENTICATION"),
}


class Topic(Protocol):
    """A topic of a cluster, with the settings that users add."""

    @property
    def servers(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...


def driver() -> Any:
    return package("confluent_kafka", "kafka")


def consumer_of(topic: Topic, group: str = "backedge") -> Any:
    """A consumer that joins no group. It gets what is committed, and each end of a partition."""
    with understood(topic, _misconfigured(topic)):
        return driver().Consumer(_settings(topic, {**_READS, "group.id": group}))


def producer_of(topic: Topic, transactional_id: str) -> Any:
    with understood(topic, _misconfigured(topic)):
        return driver().Producer(_settings(topic, {**_WRITES, "transactional.id": transactional_id}))


def partitions_of(topic: Topic, client: Any) -> list[int]:
    """The partitions as they are now; raises if there is no such topic."""

    def ask() -> list[int]:
        found = client.list_topics(topic.topic, timeout=PATIENCE_S).topics[topic.topic]
        raise_if(found.error)
        return sorted(found.partitions)

    return asked(topic, ask)


def asked(topic: Topic, ask: Callable[[], T]) -> T:
    """What a request returns, which is sent again when its connection breaks: librdkafka does so with few of them."""
    until_s = time.monotonic() + PATIENCE_S
    with understood(topic):
        while True:
            try:
                return ask()
            except driver().KafkaException as failed:
                if is_for_good(failed.args[0]) or time.monotonic() >= until_s:
                    raise
            time.sleep(PAUSE_S)


def raise_if(error: Any) -> None:
    """Raise what librdkafka has noted instead of raising it."""
    if error is not None:
        raise driver().KafkaException(error)


def is_end(error: Any) -> bool:
    return error.code() == driver().KafkaError._PARTITION_EOF


def is_gone(error: Any) -> bool:
    return error.name() in _GONE


def is_for_good(error: Any) -> bool:
    """Whether it stays until somebody changes the topic, the account or the flow."""
    return error.name() in _FOR_GOOD


@contextmanager
def understood(topic: Topic, refused: Callable[[str], Exception] | None = None) -> Generator[None]:
    """Raise what librdkafka raises as an error of ours. `refused` makes the one for what would be refused again."""
    try:
        yield
    except driver().KafkaException as failed:
        error = failed.args[0]
        if error.name() in _FENCED:
            raise FencedError(f"another process writes to {topic.title} in the place of this one") from failed
        if not is_for_good(error):
            raise KafkaLostError(
                f"{topic.title}: {error.str()}: start the servers, or correct servers= or config="
            ) from failed
        if refused is not None:
            raise refused(error.str()) from failed
        raise KafkaTopicError(
            f"{topic.title}: {error.str()}: create the topic, or grant the account the right to it"
        ) from failed


def _misconfigured(topic: Topic) -> Callable[[str], Exception]:
    """What a client that is not even made is refused for."""
    return lambda reason: KafkaTopicError(f"{topic.title}: {reason}: correct config=")


def _settings(topic: Topic, fixed: Mapping[str, Any]) -> dict[str, Any]:
    return {**_DEFAULTS, **topic.config, "bootstrap.servers": topic.servers, **fixed}

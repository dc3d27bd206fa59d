"""Topics of Kafka, and keys of Redis, as sources and sinks.

`kafka_topic.py` is what users name, `kafka_reader.py` reads partitions, and `kafka_writer.py` commits the records of a
cut with their marker. confluent-kafka is imported when first used, and only in `kafka_client.py`.

`redis.py` has the keys of Redis.
"""

"""Parts of loops that many programs need: functions from a stream to a stream, built on process classes and loops."""

"""Every error that `streams` raises on purpose.

StreamsError
├── LogError              a log on disk cannot do what was asked
│   ├── SpoolFull         the limit is reached: refuse new requests, nothing is lost
│   ├── SpoolFailed       a write failed although the reserve was given up: end what is open
│   └── LogCorrupt        broken bytes before the end of a log: named, never skipped silently
├── CodecError            bytes that are not an event record
├── RunnerError           the runner cannot go on (another one is at work, ledger away)
└── KafkaError            Kafka cannot be reached, or refuses what was asked
    ├── TopicsWrong       a topic is missing, or not as the table of topics says
    └── StreamStopped     a reader may not go on: an event of a newer version, too much poison,
                          or an offset that is not there any more
"""


class StreamsError(Exception):
    """Root of the errors of `streams`; the message is meant for a person."""


class LogError(StreamsError):
    """A log on disk cannot do what was asked."""


class SpoolFull(LogError):
    """The spool's limit is reached: new requests are refused, nothing is lost."""


class SpoolFailed(LogError):
    """A write failed although the reserve was given up: what is open must end now."""


class LogCorrupt(LogError):
    """Broken bytes before the end of a log. They are named and never skipped silently."""


class CodecError(StreamsError):
    """Bytes that are not an event record."""


class RunnerError(StreamsError):
    """The embedded runner cannot go on."""


class KafkaError(StreamsError):
    """Kafka cannot be reached, or refuses what was asked."""


class TopicsWrong(KafkaError):
    """A topic is missing, or it is not as the table of topics says."""


class StreamStopped(KafkaError):
    """A reader may not go on by itself; somebody has to look."""

"""Every error that `streams` raises on purpose.

StreamsError
├── LogError              a log on disk cannot do what was asked
│   ├── SpoolFull         the limit is reached: refuse new requests, nothing is lost
│   ├── SpoolFailed       a write failed although the reserve was given up: end what is open
│   └── LogCorrupt        broken bytes before the end of a log: named, never skipped silently
├── CodecError            bytes that are not an event record
└── RunnerError           the runner cannot go on (another one is at work, ledger away)
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

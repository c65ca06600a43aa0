"""Why what was started beside this process cannot go on."""


class WardFailed(Exception):
    """A process that was started here cannot do its work, or has ended; the message says what
    happened, why, and what to do."""

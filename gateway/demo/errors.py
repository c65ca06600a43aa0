"""Why a demo cannot go on."""


class DemoFailed(Exception):
    """The demo cannot go on; the message says what happened, why, and what to do."""

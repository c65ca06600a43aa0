"""Why a demo cannot go on."""

from gateway.wards.errors import WardFailed


class DemoFailed(WardFailed):
    """The demo cannot go on; the message says what happened, why, and what to do."""

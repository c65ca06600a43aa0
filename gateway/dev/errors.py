"""Why the services of a development machine cannot be had."""

from gateway.wards.errors import WardFailed


class DevFailed(WardFailed):
    """A broker or a database cannot be started; the message says what happened and what to do."""

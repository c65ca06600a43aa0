"""Why the services of a development machine cannot be had."""


class DevFailed(Exception):
    """A broker or a database cannot be started; the message says what happened and what to do."""

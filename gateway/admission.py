"""Whether a request may begin now. Pure: the caller brings what is true at this moment."""

from gateway.errors import Overloaded


def require_admission(*, draining: bool, spool_has_room: bool) -> None:
    """Raises `Overloaded` with a reason that tells what to do. Nothing is ever served unmetered."""
    if draining:
        raise Overloaded(
            "This gateway is shutting down and finishes only what it has begun. Try again.",
            code="shutting_down",
        )
    if not spool_has_room:
        raise Overloaded(
            "The usage spool is full, so this request could not be metered and was refused. "
            "Nothing is lost; there is room again once the ledger has caught up and the disk has "
            "space. Whoever runs the gateway finds the cause with 'tollbook spool list' and in the "
            "log of 'tollbook serve'.",
            code="spool_full",
        )

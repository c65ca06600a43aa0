"""Every error that `ledger` raises on purpose.

LedgerError
├── EventError            an event's bytes or values are not what its type says
│   ├── MalformedEvent    broken bytes: poison, goes aside with a reason
│   └── UnknownEvent      a newer type or version: stops the reader, upgrade it first
├── RegistryRefused       a registry command was made from an old version, or breaks a rule
├── AmountError           a price or amount that cannot be held exactly
├── PositionMoved         another writer has moved this log's position: nothing was written
├── ExportFailed          files of a month could not be written, or do not add up
├── QueryRefused          SQL of a person that cannot be run as it is
├── LedgerUnavailable     the database cannot be opened or is of another version
├── NotClosable           a month that cannot be closed yet, with each source and why
├── CorrectionRefused     a request that cannot be corrected so
├── ChainBroken           events that are not what their source wrote one after another
└── BadQuery              a month or a grouping that there is none of
    └── BadZone           a time zone that there is none of
"""


class LedgerError(Exception):
    """Root of the ledger's own errors; the message is meant for a person."""


class EventError(LedgerError):
    """An event's bytes or values are not what its type says."""


class MalformedEvent(EventError):
    """Bytes that no version of this program could have written: poison."""


class UnknownEvent(EventError):
    """An event of a newer type or version: readers are upgraded before writers."""


class RegistryRefused(LedgerError):
    """A registry command was made from an old version, or breaks a rule of the registry."""


class AmountError(LedgerError):
    """A price or amount that cannot be held exactly."""


class PositionMoved(LedgerError):
    """Another writer has moved this log's position; this transaction wrote nothing."""


class ExportFailed(LedgerError):
    """Files of a month could not be written, or do not add up; what was there before still is."""


class QueryRefused(LedgerError):
    """SQL of a person that is wrong, is no question, or asks for what it may not see."""


class LedgerUnavailable(LedgerError):
    """The ledger's database cannot be opened, or its schema is of another version."""


class BadQuery(LedgerError):
    """A question that cannot be answered as it was put: a month or a grouping that is none."""


class BadZone(BadQuery):
    """A name that no time zone has."""


class NotClosable(LedgerError):
    """A month cannot be closed yet; the message names each source and why."""


class CorrectionRefused(LedgerError):
    """A request that is not there, has not ended or cannot be corrected as it was asked."""


class ChainBroken(LedgerError):
    """The events of a source are not what it wrote one after another; the message names them."""

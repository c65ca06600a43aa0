"""Accounts, movements of money, closed months and corrections, folded from the registry log. Pure.

The registry's one order decides what a month held: what stands behind `period.closed` lands in a
later month, however late or early it is read.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from ledger.amounts import signed_pico
from ledger.errors import AmountError
from ledger.events import (
    BooksSet,
    CreditPosted,
    Event,
    KeyAssigned,
    OrganizationSet,
    Payload,
    PeriodClosed,
    ProjectSet,
    Usage,
    UsageCorrected,
)

DEFAULT_ZONE: Final = "UTC"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """How the books are kept; the fields mean the same as in `BooksSet`."""

    version: int = 0
    zone: str = DEFAULT_ZONE
    rounding: str = "half_even"
    issuer: str | None = None


class Organization(msgspec.Struct, frozen=True, kw_only=True):
    """Who pays. `closed`: nothing new belongs to it."""

    organization_id: str
    version: int
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    closed: bool = False


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an organization, for which statements are made."""

    project_id: str
    organization_id: str
    version: int
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    closed: bool = False


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """From `since` on a key belongs to `project_id` (null: to none), with its own tags."""

    since: datetime
    project_id: str | None
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A movement of money; `postings` are (account, currency, pico), and add up to zero."""

    entry_id: str
    kind: str
    postings: tuple[tuple[str, str, int], ...]
    reason: str
    effective_from: datetime
    posted_at: datetime


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """A closed month; the fields mean the same as in `PeriodClosed`. `closed_at` is the time of
    that event, `rules` are those by which the books were kept then, `projects` who there was."""

    month: str
    zone: str
    start: datetime
    end: datetime
    number: int
    prices: int
    cut: Mapping[str, Mapping[str, int]]
    requests: int
    open: int
    unpriced: int
    tokens: Mapping[str, int]
    totals: Mapping[str, str]
    lines: str
    root: str
    closed_at: datetime
    without: tuple[tuple[str, str], ...] = ()
    rules: Rules = Rules()
    projects: Mapping[str, Project] = msgspec.field(default_factory=dict)

    def holds(self, source: str, topic: str, sequence: int) -> bool:
        """True if that event is within the cut."""
        return sequence <= self.cut.get(source, {}).get(topic, 0)


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """What a request really used, by a person. `periods` counts the months that were closed when
    it was made: it lands in the first that is closed later, or in the one that is open."""

    correction_id: str
    request_id: str
    original: str
    number: int
    reason: str
    usage: Usage | None
    made_at: datetime
    periods: int


class MoneyFold:
    """Folds the events of money; what it refuses has no effect."""

    def __init__(
        self,
        rules: Rules,
        organizations: Mapping[str, Organization],
        projects: Mapping[str, Project],
        members: Mapping[str, tuple[Member, ...]],
        entries: Sequence[Entry],
        periods: Sequence[Period],
        corrections: Sequence[Correction],
    ) -> None:
        self.rules = rules
        self.organizations = dict(organizations)
        self.projects = dict(projects)
        self.members = dict(members)
        self.entries = list(entries)
        self.periods = list(periods)
        self.corrections = list(corrections)
        self._entry_ids = {entry.entry_id for entry in entries}
        self._corrected: dict[str, int] = {}
        for one in corrections:
            self._corrected[one.request_id] = one.number

    def take(self, event: Event, payload: Payload, prices: int) -> str | None:
        """Go on by one event while the registry has so many `prices`; why not, if it is refused."""
        match payload:
            case BooksSet():
                return self._rules(payload)
            case OrganizationSet():
                return self._organization(payload)
            case ProjectSet():
                return self._project(payload)
            case KeyAssigned():
                return self._assigned(event, payload)
            case CreditPosted():
                return self._posted(event, payload)
            case PeriodClosed():
                return self._closed(event, payload, prices)
            case UsageCorrected():
                return self._correction(event, payload)
            case _:
                return f"{event.type} does not belong into the registry log"

    def _rules(self, said: BooksSet) -> str | None:
        if (stale := _stale("how the books are kept", said, self.rules.version)) is not None:
            return stale
        if self.periods and said.zone != self.rules.zone:
            return (
                f"months are closed in the zone {self.rules.zone} already, so that another one "
                "would leave a gap or count hours twice"
            )
        self.rules = Rules(
            version=said.version, zone=said.zone, rounding=said.rounding, issuer=said.issuer
        )
        return None

    def _organization(self, said: OrganizationSet) -> str | None:
        old = self.organizations.get(said.organization_id)
        what = f"organization {said.organization_id}"
        if (stale := _stale(what, said, old.version if old else 0)) is not None:
            return stale
        self.organizations[said.organization_id] = Organization(
            organization_id=said.organization_id,
            version=said.version,
            tags=said.tags,
            closed=said.closed,
        )
        return None

    def _project(self, said: ProjectSet) -> str | None:
        old = self.projects.get(said.project_id)
        what = f"project {said.project_id}"
        if (stale := _stale(what, said, old.version if old else 0)) is not None:
            return stale
        if said.organization_id not in self.organizations:
            return f"there is no organization {said.organization_id}"
        if old is not None and old.organization_id != said.organization_id:
            return f"{what} belongs to {old.organization_id}, and stays there"
        self.projects[said.project_id] = Project(
            project_id=said.project_id,
            organization_id=said.organization_id,
            version=said.version,
            tags=said.tags,
            closed=said.closed,
        )
        return None

    def _assigned(self, event: Event, said: KeyAssigned) -> str | None:
        had = self.members.get(said.key_id, ())
        what = f"the project of key {said.key_id}"
        if (stale := _stale(what, said, len(had))) is not None:
            return stale
        if said.project_id is not None and said.project_id not in self.projects:
            return f"there is no project {said.project_id}"
        if had and event.time < had[-1].since:
            return f"{what} was changed at {had[-1].since.isoformat()}, which is later than this"
        if self.periods and event.time < self.periods[-1].end:
            return (
                f"{self.periods[-1].month} is closed, and this would take effect within it; is the "
                "clock of this machine right?"
            )
        member = Member(since=event.time, project_id=said.project_id, tags=said.tags)
        self.members[said.key_id] = (*had, member)
        return None

    def _posted(self, event: Event, said: CreditPosted) -> str | None:
        if said.entry_id in self._entry_ids:
            return f"entry {said.entry_id} is there already"
        sums: dict[str, int] = {}
        postings: list[tuple[str, str, int]] = []
        for one in said.postings:
            try:
                pico = signed_pico(one.amount)
            except AmountError as wrong:
                return str(wrong)
            sums[one.currency] = sums.get(one.currency, 0) + pico
            postings.append((one.account, one.currency, pico))
        if not postings or any(sums.values()):
            return f"entry {said.entry_id} does not add up to zero in each currency"
        if self.periods and said.effective_from < self.periods[-1].end:
            return f"{self.periods[-1].month} is closed; date the entry in a later month"
        self._entry_ids.add(said.entry_id)
        self.entries.append(
            Entry(
                entry_id=said.entry_id,
                kind=said.kind,
                postings=tuple(postings),
                reason=said.reason,
                effective_from=said.effective_from,
                posted_at=event.time,
            )
        )
        return None

    def _closed(self, event: Event, said: PeriodClosed, prices: int) -> str | None:
        if (stale := _stale("the list of closed months", said, len(self.periods))) is not None:
            return stale
        if said.prices != prices:
            return "a price was published since these totals were made; close the month again"
        if said.corrections != len(self.corrections):
            return "a request was corrected since these totals were made; close the month again"
        if said.zone != self.rules.zone:
            return f"the books are kept in the zone {self.rules.zone}, not in {said.zone}"
        if self.periods and said.start != self.periods[-1].end:
            return f"{said.month} does not begin where {self.periods[-1].month} ends"
        self.periods.append(
            Period(
                month=said.month,
                zone=said.zone,
                start=said.start,
                end=said.end,
                number=said.version,
                prices=said.prices,
                cut=said.cut,
                requests=said.requests,
                open=said.open,
                unpriced=said.unpriced,
                tokens=said.tokens,
                totals=said.totals,
                lines=said.lines,
                root=said.root,
                closed_at=event.time,
                without=tuple((one.source, one.reason) for one in said.without),
                projects=dict(self.projects),
                rules=self.rules,
            )
        )
        return None

    def _correction(self, event: Event, said: UsageCorrected) -> str | None:
        what = f"the corrections of request {said.request_id}"
        if (stale := _stale(what, said, self._corrected.get(said.request_id, 0))) is not None:
            return stale
        self._corrected[said.request_id] = said.version
        self.corrections.append(
            Correction(
                correction_id=said.correction_id,
                request_id=said.request_id,
                original=said.original,
                number=said.version,
                reason=said.reason,
                usage=said.usage,
                made_at=event.time,
                periods=len(self.periods),
            )
        )
        return None


Versioned = BooksSet | OrganizationSet | ProjectSet | KeyAssigned | PeriodClosed | UsageCorrected


def _stale(what: str, said: Versioned, current: int) -> str | None:
    if said.base == current and said.version == current + 1:
        return None
    return (
        f"{what} is at version {current} by now, and this change was made from version "
        f"{said.base}; look at it again and repeat the command"
    )


def project_at(members: Sequence[Member], moment: datetime) -> str | None:
    """The project that a key with these memberships, oldest first, belonged to at `moment`."""
    found = None
    for one in members:
        if one.since > moment:
            break
        found = one.project_id
    return found

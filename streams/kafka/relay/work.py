"""The relay itself: rounds over all spools of a data directory, each one window to Kafka.

It takes the place of the embedded runner and needs no ledger. What it knows is in the spools and in
their cursors, so it may be killed at any moment: what is sent again is known by its identity.
"""

from collections.abc import Iterator
from typing import Final

from ledger.clock import Clock
from ledger.events import Event
from streams.adoption import abandoned, closed
from streams.kafka.access import KafkaAccess
from streams.kafka.letters import NOWHERE, DeadLetter, sent_of
from streams.kafka.records import record_of
from streams.kafka.relay.aside import Aside
from streams.kafka.relay.outbox import Outbox, Parcel
from streams.kafka.relay.status import Status
from streams.kafka.relay.window import Outgoing, WindowSender
from streams.local.layout import Layout
from streams.local.process import Due, Say
from streams.local.retention import KEEP_BYTES
from streams.local.spools import (
    ADOPT_SECONDS,
    LOOK_SECONDS,
    RETENTION_SECONDS,
    Spools,
    died,
    mark_adopted,
    testify,
)
from streams.local.torn import cut_torn_tail
from streams.log.heads import heads_of
from streams.log.spool import Durability, incarnation_of

SKEW_SECONDS_MAX: Final = 2.0
"""A larger difference between this machine's clock and the broker's is told to somebody."""

WINDOW_EVENTS_MAX: Final = 8_000
"""About 4 MB: after this many events a window takes no further spool; the next begins with it."""

ADOPT_BYTES_MAX: Final = 1 << 20
"""A dead spool with more than this to send waits its turn in the windows, beside the living."""

LETTER_BYTES_MAX: Final = 256 * 1024
"""A refused record goes to the dead letters with its value only if that is no larger."""


class Relay:
    """The work, one round at a time. The caller holds the runner's lock.

    Every method that sends raises `KafkaError` if Kafka takes nothing now, and `OSError` and
    `SpoolFailed` for the disk; each round can be repeated.
    """

    def __init__(
        self,
        layout: Layout,
        access: KafkaAccess,
        sender: WindowSender,
        clock: Clock,
        *,
        say: Say,
        name: str,
        keep_bytes: int = KEEP_BYTES,
        durability: Durability = "process",
    ) -> None:
        self._layout = layout
        self._access = access
        self._sender = sender
        self._clock = clock
        self._say = say
        self._aside = Aside(layout.root)
        self._spools = Spools(
            layout,
            clock,
            say,
            lambda directory: Outbox(directory, say),
            lambda outbox: outbox.kept,
            owner=f"/relay/{name}",
            taken="sent",
            keep_bytes=keep_bytes,
            durability=durability,
        )
        self._outboxes = self._spools.followers
        self._due = Due(clock)
        self._turn = 0
        self._waiting: list[Parcel] = []
        self._sent = self._adopted = 0
        self._skewed = False

    async def step(self) -> bool:
        """One round: a window of what is new, and what else is due. True if anything moved."""
        if self._due.now("look", LOOK_SECONDS):
            self._spools.look()
        moved = await self._window()
        if self._due.now("adopt", ADOPT_SECONDS):
            moved |= await self._adopt()
        if self._due.now("retain", RETENTION_SECONDS):
            self._spools.retain()
        return moved

    async def catch_up(self) -> None:
        """Send everything that is on disk now, and adopt every spool whose writer is dead.

        What living writers add meanwhile is left for later, so that this comes to an end.
        """
        self._spools.look()
        ends = [(outbox, outbox.end()) for outbox in self._outboxes.values()]
        while any(o.position < end and not self._stands(o) for o, end in ends):
            if not await self._window():
                break
        if await self._adopt() and self._spools.own is not None:
            await self._drain(self._outboxes[self._spools.own.directory.name])
        self._spools.retain()

    def live(self) -> list[str]:
        """The names of the spools, other than our own, whose writers live."""
        return self._spools.live()

    async def close(self) -> None:
        """The orderly end: close our own source, with its last word in Kafka."""
        try:
            own = self._spools.say_last()
            if own is not None:
                await self._drain(own)
                self._spools.settle_own(own)
        finally:
            self._spools.close()

    def status(self, fault: str | None) -> Status:
        """How it does, for the gateway's metrics."""
        lag = sum(max(0, o.end() - o.position) for o in self._outboxes.values())
        recorded = [p.events[0].recordedtime for p in self._waiting if p.events]
        return Status(
            at=self._clock.now(),
            lag_bytes=lag,
            oldest_at=min(recorded, default=None) if lag else None,
            spools=len(self._outboxes),
            sent=self._sent,
            aside=self._aside.count,
            adopted=self._adopted,
            fault=fault,
            skew_seconds=self._sender.skew_seconds,
        )

    async def _window(self) -> bool:
        """Send one window: the next part of each spool, as many as fit. True if there was any."""
        outboxes = list(self._outboxes.values())
        start = self._turn % len(outboxes) if outboxes else 0
        parcels: list[Parcel] = []
        count = 0
        for outbox in outboxes[start:] + outboxes[:start]:
            if count >= WINDOW_EVENTS_MAX:
                break
            self._turn += 1
            parcel = self._read(outbox)
            if parcel is not None:
                parcels.append(parcel)
                count += len(parcel.events)
        await self._send(parcels)
        return bool(parcels)

    def _read(self, outbox: Outbox) -> Parcel | None:
        """The next part of one spool; null if there is nothing."""
        try:
            parcel = outbox.read()
            outbox.failing = False
        except OSError as wrong:
            self._spools.failed(outbox, wrong)
            return None
        if parcel is None:
            self._spools.settle_if_adopted(outbox)
        return parcel

    async def _send(self, parcels: list[Parcel]) -> None:
        """Send `parcels` as one window; go on behind them once all of it is acked or set aside."""
        if not parcels:
            return
        self._waiting = parcels
        pairs = [(parcel, event) for parcel in parcels for event in parcel.events]
        records = [self._outgoing(event) for _, event in pairs]
        refused = await self._sender.send(records) if records else {}
        letters = []
        for index, reason in refused.items():
            parcel, event = pairs[index]
            letters.append(self._letter(records[index], reason))
            if self._aside.event(parcel.outbox.directory.name, event, reason):
                self._say(
                    f"{event.name} of {event.topic} is refused by Kafka for good: {reason}; it is "
                    f"set aside in {self._layout.root / 'aside'}"
                )
        letters += [letter for parcel in parcels for letter in self._unreadable_parts(parcel)]
        if letters:
            # What the dead letters do not take either is in its file all the same.
            await self._sender.send(letters)
        for parcel in parcels:
            try:
                parcel.outbox.took(parcel)
            except OSError as wrong:
                self._spools.failed(parcel.outbox, wrong)
        self._sent += len(records) - len(refused)
        self._waiting = []
        self._watch_clock()

    def _watch_clock(self) -> None:
        skew = self._sender.skew_seconds
        if self._skewed == (abs(skew) > SKEW_SECONDS_MAX):
            return
        self._skewed = not self._skewed
        if self._skewed:
            way = "ahead of" if skew > 0 else "behind"
            self._say(
                f"the clock of this machine is {abs(skew):.1f} s {way} Kafka's; requests are dated "
                "by it, so set it right (is NTP at work?)"
            )
        else:
            self._say("the clock of this machine agrees with Kafka's again")

    def _unreadable_parts(self, parcel: Parcel) -> Iterator[Outgoing]:
        """Set aside what of `parcel` is no event."""
        outbox, missing = parcel.outbox, parcel.chunk.missing
        spool = outbox.directory.name
        for bad in parcel.chunk.poison:
            self._aside.bytes(spool, bad)
            outbox.once(
                f"{outbox.name}: the record at offset {bad.offset} is no event and is set aside: "
                f"{bad.reason}"
            )
            where = Outgoing(outbox.name, b"", bad.record, [], self._now_ms())
            yield self._letter(where, bad.reason, bad.offset)
        if missing is not None:
            words = (
                f"{outbox.name}: bytes {missing.start} to {missing.end} are gone from the disk and "
                "were not relayed; what they said is missing in Kafka"
            )
            outbox.once(words)
            self._aside.gap(spool, missing, words)

    def _outgoing(self, event: Event) -> Outgoing:
        record = record_of(event)
        recorded_ms = int(event.recordedtime.timestamp() * 1000)
        topic = self._access.topic(record.topic)
        return Outgoing(topic, record.key, record.value, record.headers, recorded_ms)

    def _letter(self, record: Outgoing, reason: str, offset: int = NOWHERE) -> Outgoing:
        cut = len(record.value or b"") > LETTER_BYTES_MAX
        letter = DeadLetter(
            topic=record.topic,
            partition=NOWHERE,
            offset=offset,
            reason=reason,
            by="relay",
            key=record.key,
            value=None if cut else record.value,
            headers=record.headers,
            cut=cut,
        )
        sent = sent_of(letter)
        topic = self._access.topic("dead-letters")
        return Outgoing(topic, sent.key, sent.value, sent.headers, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    async def _drain(self, outbox: Outbox) -> None:
        while (parcel := self._read(outbox)) is not None:
            await self._send([parcel])
            if outbox.failing:
                return

    async def _adopt(self) -> bool:
        """Adopt every spool whose lock is free and that is sent to its end. True if any was.

        All of them are sent to their ends before the first is closed: one of them may be that of
        a relay that had begun to close another.
        """
        near = [
            outbox
            for outbox in self._outboxes.values()
            if self._stands(outbox) or outbox.end() - outbox.position <= ADOPT_BYTES_MAX
        ]
        with self._spools.dead(near) as dead:
            for outbox in dead:
                await self._drain(outbox)
            whole = [one for one in dead if not self._stands(one) and not one.unknown]
            return self._spools.adopt(whole, self._close_dead)

    def _close_dead(self, dead: Outbox) -> None:
        """Say what ends all that `dead` left open: first in our own spool, then by the mark.

        Whoever comes later and finds no mark says the same again, under ids of its own.
        """
        if not dead.behind:
            cut_torn_tail(dead.reader, dead.position, dead.name, self._say)
        source, time = dead.source(), dead.life.last_time
        if source is not None and time is not None:
            own = self._spools.own_spool()
            adopter = incarnation_of(own.source)
            requests = list(dead.life.open.values())
            drafts = abandoned(source, requests, adopter)
            if not dead.life.closed_itself:
                last, heads = dead.life.last, heads_of(dead.reader, source, dead.life.last)
                drafts.append(closed(source, last, time, own.source, adopter, heads))
            testify(own, drafts)
            if drafts:
                self._adopted += 1
                self._say(died(source, len(requests)))
        mark_adopted(dead.directory)

    @staticmethod
    def _stands(outbox: Outbox) -> bool:
        return outbox.halted or outbox.failing

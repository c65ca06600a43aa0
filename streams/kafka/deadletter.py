"""Dead letters on the broker: setting records aside, reading them, and sending one back."""

from collections.abc import Sequence

import msgspec
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError, RecordTooLargeError

from ledger.clock import Clock, from_us
from ledger.errors import EventError
from ledger.events import Event, payload_of
from streams.errors import CodecError, KafkaError
from streams.kafka.access import KafkaAccess, producer_options
from streams.kafka.letters import DeadLetter, letter_of, sent_of
from streams.kafka.read import hush, in_words, read_to_end
from streams.kafka.records import event_of, record_of

TOPIC = "dead-letters"

REASON_LENGTH_MAX = 2000
"""Of a letter that is too large without its value."""

_TOO_LARGE = (MessageSizeTooLargeError, RecordTooLargeError)


class LetterBox:
    """Sets records aside as one role. It connects when the first letter comes; `close` it."""

    def __init__(self, access: KafkaAccess, role: str) -> None:
        self._access = access
        self._role = role
        self._producer: AIOKafkaProducer | None = None

    async def put(self, letters: Sequence[DeadLetter]) -> None:
        """Set `letters` aside; returns when brokers have all of them. Safe to repeat: the second
        copy of a letter has the name of the first. Raises `KafkaError`."""
        with in_words(self._access):
            producer = await self._connected()
            for letter in letters:
                try:
                    await self._send(producer, letter)
                except _TOO_LARGE:
                    # The reason makes it a little larger than the record that fitted.
                    await self._send_cut(producer, letter)

    async def close(self) -> None:
        """Let go of the connections."""
        if self._producer is not None:
            await self._producer.stop()
            self._producer = None

    async def _send(self, producer: AIOKafkaProducer, letter: DeadLetter) -> None:
        sent = sent_of(letter)
        topic = self._access.topic(TOPIC)
        await producer.send_and_wait(topic, key=sent.key, value=sent.value, headers=sent.headers)

    async def _send_cut(self, producer: AIOKafkaProducer, letter: DeadLetter) -> None:
        try:
            await self._send(producer, msgspec.structs.replace(letter, cut=True))
        except _TOO_LARGE:
            # Headers and key are the record's own, and of any size.
            bare = msgspec.structs.replace(
                letter, cut=True, key=None, headers=[], reason=letter.reason[:REASON_LENGTH_MAX]
            )
            await self._send(producer, bare)

    async def _connected(self) -> AIOKafkaProducer:
        if self._producer is None:
            hush()
            producer = AIOKafkaProducer(**producer_options(self._access, self._role))
            try:
                await producer.start()
            except BaseException:
                await producer.stop()
                raise
            self._producer = producer
        return self._producer


class Filed(msgspec.Struct, frozen=True):
    """A dead letter as it lies in its topic: its own offset there, and since when in microseconds
    of 1970. `copies` counts how often it was set aside; `replayed` is the name of the event that
    it went back as, null if it did not. `claimed` is the name that it may go back under, whoever
    sends it: the first that was noted; null if none was."""

    letter: DeadLetter
    offset: int
    since_us: int
    copies: int = 1
    replayed: str | None = None
    claimed: str | None = None


async def filed(access: KafkaAccess) -> list[Filed]:
    """Every dead letter, oldest first, each place once. Raises `KafkaError`."""
    found: dict[str, Filed] = {}
    replayed: dict[str, str] = {}
    claimed: dict[str, str] = {}
    async for record in read_to_end(access, TOPIC, "dead-letters"):
        letter = letter_of(record.headers, record.value)
        if letter is None:
            notes = dict(record.headers)
            place = (record.key or b"").decode(errors="replace")
            if REPLAYED in notes:
                replayed[place] = notes[REPLAYED].decode(errors="replace")
            elif CLAIMED in notes:
                claimed.setdefault(place, notes[CLAIMED].decode(errors="replace"))
            continue
        known = found.get(letter.place)
        found[letter.place] = (
            Filed(letter, record.offset, 1000 * record.timestamp_ms)
            if known is None
            else msgspec.structs.replace(known, copies=known.copies + 1)
        )
    return [
        msgspec.structs.replace(one, replayed=replayed.get(place), claimed=claimed.get(place))
        for place, one in found.items()
    ]


REPLAYED = "tollbook-replayed"
"""Header of the note that a letter of this key went back; its value names the new event."""

CLAIMED = "tollbook-claimed"
"""Header of the note, before it, under which name a letter goes back. The first one counts."""


def mended(letter: DeadLetter, source: str, sequence: int, clock: Clock) -> Event:
    """The event in `letter` as a new record of `source`, with the id and time that it had.

    Raises `KafkaError` if this version of the program cannot make an event of it either.
    """
    if letter.cut:
        raise KafkaError(
            f"{letter.place} was too large to be kept whole with its reason; the ledger's table "
            "poison holds it"
        )
    try:
        event = event_of(letter.headers, letter.value)
        payload = payload_of(event)
    except (CodecError, EventError) as wrong:
        raise KafkaError(
            f"{letter.place} is still no event that could count: {wrong}; nothing was sent"
        ) from wrong
    if event.topic != payload.TOPIC:
        raise KafkaError(
            f"{letter.place} is still no event that could count: {event.type} belongs to the topic "
            f"{payload.TOPIC}, not {event.topic}; nothing was sent"
        )
    return msgspec.structs.replace(
        event, source=source, sequence=sequence, recordedtime=clock.now()
    )


async def replay(
    access: KafkaAccess, letters: Sequence[Filed], source: str, clock: Clock
) -> list[Event]:
    """Send `letters` back to their topics as new records of `source`, which is new itself.

    All of them are looked at before the first is sent. The name of each is noted first, so that
    one that goes back twice, by whomever and after whatever crash, is one record that came twice.
    Raises `KafkaError`.
    """
    unique = list({one.letter.place: one for one in letters}.values())
    for one in unique:
        mended(one.letter, source, 1, clock)
    box = LetterBox(access, "dead-letters")
    try:
        with in_words(access):
            producer = await box._connected()
            names = {one.letter.place: one.claimed for one in unique}
            if await _claim(access, producer, unique, source, clock):
                now = await filed(access)
                names |= {one.letter.place: one.claimed for one in now}
            events = []
            for one in unique:
                of, _, number = (names[one.letter.place] or "").rpartition(":")
                if not (of and number.isascii() and number.isdecimal() and int(number)):
                    raise KafkaError(f"the note of {one.letter.place} names no event; see show")
                events.append((mended(one.letter, of, int(number), clock), one.letter))
            # A reader that counts by sequences takes those of one source in their order.
            for event, letter in sorted(events, key=lambda pair: pair[0].sequence):
                await _send_back(access, producer, event, letter)
    finally:
        await box.close()
    return [event for event, _ in events]


async def _claim(
    access: KafkaAccess,
    producer: AIOKafkaProducer,
    letters: Sequence[Filed],
    source: str,
    clock: Clock,
) -> bool:
    """Note a name for each of `letters` that has none yet; true if there was any."""
    sequences: dict[str, int] = {}
    for one in letters:
        if one.claimed is not None:
            continue
        topic = mended(one.letter, source, 1, clock).topic
        sequences[topic] = sequences.get(topic, 0) + 1
        name = f"{source}:{sequences[topic]}"
        await _note(access, producer, one.letter, CLAIMED, name)
    return bool(sequences)


async def _send_back(
    access: KafkaAccess, producer: AIOKafkaProducer, event: Event, letter: DeadLetter
) -> None:
    record = record_of(event)
    await producer.send_and_wait(
        access.topic(record.topic), key=record.key, value=record.value, headers=record.headers
    )
    await _note(access, producer, letter, REPLAYED, event.name)


async def _note(
    access: KafkaAccess, producer: AIOKafkaProducer, letter: DeadLetter, what: str, name: str
) -> None:
    await producer.send_and_wait(
        access.topic(TOPIC), key=letter.place.encode(), headers=[(what, name.encode())]
    )


def since(one: Filed) -> str:
    """When `one` was set aside, as RFC 3339."""
    return from_us(one.since_us).isoformat()

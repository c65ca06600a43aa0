"""Makes the topics of `streams.topics` and checks them. Nothing else makes a topic anywhere.

Making is idempotent: what is there stays as it is and is checked. A wrong partition count can
never be mended in place, because keys would move: it stops the start with words.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError as ClientError
from aiokafka.errors import TopicAlreadyExistsError, for_code

from streams.errors import KafkaError, TopicsWrong
from streams.kafka.access import KafkaAccess, client_options
from streams.kafka.read import hush
from streams.topics import TOPICS, Topic

CREATE_MS: Final = 30_000
SEEN_LOOKS_MAX: Final = 100
SEEN_PAUSE_SECONDS: Final = 0.1
"""A broker hears of a new topic a moment after the controller has made it."""


class Fault(msgspec.Struct, frozen=True):
    """One difference between the table and the broker: which topic, what, and what to do."""

    topic: str
    says: str


class Found(msgspec.Struct, frozen=True):
    """A topic as the broker has it; null where there is none."""

    partitions: int
    config: dict[str, str]


async def create_topics(access: KafkaAccess) -> list[str]:
    """Make every topic that is missing; the names of those that were made now.

    Raises `KafkaError` if the broker cannot be reached or refuses, and `TopicsWrong` if a topic
    that is there is not as the table says.
    """
    async with _admin(access) as client:
        found = await _found(client, access)
        missing = [topic for topic in TOPICS.values() if found[topic.name] is None]
        if missing:
            await _create(client, access, missing)
            found = await _found_all(client, access)
    _refuse(faults(found, access))
    return [topic.on_kafka(access.prefix) for topic in missing]


async def check_topics(access: KafkaAccess) -> None:
    """Raises `TopicsWrong` unless every topic is there as the table says, and `KafkaError` if the
    broker cannot be asked."""
    async with _admin(access) as client:
        found = await _found(client, access)
    _refuse(faults(found, access))


async def retentions(access: KafkaAccess) -> dict[str, int | None]:
    """How long each topic keeps a record in milliseconds, as the broker has it; null: for ever.

    An operator may have changed it. Raises `KafkaError` if the broker cannot be asked.
    """
    async with _admin(access) as client:
        found = await _found(client, access)
    kept = {
        name: int((there.config if there else {}).get("retention.ms", -1))
        for name, there in found.items()
    }
    return {name: ms if ms >= 0 else None for name, ms in kept.items()}


def faults(found: dict[str, Found | None], access: KafkaAccess) -> list[Fault]:
    """What differs between the table and what was `found` by topic name. Pure."""
    said = []
    for topic in TOPICS.values():
        name, there = topic.on_kafka(access.prefix), found.get(topic.name)
        if there is None:
            said.append(Fault(name, "is missing; `tollbook topics create` makes it"))
            continue
        wanted = topic.partitions(access.partitions)
        if there.partitions != wanted:
            said.append(
                Fault(
                    name,
                    f"has {there.partitions} partitions and {wanted} are set; a partition count "
                    "cannot be changed, because keys would move: set kafka.partitions to what is "
                    "there, or begin anew under another kafka.prefix",
                )
            )
        for setting, value in topic.config().items():
            if setting == "retention.ms" or there.config.get(setting) == value:
                # How long a topic is kept may be an operator's own choice.
                continue
            said.append(
                Fault(
                    name,
                    f"has {setting}={there.config.get(setting)} and needs {value}; change it with "
                    "kafka-configs.sh",
                )
            )
    return said


def _refuse(said: list[Fault]) -> None:
    if said:
        raise TopicsWrong("; ".join(f"topic {fault.topic} {fault.says}" for fault in said))


@asynccontextmanager
async def _admin(access: KafkaAccess) -> AsyncIterator[AIOKafkaAdminClient]:
    hush()
    client = AIOKafkaAdminClient(**client_options(access, "admin"))
    try:
        await client.start()
        yield client
    except (ClientError, OSError) as wrong:
        raise KafkaError(f"Kafka at {access.where}: {wrong or type(wrong).__name__}") from wrong
    finally:
        await client.close()


async def _create(client: AIOKafkaAdminClient, access: KafkaAccess, missing: list[Topic]) -> None:
    wanted = [
        NewTopic(
            topic.on_kafka(access.prefix),
            topic.partitions(access.partitions),
            access.replication,
            topic_configs=topic.config(),
        )
        for topic in missing
    ]
    answer = await client.create_topics(wanted, timeout_ms=CREATE_MS)
    for name, code, *rest in answer.topic_errors:
        error = for_code(code)
        # Another command was faster; the check behind this looks at what it made.
        if code and error is not TopicAlreadyExistsError:
            raise KafkaError(
                f"Kafka refused to make the topic {name}: {rest[0] if rest else error}"
            )


async def _found_all(client: AIOKafkaAdminClient, access: KafkaAccess) -> dict[str, Found | None]:
    """What was just made, as soon as the broker that is asked has heard of all of it."""
    for _ in range(SEEN_LOOKS_MAX):
        found = await _found(client, access)
        if None not in found.values():
            break
        await asyncio.sleep(SEEN_PAUSE_SECONDS)
    return found


async def _found(client: AIOKafkaAdminClient, access: KafkaAccess) -> dict[str, Found | None]:
    names = {topic.on_kafka(access.prefix): topic.name for topic in TOPICS.values()}
    there = {
        one["topic"]: len(one["partitions"])
        for one in await client.describe_topics(list(names))
        if not one["error_code"]
    }
    configs: dict[str, dict[str, str]] = {}
    if there:
        asked = [ConfigResource(ConfigResourceType.TOPIC, name) for name in there]
        for answer in await client.describe_configs(asked):
            for _, _, _, name, entries in answer.resources:
                configs[name] = {entry[0]: entry[1] for entry in entries}
    return {
        topic: Found(there[name], configs.get(name, {})) if name in there else None
        for name, topic in names.items()
    }

"""`tollbook topics`: makes the topics on Kafka, and checks them against the table in code."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from gateway.cli.options import json_option
from gateway.cli.output import Column, Table, json_text, show
from gateway.cli.place import Place, place_option

if TYPE_CHECKING:
    from streams.kafka.access import KafkaAccess


@click.group("topics", no_args_is_help=True)
def command() -> None:
    """The topics on Kafka: every process refuses to start where they are not as they should be."""


@command.command("create")
@place_option
@json_option
def create(place: Place, as_json: bool) -> None:
    """Make the topics that are missing, and check all of them. A second run changes nothing."""
    from streams.kafka.admin import create_topics

    access = place.need_kafka()
    made = asyncio.run(create_topics(access))
    if as_json:
        click.echo(json_text({"made": made, "topics": list(topic_rows(access))}))
        return
    show(topics_table(access, f"{len(made)} made now" if made else "all were there"))


@command.command("check")
@place_option
@json_option
def check(place: Place, as_json: bool) -> None:
    """Check that every topic is there as it should be. Exit code 1 and the differences if not."""
    from streams.kafka.admin import check_topics

    access = place.need_kafka()
    asyncio.run(check_topics(access))
    if as_json:
        click.echo(json_text({"topics": list(topic_rows(access))}))
        return
    show(topics_table(access, "all are there as they should be"))


def topic_rows(access: "KafkaAccess") -> Iterable[dict[str, object]]:
    """The table of topics as it is for `access`: names as on the broker. Pure."""
    from streams.topics import TOPICS

    for topic in TOPICS.values():
        yield {
            "topic": topic.on_kafka(access.prefix),
            "key": topic.key,
            "partitions": topic.partitions(access.partitions),
            "config": topic.config(),
            "writers": topic.writers,
            "readers": topic.readers,
        }


def topics_table(access: "KafkaAccess", said: str) -> Table:
    """The same for a person, with `said` below. Pure."""
    names = ("topic", "key", "partitions", "cleanup", "writers", "readers")
    rows = []
    for row in topic_rows(access):
        config = row["config"]
        assert isinstance(config, dict)
        rows.append(
            (
                str(row["topic"]),
                str(row["key"]),
                str(row["partitions"]),
                str(config["cleanup.policy"]),
                str(row["writers"]),
                str(row["readers"]),
            )
        )
    return Table(
        tuple(Column(name, number=name == "partitions") for name in names), tuple(rows), (said,)
    )

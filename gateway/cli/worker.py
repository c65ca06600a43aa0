"""`tollbook worker`: folds live usage, health of backends and the registry for the gateways."""

import click

from gateway.cli.place import Place, place_option


@click.command("worker")
@place_option
def command(place: Place) -> int:
    """Fold events on Kafka into what gateways read: usage by key, state of backends, registry.

    Runs until SIGTERM. Any number of workers share the work; one that is killed is replaced by the
    others within 15 seconds.
    """
    from ledger.clock import SystemClock
    from streams.faustapp.worker import run_worker

    access = place.need_kafka()
    return run_worker(
        access,
        clock=SystemClock(),
        say=lambda text: click.echo(f"tollbook worker: {text}", err=True),
    )

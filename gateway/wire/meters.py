"""The meter for a streamed answer, by its endpoint. Pure."""

from gateway.wire.endpoints import Endpoint
from gateway.wire.metering import Meter
from gateway.wire.requests import Asked, Engine
from gateway.wire.sse import StreamMeter


class _Interim(StreamMeter):
    fault: str | None = None

    @property
    def covered(self) -> bool:
        return self.raw is not None


def make_meter(endpoint: Endpoint, wish: Asked, engine: Engine) -> Meter:
    """A new meter for one answer."""
    return _Interim(wish, engine, chat=endpoint.dialect == "chat")

"""The meter for a streamed answer, by its endpoint and by what is asked of its engine. Pure."""

from gateway.wire.choices import ChoicesMeter
from gateway.wire.endpoints import Endpoint
from gateway.wire.metering import Meter
from gateway.wire.named import METERS
from gateway.wire.requests import Asked, Engine
from gateway.wire.sse import StreamMeter


def make_meter(endpoint: Endpoint, wish: Asked, engine: Engine) -> Meter:
    """A new meter for one answer that is a stream of events.

    Sound itself, which `/v1/audio/speech` sends unless it is asked for events, is no such stream.
    """
    dialect = endpoint.dialect
    if dialect == "transcription" and engine == "vllm":
        # It sends chunks as of a chat, and was asked for their usage.
        return StreamMeter(wish, engine, chat=True)
    if dialect in METERS:
        return METERS[dialect]()
    if wish.answers * wish.prompts > 1:
        return ChoicesMeter(wish, engine, chat=dialect != "text")
    return StreamMeter(wish, engine, chat=dialect != "text")

"""The floor: the smallest Starlette + aiohttp passthrough. It knows no keys and counts nothing.

Run by uvicorn as its own process; what Tollbook costs is what it costs more than this.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

BACKEND = os.environ.get("BACKEND", "")
HEADERS = {
    "content-type": "application/json",
    "authorization": f"Bearer {os.environ.get('BACKEND_KEY', '')}",
}


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """One client session for as long as the server runs."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        app.state.session = session
        yield


async def passed(request: Request) -> Response:
    """The backend's answer as it is."""
    body = await request.body()
    answer = await request.app.state.session.post(
        BACKEND + request.url.path, data=body, headers=HEADERS
    )
    kind = answer.headers.get("content-type", "")
    if not kind.startswith("text/event-stream"):
        return Response(await answer.read(), answer.status, media_type=kind)

    async def chunks() -> AsyncIterator[bytes]:
        try:
            async for data in answer.content.iter_any():
                yield data
        finally:
            answer.close()

    return StreamingResponse(chunks(), answer.status, media_type=kind)


app = Starlette(
    routes=[
        Route("/v1/chat/completions", passed, methods=["POST"]),
        Route("/v1/completions", passed, methods=["POST"]),
    ],
    lifespan=lifespan,
)

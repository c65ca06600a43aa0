"""`GET` on usage and costs: who may ask, what is asked, and the answer of the ledger's reader."""

from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from gateway.access import key_of, secret_of
from gateway.books import Books
from gateway.errors import ApiError, BadRequest, Forbidden
from gateway.http.client_ids import client_id_of
from gateway.http.doors import Desk, hash_of
from gateway.http.reply import AsgiReply
from gateway.wire.organization import Kind, asked
from ledger.folds.book import Key
from ledger.identity import mint_id

PATHS: dict[str, Kind] = {
    "/v1/organization/usage/completions": "usage",
    "/v1/organization/costs": "costs",
    "/v1/usage": "own",
}

PARAMETERS_MAX = 2000


class Told:
    """One of `PATHS`: an admin key may ask of everybody, every key of its own usage."""

    def __init__(self, desk: Desk, books: Books, kind: Kind) -> None:
        self._desk = desk
        self._books = books
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        desk = self._desk
        started = desk.clock.monotonic()
        headers = dict(scope["headers"])
        reply = AsgiReply(send, f"req_{mint_id()}", client_id_of(headers))
        more = []
        try:
            try:
                key = key_of(desk.book(), hash_of(secret_of(headers)))
            except ApiError as refused:
                desk.stats.unauthorized += refused.status == 401
                raise
            status, body = 200, await self._answer(key, scope["query_string"])
        except ApiError as error:
            status, body = error.status, error.body()
            if status == 503:
                more.append((b"retry-after", b"1"))
        spent = b"%.3f" % ((desk.clock.monotonic() - started) * 1000)
        await reply.whole(status, body, [(b"x-tollbook-overhead-ms", spent), *more])

    async def _answer(self, key: Key, query: bytes) -> bytes:
        if self._kind != "own":
            require_admin(key)
        try:
            pairs = parse_qsl(
                query.decode("ascii"),
                keep_blank_values=True,
                max_num_fields=PARAMETERS_MAX,
                errors="strict",
            )
        except ValueError as wrong:
            raise BadRequest(f"The query of this address cannot be read: {wrong}.") from wrong
        # The second that has begun is in it, or an answer would be told of a second late.
        now = int(self._desk.clock.now().timestamp()) + 1
        ask = asked(self._kind, pairs, now)
        return await self._books.ask(ask if self._kind != "own" else ask.only(key.key_id))


def require_admin(key: Key) -> None:
    """Raises `Forbidden` for a key that may not ask what others used."""
    if key.scope != "admin":
        raise Forbidden(
            f"API key {key.key_id} is no admin key, so it may not ask what the whole organization "
            "used. Its own usage is at GET /v1/usage; whoever runs this gateway makes an admin key "
            "with 'tollbook keys create --admin'.",
            code="admin_key_required",
        )

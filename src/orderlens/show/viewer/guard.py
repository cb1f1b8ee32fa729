"""Who is answered: requests to this machine's own name, with the token, that only read.

Checking ``Host`` stops pages elsewhere that had their name resolved to this machine; the token stops other
users of it. Every answer tells the browser to run nothing but our own script and to send the address nowhere.
"""

from __future__ import annotations

import hmac
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

TOKEN_HEADER = "x-orderlens-token"  # noqa: S105  the name of a header
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """Middleware in front of everything."""

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        self.app = app
        self._token = token.encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse in one line."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        refused = self._refusal(scope)
        answer = self.app if refused is None else PlainTextResponse(refused[1] + "\n", refused[0])
        await answer(scope, receive, sealed)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason, None for a request that may pass."""
        headers = Headers(scope=scope)
        named = headers.getlist("host")
        if len(named) != 1 or named[0].lower() not in self._hosts:
            return 421, "this viewer answers to its own address only"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "this viewer only reads"
        given = headers.get(TOKEN_HEADER) or _from_address(scope)
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token):
            return 403, "the token is missing or wrong: open the address that 'orderlens view' printed"
        return None


def _from_address(scope: Scope) -> str:
    found = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
    return found[0] if len(found) == 1 else ""

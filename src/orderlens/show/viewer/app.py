"""The viewer's web application: a page, its built files and five read-only endpoints.

No address names a file: assets come from a fixed list, and runs and samples from the opened runs. ``Guard``
answers only read requests to this machine's name that carry the token. Checking ``Host`` prevents DNS
rebinding; the token keeps out other users of the machine. Headers let the browser run only our script and
send no referrer.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from orderlens._version import __version__
from orderlens.common.plaintext import printable
from orderlens.common.templating import fill
from orderlens.errors import OrderLensError, RunError, UserInputError, one_line
from orderlens.show.report.page import asset
from orderlens.show.viewer.index import Index, Query
from orderlens.show.views import column_terms, fetch_sample, plain_sample
from orderlens.show.views.film import film
from orderlens.store.reader import Run

FILMED = 4
"""Traces in one film at most."""
ASSETS = {"viewer.js": "text/javascript", "page.css": "text/css"}
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
Endpoint = Callable[[Request], Awaitable[Response]]


def make_app(run: Run, token: str, hosts: frozenset[str]) -> Starlette:
    """Return the application.

    Args:
        run: one or several opened runs.
        token: requests without it are refused.
        hosts: allowed values of a request's ``Host``.
    """
    index = Index(run)

    async def page(_request: Request) -> Response:
        return HTMLResponse(fill("viewer.html.j2", token=token, version=__version__))

    async def built(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            return _json({"error": "there is no such file"}, 404)
        return Response(asset(name).text, media_type=ASSETS[name])

    async def catalogue(_request: Request) -> Response:
        return _json(await run_in_threadpool(_catalogue, run, index))

    async def samples(request: Request) -> Response:
        return _json(await run_in_threadpool(index.page, query_of(dict(request.query_params))))

    async def plane(request: Request) -> Response:
        return _json(await run_in_threadpool(index.plane, query_of(dict(request.query_params))))

    async def sample(request: Request) -> Response:
        params = request.query_params
        return _json(await run_in_threadpool(_sample, run, params.get("run", ""), params.get("id", "")))

    async def picture(request: Request) -> Response:
        params = request.query_params
        named = (params.get("run", ""), params.get("id", ""), params.getlist("trace"))
        return Response(await run_in_threadpool(_film, run, *named), media_type="image/svg+xml")

    app = Starlette(
        routes=[
            Route("/", page),
            Route("/assets/{name}", built),
            Route("/api/catalogue", _answered(catalogue)),
            Route("/api/samples", _answered(samples)),
            Route("/api/plane", _answered(plane)),
            Route("/api/sample", _answered(sample)),
            Route("/api/film", _answered(picture)),
        ]
    )
    app.state.index = index
    app.add_middleware(Guard, token=token, hosts=hosts)
    return app


def _answered(endpoint: Endpoint) -> Endpoint:
    """Turn our errors into an answer that the page shows."""

    async def wrapped(request: Request) -> Response:
        try:
            return await endpoint(request)
        except OrderLensError as error:
            code = 400 if isinstance(error, UserInputError) and not isinstance(error, RunError) else 404
            return _json({"error": one_line(error)}, code)

    return wrapped


def _json(value: Any, status: int = 200) -> Response:
    # ASCII: an unpaired surrogate in a text must not break the answer
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def _catalogue(run: Run, index: Index) -> dict[str, Any]:
    holding = [name for name in run.names if "reveals" in run.only([name]).tables]
    run = run.only(holding) if holding else run
    shown = {name: printable(facts) for name, facts in run.facts().items()}
    return {
        "runs": [{"name": name, "facts": facts} for name, facts in shown.items()],
        "orders": run.order_labels() or index.orders(),
        "graded": index.is_graded,
        "notes": _unfinished([name for name in run.names if not run.only([name]).is_complete]),
        "terms": column_terms(),
    }


def _unfinished(names: list[str]) -> list[str]:
    if not names:
        return []
    one = f"Run {names[0]} was not complete" if len(names) == 1 else f"{len(names)} runs were not complete"
    named = f"{one} ({', '.join(names[:6])})" if len(names) > 1 else one
    return [printable(f"{named} when the viewer was started; restart it to see the newer traces.")]


def _sample(run: Run, name: str, sample_id: str) -> dict[str, Any]:
    return plain_sample(fetch_sample(run, sample_id, name=name or None))


def _film(run: Run, name: str, sample_id: str, traces: list[str]) -> str:
    sample = fetch_sample(run, sample_id, name=name or None)
    return film(sample, [sample.trace(label) for label in traces[:FILMED]])


def query_of(params: dict[str, str]) -> Query:
    """Read the list's parameters.

    Raises:
        UserInputError: a value is not allowed.
    """
    known: dict[str, Any] = {name: value for name, value in params.items() if name in _TEXTS}
    for name in ("page", "cascade"):
        if name in params:
            known[name] = _whole_number(name, params[name])
    for name in ("descending", "whole"):
        known[name] = params.get(name, "true") == "true"
    return Query(**known)


_TEXTS = ("run", "order", "text", "correct", "where", "sort")


def _whole_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UserInputError(
            f"'{text[:20]}' is not a value of {name}; use a whole number from 0 to 999999999"
        )
    return int(text)


class Guard:
    """Middleware that refuses requests from elsewhere, without the token, or that do not read."""

    def __init__(self, app: ASGIApp, token: str, hosts: frozenset[str]) -> None:
        self.app = app
        self._token = token.encode()
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, or refuse it in one line."""
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
        """Return status and reason; None for an allowed request."""
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

"""The guard alone, before an application that answers everything: what passes, and what is refused first."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from orderlens.show.viewer.app import HEADERS, Guard

HOST = ("host", "127.0.0.1:8000")
TOKEN = ("x-orderlens-token", "secret")


async def everything(scope, receive, send):
    """Say which kind of request came through, with a header that the guard must replace."""
    start = {"status": 200, "headers": [(b"cache-control", b"public"), (b"x-own", b"kept")]}
    await send({"type": "http.response.start"} | start if scope["type"] == "http" else {"type": "passed"})


def ask(*headers, method="GET", query="", kind="http"):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request"}

    scope = {
        "type": kind,
        "method": method,
        "path": "/",
        "query_string": query.encode("latin-1"),
        "headers": [(name.encode(), value.encode("utf-8")) for name, value in headers],
    }
    guard = Guard(everything, "secret", frozenset({HOST[1], "localhost:8000"}))
    with ThreadPoolExecutor(1) as apart:  # tests in a browser may have left a loop running in this thread
        apart.submit(lambda: asyncio.run(guard(scope, receive, send))).result()
    return sent


@pytest.mark.parametrize(
    ("headers", "more", "status"),
    [
        ([HOST, TOKEN], {}, 200),
        ([HOST, TOKEN], {"method": "HEAD"}, 200),
        ([HOST], {"query": "token=secret"}, 200),
        ([HOST], {"query": "a=1&token=secret"}, 200),
        ([("host", "LocalHost:8000"), TOKEN], {}, 200),
        ([HOST, TOKEN], {"query": "token=wrong"}, 200),
        ([HOST], {}, 403),
        ([HOST], {"query": "token=secret&token=wrong"}, 403),
        ([HOST], {"query": "token="}, 403),
        ([HOST], {"query": "token=secre"}, 403),
        ([HOST], {"query": "token=secrets"}, 403),
        ([HOST], {"query": "Token=secret"}, 403),
        ([HOST, ("x-orderlens-token", "wrong")], {"query": "token=secret"}, 403),
        ([HOST, ("x-orderlens-token", "gehéim")], {}, 403),
        ([HOST, ("cookie", "token=secret")], {}, 403),
        ([TOKEN], {}, 421),
        ([HOST, HOST, TOKEN], {}, 421),
        ([HOST, ("host", "evil.example"), TOKEN], {}, 421),
        ([("host", "127.0.0.1"), TOKEN], {}, 421),
        ([("x-forwarded-host", HOST[1]), ("host", "evil.example"), TOKEN], {}, 421),
        ([HOST, TOKEN], {"method": "POST"}, 405),
        ([HOST, TOKEN], {"method": "get"}, 405),
        ([HOST], {"method": "DELETE"}, 405),  # another method does not reveal whether a token is needed
        ([("host", "evil.example")], {"method": "POST"}, 421),
    ],
)
def test_who_is_answered(headers, more, status):
    start, *rest = ask(*headers, **more)
    assert start["status"] == status
    found = {name.decode(): value.decode() for name, value in start["headers"]}
    assert found.items() >= HEADERS.items(), "refusals carry the headers too"
    assert len(start["headers"]) == len(found), "none is sent twice"
    if status == 200:
        assert found["x-own"] == "kept"
    else:
        assert rest[0]["body"].count(b"\n") == 1
        assert b"secret" not in rest[0]["body"]


def test_web_sockets_are_closed_and_the_server_may_start():
    assert ask(HOST, TOKEN, kind="websocket") == [{"type": "websocket.close", "code": 1008}]
    assert ask(kind="lifespan") == [{"type": "passed"}]

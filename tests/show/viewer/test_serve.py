"""A running viewer: it listens on this machine only, needs its token, and reports its port."""

from __future__ import annotations

import json
import socket
import sys
import threading
import urllib.error
import urllib.request

import pytest

uvicorn = pytest.importorskip("uvicorn")

import orderlens as ol  # noqa: E402
from orderlens.cli.main import main  # noqa: E402
from orderlens.errors import CorruptRunError, MissingPackageError, RunError, UserInputError  # noqa: E402
from orderlens.show.viewer import serve as serving  # noqa: E402
from orderlens.show.viewer.serve import Place, serve  # noqa: E402
from orderlens.testing import make_run, make_trace  # noqa: E402


@pytest.mark.parametrize(
    ("port", "hosts"),
    [
        (8000, {"127.0.0.1:8000", "localhost:8000"}),
        (80, {"127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"}),
    ],
)
def test_the_names_of_a_place(port, hosts):
    place = Place(port, "secret")
    assert place.hosts == hosts
    assert place.address == f"http://127.0.0.1:{port}/?token=secret"


@pytest.fixture
def taken():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    traces = [make_trace("a", "max-prob", [-0.1, -2.0]), make_trace("a", "forced-ar", [-0.3, -0.2])]
    return make_run(traces).save(tmp_path_factory.mktemp("served") / "run")


def test_a_port_that_is_taken_or_none_is_one_line(run, taken, tmp_path, capsys):
    with pytest.raises(UserInputError, match=rf"cannot listen on 127.0.0.1:{taken} .*choose another --port"):
        serve(run, port=taken, browser=False)
    with pytest.raises(UserInputError, match="choose another --port, or 0 for a free one"):
        serve(run, port=70_000, browser=False)
    make_run([make_trace("a", "x", [-1.0])]).save(tmp_path / "run")
    assert main(["view", str(tmp_path / "run"), "--port", str(taken), "--no-browser"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_run_without_traces_is_refused_with_what_it_has():
    census = ol.census("hmm:incoherence=0.5", [ol.Sample("a", "the ")], span=3, generate=True)
    with pytest.raises(RunError, match="has no traces; 'orderlens runs export RUN --table census_texts"):
        serve(census.run, browser=False)


def test_a_damaged_run_ends_the_viewer_and_frees_its_port(tmp_path, monkeypatch):
    damaged = make_run([make_trace("a", "x", [-1.0])]).save(tmp_path / "run")
    part = next((tmp_path / "run/parts/reveals").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-20])
    sockets, listen = [], serving._listen
    monkeypatch.setattr(serving, "_listen", lambda port: sockets.append(listen(port)) or sockets[0])
    with pytest.raises(CorruptRunError, match="is damaged"):
        serve(damaged, browser=False)
    assert sockets[0].fileno() == -1


@pytest.mark.parametrize("browser", [False, True])
def test_it_serves_who_has_the_token_until_it_is_stopped(run, browser, monkeypatch):
    servers, places, opened = [], [], []
    listening, wanted = threading.Event(), threading.Event()

    class Watched(uvicorn.Server):
        def __init__(self, config):
            super().__init__(config)
            servers.append(self)

    def open_page(address):
        opened.append(address)
        wanted.set()

    monkeypatch.setattr(uvicorn, "Server", Watched)
    monkeypatch.setattr(serving.webbrowser, "open", open_page)

    def ready(place):
        places.append(place)
        listening.set()

    thread = threading.Thread(target=serve, args=(run,), kwargs={"browser": browser, "ready": ready})
    thread.start()
    assert listening.wait(30)
    try:
        (place,) = places
        base = f"http://127.0.0.1:{place.port}"
        request = urllib.request.Request(f"{base}/api/samples", headers={"X-OrderLens-Token": place.token})
        with urllib.request.urlopen(request, timeout=30) as answer:
            rows = json.load(answer)["rows"]
        assert sorted((row["sample_id"], row["order"]) for row in rows) == [
            ("a", "forced-ar"),
            ("a", "max-prob"),
        ]
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{base}/api/samples", timeout=30)
        if browser:
            assert wanted.wait(30)
        assert opened == ([place.address] if browser else [])
        assert len(place.token) >= 24
    finally:
        servers[0].should_exit = True
        thread.join(30)
    assert not thread.is_alive()
    with socket.socket() as again, pytest.raises(OSError, match="refused"):
        again.connect(("127.0.0.1", place.port))


def test_without_its_packages_the_viewer_names_them(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingPackageError, match="the viewer needs uvicorn; install it with 'pip install"):
        serve(run, browser=False)

"""The viewer answers only who may ask, reads only, serves no files, and tells what the run holds."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from orderlens.show.viewer.app import HEADERS, _unfinished, make_app
from orderlens.store.reader import join_runs
from orderlens.testing import make_run, make_trace

TOKEN = "a-token"
HOST = "127.0.0.1:8000"
HOSTILE = "<script>alert(1)</script>\u202e\x00\x1b]0;x\x07\udc80\"'"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    key = {"order": "max-prob", "temperature": 0.0}
    traces = [
        make_trace("a", "max-prob", [-0.1, -2.0, -0.3], tokens=[5, 0, 0], path=[2, 1, 0], temperature=0.0),
        make_trace("b", "max-prob", [-0.1, -0.2, -0.3], temperature=0.0),
    ]
    outputs = [
        key | {"sample_id": "a", "text": "Hello " + HOSTILE[:-3], "prompt_text": "Say it"},
        key | {"sample_id": "b", "text": "bye", "prompt_text": "Say less"},
    ]
    verdicts = [key | {"sample_id": "a", "correct": False, "grader": "g", "generation": 0}]
    spec = {"kind": "generate", "orders": ["max-prob"], "model": {"name": HOSTILE[:-3]}}
    return make_run(traces, spec=spec, outputs=outputs, verdicts=verdicts).save(
        tmp_path_factory.mktemp("view") / "run"
    )


@pytest.fixture(scope="module")
def app(run):
    return make_app(run, TOKEN, frozenset({HOST}))


@pytest.fixture(scope="module")
def client(app):
    return TestClient(app, base_url=f"http://{HOST}", headers={"X-OrderLens-Token": TOKEN})


@pytest.fixture(scope="module")
def stranger(app):
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


REQUESTS = ("/api/catalogue", "/api/samples", "/api/plane", "/api/sample?id=a", "/api/film?id=a")
PATHS = ("/", "/assets/viewer.js", *REQUESTS, "/nowhere")


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_nothing_is_answered(stranger, path):
    assert stranger.get(path).status_code == 403
    joined = f"{path}{'&' if '?' in path else '?'}"
    assert stranger.get(f"{joined}token=wrong").status_code == 403
    assert stranger.get(f"{joined}token={TOKEN}&token={TOKEN}").status_code == 403
    assert stranger.get(path, headers={"X-OrderLens-Token": "é".encode()}).status_code == 403
    assert "run" not in stranger.get(path).text.replace("orderlens", "")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:8000.evil.example", "127.0.0.1:8001", ""]
)
def test_a_foreign_host_is_refused_even_with_the_token(client, path, host):
    assert client.get(path, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_it_only_reads(client, method):
    assert client.request(method, "/api/samples").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../page.py",
        "/assets/..%2f..%2fpyproject.toml",
        "/assets/%2e%2e/report.js",
        "/assets/report.js",
        "/assets//etc/passwd",
        "/../../etc/passwd",
        "/api/sample?id=a&run=../run",
        "/api/sample?id=a&run=/etc",
        "/api/sample?id=../a",
        "/api/sample?id=nobody",
        "/api/sample",
        "/api/film?id=nobody&trace=max-prob",
        "/api/film?id=a&trace=nothing",
    ],
)
def test_nothing_outside_the_runs_is_reached(client, path):
    answer = client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text


def test_every_answer_tells_the_browser_to_run_nothing_else(client, stranger):
    for answer in (client.get("/"), client.get("/api/samples"), client.get("/nowhere"), stranger.get("/")):
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    assert "unsafe" not in HEADERS["content-security-policy"]


def test_the_page_holds_no_data_and_loads_only_its_own_files(client, read_html):
    page = read_html(client.get("/").text)
    places = [value for name, value in page.attributes if name in ("src", "href")]
    assert sorted(value.partition("?")[0] for value in places) == [
        "#explorer", "/assets/page.css", "/assets/viewer.js", "data:,",
    ]  # fmt: skip
    for name in ("page.css", "viewer.js"):
        assert client.get(f"/assets/{name}?token={TOKEN}").status_code == 200


def test_the_catalogue_tells_what_there_is(client):
    found = client.get("/api/catalogue").json()
    assert found["orders"] == ["max-prob"]
    assert found["graded"] is True
    assert set(found["terms"]) == {"name", "label", "var", "mean", "gap", "passes", "cascade", "correct"}
    assert found["terms"]["cascade"]["meaning"].startswith("Longest run of steps that reveal EOS")
    assert found["runs"][0]["name"] == "run"
    assert "6 reveals" in found["runs"][0]["facts"]
    assert not {"\u202e", "\x00", "\x1b"} & set(found["runs"][0]["facts"])


def test_the_list_and_the_sample_are_what_the_run_holds(client, run):
    page = client.get("/api/samples?sort=name&descending=false").json()
    assert (page["total"], page["state"]) == (2, "whole")
    first = page["rows"][0]
    assert (first["sample_id"], first["cascade"], first["correct"]) == ("a", 2, False)
    sample = client.get("/api/sample", params={"id": "a", "run": "run"}).json()
    assert sample["traces"][0]["id"] == first["id"]
    assert sample["traces"][0]["stats"]["var"] == pytest.approx(first["var"], abs=1e-6)
    assert sample["prompt"] == "Say it"


def test_the_plane_has_every_trace_and_the_medians_of_graded_ones(client):
    found = client.get("/api/plane").json()
    listed = {row["sample_id"]: row for row in client.get("/api/samples").json()["rows"]}
    assert found["total"] == 2
    points = {row["sample_id"]: row for row in found["points"]}
    assert points["b"] == listed["b"]
    content = {"mean": -0.3, "var": 0.0}  # the last reveal of a is content, the others are EOS
    assert points["a"] == listed["a"] | content != listed["a"]
    (group,) = found["groups"]
    assert (group["run"], group["task"]) == ("run", None)
    assert {name: group[name] for name in content} == pytest.approx(content, abs=1e-9)  # only a has a verdict
    fewer = client.get("/api/plane?correct=none").json()
    assert [row["sample_id"] for row in fewer["points"]] == ["b"]
    assert fewer["groups"] == found["groups"], "borders do not move with the filters"
    assert client.get("/api/plane?where=var").status_code == 400


def test_an_ungraded_run_next_to_a_graded_one_is_on_the_plane(run, tmp_path):
    other = make_run([make_trace("c", "max-prob", [-1.0, -2.0])]).save(tmp_path / "other")
    both = make_app(join_runs([run, other]), TOKEN, frozenset({HOST}))
    found = TestClient(both, base_url=f"http://{HOST}", headers={"X-OrderLens-Token": TOKEN}).get(
        "/api/plane"
    )
    middles = {group["run"]: (group["mean"], group["var"]) for group in found.json()["groups"]}
    assert set(middles) == {"run", "other"}
    assert middles["other"] == pytest.approx((-1.5, 0.25))


def test_the_plane_has_a_bounded_number_of_points(client, monkeypatch):
    monkeypatch.setattr("orderlens.show.viewer.index.MOST_POINTS", 1)
    found = client.get("/api/plane").json()
    assert (found["total"], len(found["points"])) == (2, 1)


def test_a_film_holds_the_traces_asked_for(client):
    answer = client.get("/api/film", params={"id": "a", "trace": ["max-prob", "max-prob"]})
    assert answer.headers["content-type"] == "image/svg+xml"
    assert answer.text.startswith("<svg")
    assert answer.text.count('class="head"') == 2


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("text=HELLO", ["a"]),
        ("text=say", ["a", "b"]),
        ("text=%25", []),
        ("text='; DROP TABLE traces; --", []),
        ("correct=no", ["a"]),
        ("correct=none", ["b"]),
        ("cascade=1", ["a"]),
        ("run=elsewhere", []),
        ("order=max-prob&sort=var", ["a", "b"]),
        ("page=1", []),
        ("sort=correct", ["a", "b"]),
        ("whole=false&sort=mean", ["b", "a"]),
    ],
)
def test_filters_and_sorting(client, query, ids):
    assert [row["sample_id"] for row in client.get(f"/api/samples?{query}").json()["rows"]] == ids


@pytest.mark.parametrize(
    "query", ["sort=token_id", "page=-1", "page=x", "cascade=1e9", "correct=maybe", "page=9999999999"]
)
def test_bad_questions_are_answered_in_one_line(client, query):
    answer = client.get(f"/api/samples?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_runs_that_are_not_complete_are_named():
    assert _unfinished([]) == []
    assert _unfinished(["a\x1b"])[0].startswith("Run a\\x1b was not complete when")
    assert _unfinished(["a", "b"])[0].startswith("2 runs were not complete (a, b) when")

"""``ol.report``, ``ol.view`` and ``ol.import_run``, and what models and orders print."""

from __future__ import annotations

import pytest

import orderlens as ol
from orderlens.testing import StubModel


@pytest.fixture(scope="module")
def run() -> ol.Run:
    samples = [ol.Sample(str(i), "once upon", "a time there was") for i in range(3)]
    return ol.score("hmm", samples, orders=["forced-ar", "random"])


@pytest.mark.parametrize("stored", [True, False])
def test_report_takes_opened_runs_and_folders(run, tmp_path, stored) -> None:
    given = str(run.save(tmp_path / "run").sources["run"].folder.root) if stored else run
    path = ol.report(given, tmp_path / "page.html", samples=1, title="Mine")
    assert path == tmp_path / "page.html"
    assert "Mine" in path.read_text()


def test_view_prints_its_address_and_ends_with_an_interrupt(run, capsys, monkeypatch) -> None:
    uvicorn = pytest.importorskip("uvicorn")

    def interrupt(_server: object, sockets: list) -> None:
        for item in sockets:
            item.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", interrupt)
    ol.view(run, browser=False)
    assert capsys.readouterr().out.startswith("http://127.0.0.1:")


def test_import_run_takes_text_paths(tmp_path) -> None:
    (tmp_path / "t.csv").write_text("sample_id,order,step,logq\na,left,0,-0.5\na,left,1,-1.5\n")
    found = ol.import_run(str(tmp_path / "t.csv"), tmp_path / "run")
    assert (found.n_reveals, found.n_traces) == (2, 1)
    assert ol.open_run(found.run).reveals().to_arrow()["logq"].to_pylist() == [-0.5, -1.5]


def test_reprs_are_short_and_say_what_it_is() -> None:
    assert repr(ol.load_model("hmm:block=8")) == "<hmm:block=8, block-causal attention, 51 ids>"
    assert repr(StubModel([0.0, 1.0], name="mine")) == "<mine, block-causal attention, 3 ids>"
    assert repr(ol.parse_order("random:3")) == "RandomOrder('random:3')"
    assert repr(ol.parse_policy("max-prob+top=2")) == "Policy('max-prob+top=2')"


@pytest.mark.needs_torch
def test_the_bundled_model_has_a_short_repr() -> None:
    pytest.importorskip("torch")
    assert repr(ol.load_model("tiny")).startswith("<tiny, block-causal attention, ")

"""The verbs replicate, demo and figures from the outside: output, JSON, exit codes."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import pytest

from orderlens.cli.main import main
from orderlens.studies.results import replicate_results

SMALL = ("--limit", "6", "--temperatures", "1", "--evaluator", "none-such")


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A data file of short texts, so that a quick run takes seconds."""
    path = tmp_path_factory.mktemp("data") / "texts.jsonl"
    target = "the boat came home in the rain, "
    rows = [{"id": f"t{i}", "prompt": f"On day {i} ", "target": target} for i in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def replicated(texts, tmp_path_factory, quick_figures):
    """What a replication prints with --json, and its results."""
    out = tmp_path_factory.mktemp("out") / "rep"
    text, made = io.StringIO(), []

    def keep(*arguments):
        made.append(replicate_results(*arguments))
        return made[0]

    command = ["replicate", "--model", "hmm", "--data", str(texts), "--out", str(out), *SMALL, "--json"]
    with contextlib.redirect_stdout(text), quick_figures(), pytest.MonkeyPatch.context() as patch:
        patch.setattr("orderlens.studies.results.replicate_results", keep)
        patch.setattr("orderlens.studies.results.figure_names", lambda _: ["lorenz", "unmask"])
        assert main(command) == 0
    return json.loads(text.getvalue()), made[0]


@pytest.fixture
def printed(replicated):
    return replicated[0]


@pytest.fixture
def finished(printed):
    """Its folder."""
    return Path(printed["folder"])


def test_json_holds_plan_tables_and_findings(printed):
    assert printed["plan"]["n_texts"] == 6
    words = {item["id"]: item["outcome"] for item in printed["reading"]["findings"]}
    assert words["chain-rule"] != "supported"  # the control is one exact joint; six texts may leave it open
    assert {table["table"] for table in printed["tables"]} >= {"fixed-sequence", "generation", "temperature"}
    assert any("unknown evaluator 'none-such'" in note for note in printed["notes"])


def test_the_same_command_prints_tables_findings_and_where_things_are(
    replicated, finished, texts, capsys, monkeypatch
):
    """The same results, as text: nothing is decoded, and they are not made twice for this test."""
    monkeypatch.setattr("orderlens.studies.results.replicate_results", lambda *_: replicated[1])
    assert main(["replicate", "--model", "hmm", "--data", str(texts), "--out", str(finished), *SMALL]) == 0
    text = capsys.readouterr().out
    assert "Fixed sequences" in text
    assert "13 findings: " in text
    assert "Left open: 1 check, 1 left open" in text
    assert str(finished / "index.html") in text
    assert "unknown evaluator 'none-such'" in text


def test_figures_are_redrawn_from_the_stored_runs(finished, tmp_path, capsys):
    out = tmp_path / "again"
    assert (
        main(["figures", str(finished), "--out", str(out), "--figure", "lorenz,unmask", "--format", "png"])
        == 0
    )
    assert sorted(path.name for path in out.iterdir()) == [
        "lorenz.json",
        "lorenz.png",
        "unmask.json",
        "unmask.png",
    ]
    first = json.loads((finished / "figures" / "unmask.json").read_text())
    assert json.loads((out / "unmask.json").read_text()) == first
    assert "lorenz" in capsys.readouterr().out


def test_figures_that_a_run_cannot_fill_say_why(finished, tmp_path, capsys):
    run = str(finished / "runs" / "score")
    assert main(["figures", run, "--out", str(tmp_path), "--figure", "unmask", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out)[0]["why"]
    assert "none of the figures" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replicate", "--preset", "fast", "--out", "{out}"], "unknown preset 'fast'"),
        (
            ["replicate", "--model", "hmm", "--data", "passages", "--temperatures", "x", "--out", "{out}"],
            "'x'",
        ),
        (["replicate", "--model", "hmm", "--data", "nowhere.jsonl", "--out", "{out}"], "nowhere.jsonl"),
        (["replicate", "--model", "hmmm", "--data", "passages", "--out", "{out}"], "hmmm"),
        (["replicate", "--model", "hmm", "--data", "passages", "--limit", "-3", "--out", "{out}"], "-3"),
        (["figures", "{out}"], "no run at"),
        (["figures", "{finished}", "--figure", "lorentz"], "did you mean 'lorenz'"),
        (["figures", "{finished}", "--format", "gif", "--out", "{out}"], "'gif'"),
        (["replicate", "--model", "hmm", "--data", "passages", "--out", "{finished}"], "another data"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments, message, finished, tmp_path, capsys):
    filled = [item.format(out=tmp_path / "new", finished=finished) for item in arguments]
    assert main(filled) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_demo_starts_without_arguments(tmp_path, capsys, monkeypatch):
    """The demo of the bundled model takes minutes; here its folder is refused after the plan was made."""
    from orderlens.studies import replicate_plan

    monkeypatch.setattr(replicate_plan, "is_bundled", lambda name: False)
    (tmp_path / "letter.txt").write_text("")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "It uses hmm because the bundled model tiny lacks" in captured.out
    assert "not empty and holds no replication" in captured.err

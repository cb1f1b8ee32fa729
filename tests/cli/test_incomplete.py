"""A run that lacks units is named so by every command that reads runs, in one line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.errors import RunError

READERS = {
    "analyze": ["analyze", "RUN", "--table", "fixed-sequence", "--bootstrap", "20"],
    "figures": ["figures", "RUN", "--figure", "lorenz", "--format", "svg", "--out", "OUT"],
    "report": ["report", "RUN", "--out", "OUT.html", "--bootstrap", "20"],
    "export": ["runs", "export", "RUN", "--out", "OUT.csv"],
    "sample": ["runs", "show", "RUN", "--sample", "t0"],
    "profile": ["theory", "profile", "RUN"],
    "fit": ["theory", "fit", "RUN"],
}
NOTE = "is not complete (1 of 2 units stored); run the command that started it again to finish it"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A complete run of two units."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    samples = [ol.Sample(f"t{i}", "once upon", "a time there was") for i in range(4)]
    ol.score(ol.load_model("hmm"), samples, orders=["forced-ar", "random"], batch_size=2, out=folder)
    return folder


@pytest.fixture
def stopped(whole: Path, tmp_path: Path) -> Path:
    """The same run as if its second unit had never been committed."""
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    for catalog in folder.glob("catalog-*.json"):
        catalog.unlink()
    sorted((folder / "units").iterdir())[-1].unlink()
    return folder


@pytest.mark.parametrize("verb", READERS)
def test_every_reader_names_it_in_one_line(stopped, whole, tmp_path, capsys, verb: str) -> None:
    def errors(run: Path, name: str) -> str:
        words = [word.replace("RUN", str(run)) for word in READERS[verb]]
        main([word.replace("OUT", str(tmp_path / name)) for word in words])
        return capsys.readouterr().err

    assert errors(stopped, "a").count(f"run {stopped} {NOTE}") == 1
    assert "not complete" not in errors(whole, "b")


def test_a_missing_part_is_named_without_the_systems_words(whole, tmp_path, capsys) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "run"))
    part = min((folder / "parts" / "reveals").iterdir())
    part.unlink()
    assert main(["analyze", str(folder)]) == 1
    wanted = f"{folder}: the file {part.name} is missing; run: orderlens runs verify {folder}"
    assert capsys.readouterr().err == f"orderlens: {wanted}\n"


def test_runs_without_common_traces_are_compared_without_nan(whole, tmp_path, capsys) -> None:
    samples = [ol.Sample("other", "once upon", "a time there was")]
    ol.score(ol.load_model("hmm"), samples, orders=["forced-ar"], out=tmp_path / "other")
    assert main(["runs", "diff", str(whole), str(tmp_path / "other")]) == 1
    assert "nan" not in capsys.readouterr().out


def test_tables_figures_and_reports_carry_the_note(stopped, tmp_path) -> None:
    assert any(NOTE in note for note in ol.Study.open(stopped).table("fixed-sequence").notes)
    assert main(["report", str(stopped), "--out", str(tmp_path / "r.html"), "--bootstrap", "20"]) == 0
    assert NOTE in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("verb", ["analyze", "figures", "report"])
def test_an_emptied_run_is_refused_with_the_reason(stopped, tmp_path, capsys, verb: str) -> None:
    for record in (stopped / "units").iterdir():
        record.unlink()
    words = [word.replace("RUN", str(stopped)) for word in READERS[verb]]
    assert main([word.replace("OUT", str(tmp_path / "x")) for word in words]) == 2
    assert "is not complete (0 of 2 units stored)" in capsys.readouterr().err


def test_a_run_without_its_end_says_so(stopped) -> None:
    (stopped / "complete.json").unlink()
    assert "is not complete (1 unit stored)" in ol.open_run(stopped).incomplete[0]
    with pytest.raises(RunError, match="has no traces"):
        ol.Study.open(ol.open_run(stopped).only([]))

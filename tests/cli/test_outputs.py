"""What verbs write: never inside a run, and no file that exists is replaced unless the user says so."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

import orderlens as ol
from orderlens.cli.main import main
from orderlens.errors import RunError, UserInputError
from orderlens.figures.catalogue import draw_figures
from orderlens.figures.theory import FIGURES

SAMPLES = [ol.Sample(str(i), [1, 2], [3, 4, 5, 6 + i]) for i in range(3)]
WRITERS = {
    "report": "report RUN --samples 0 --bootstrap 0 --out",
    "analyze": "analyze RUN --table fixed-sequence --bootstrap 0 --out",
    "film": "runs show RUN --sample 0 --film",
    "export": "runs export RUN --format csv --out",
}
FOLDERS = {
    "figures": "figures RUN --figure lorenz --format svg --out",
    "downstream": "downstream RUN --out",
    "curve": "theory curve --points 3 --figures",
    "train": "train --data texts.txt --out",
    "replicate": "replicate --model hmm --preset demo --out",
    "frontier": "frontier --model hmm --out",
    "demo": "demo --out",
    "lm-eval": "lm-eval --tasks none --out",
}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ol.score("hmm:block=8", SAMPLES, ["forced-ar", "random"], out=tmp_path / "run")
    return tmp_path / "run"


def orderlens(command, *more):
    return main([word.replace("RUN", "run") for word in command.split()] + [str(item) for item in more])


def content(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def places(run, name):
    """Ways to say the same place inside the run."""
    (run.parent / "link").symlink_to(run)
    (run.parent / "file-link").symlink_to(run / name)
    (run.parent / "elsewhere").mkdir()
    return [
        run / name,
        Path("run") / name,
        Path("elsewhere/../run") / name,
        Path("link") / name,
        Path("file-link"),
        f"./run//{name}",
        run / "claims" / ".." / name,
    ]


@pytest.mark.parametrize("verb", WRITERS)
def test_no_file_is_written_inside_a_run(run, capsys, verb):
    before = content(run)
    commands = [(place, "--overwrite") for place in places(run, "spec.json")]
    for place, *more in [*commands, (run / "spec.json",), (run / "new.html",)]:
        assert orderlens(WRITERS[verb], place, *more) == 2, place
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert f"{Path(place)} is inside the run {run}" in message
        assert "choose a place outside it" in message
    assert content(run) == before


@pytest.mark.parametrize("verb", FOLDERS)
def test_no_folder_is_filled_inside_a_run(run, capsys, verb):
    (run.parent / "texts.txt").write_text("a few words " * 50, encoding="utf-8")
    before = content(run)
    for inner in ("", "parts/reveals", "new/folder"):
        assert orderlens(FOLDERS[verb], run / inner) == 2
        assert "is inside the run" in capsys.readouterr().err
    assert content(run) == before


def test_python_refuses_to_write_inside_a_run_too(run):
    before = content(run)
    with pytest.raises(UserInputError, match="is inside the run"):
        draw_figures(ol.Study.open(run), run / "figures", ["lorenz"], ["svg"])
    with pytest.raises(RunError, match=r"is inside the run .*; choose a folder outside it"):
        ol.score("hmm:block=8", SAMPLES, ["forced-ar"], out=run / "parts" / "inner")
    assert content(run) == before


def test_a_run_inside_a_run_is_refused_on_an_object_store_too():
    place = "memory:///bucket/outer-of-outputs"
    ol.score("hmm:block=8", SAMPLES, ["forced-ar"], out=place)
    with pytest.raises(RunError, match=f"is inside the run {place}"):
        ol.score("hmm:block=8", SAMPLES, ["forced-ar"], out=f"{place}/parts/inner")
    assert not any("inner" in name for name in fsspec.filesystem("memory").find("/bucket/outer-of-outputs"))


@pytest.mark.parametrize("verb", WRITERS)
def test_a_file_that_exists_is_replaced_only_when_told(run, capsys, verb):
    file = run.parent / "mine.txt"
    file.write_text("my notes", encoding="utf-8")
    assert orderlens(WRITERS[verb], file) == 2
    assert capsys.readouterr().err == (
        f"orderlens: {file} exists; choose another place, or replace it with --overwrite\n"
    )
    assert file.read_text(encoding="utf-8") == "my notes"
    assert orderlens(WRITERS[verb], file, "--overwrite") == 0
    assert file.read_text(encoding="utf-8") != "my notes"


def test_the_default_file_counts_as_well(run, capsys):
    Path("report.html").write_text("mine", encoding="utf-8")
    assert orderlens("report RUN --samples 0 --bootstrap 0") == 2
    assert "report.html exists" in capsys.readouterr().err


def test_figures_join_others_in_a_folder_and_replace_none(run, capsys):
    command = "figures RUN --format svg --out pictures --figure"
    assert orderlens(command, "lorenz") == 0
    assert orderlens(command, "fixed-sequence") == 0
    assert orderlens(command, "lorenz") == 2
    assert "pictures/lorenz.json exists" in capsys.readouterr().err
    assert orderlens(command, "lorenz", "--overwrite") == 0
    Path("pictures/lorenz-hmm.svg").write_text("another model's", encoding="utf-8")
    Path("pictures/lorenz.json").unlink()
    Path("pictures/lorenz.svg").unlink()
    assert orderlens(command, "lorenz") == 2


def test_the_theory_draws_its_figures_once(run, capsys):
    Path("pictures").mkdir()
    Path("pictures/notes.md").write_text("mine", encoding="utf-8")
    files = [Path("pictures") / f"{name}.svg" for name in FIGURES]
    for file in files:
        file.write_text("mine", encoding="utf-8")
        assert orderlens("theory curve --points 3 --figures pictures") == 2
        assert f"{file} exists; choose another place" in capsys.readouterr().err
        file.unlink()


def test_results_go_into_an_empty_folder(run, capsys):
    Path("results").mkdir()
    Path("results/notes.md").write_text("mine", encoding="utf-8")
    assert orderlens("downstream RUN --out results") == 2
    assert "results/notes.md exists" in capsys.readouterr().err


def test_a_page_of_results_is_replaced_only_when_told(run, capsys):
    Path("page.md").write_text("mine", encoding="utf-8")
    assert orderlens("replicate --model hmm --preset demo --out study --docs page.md") == 2
    assert "page.md exists" in capsys.readouterr().err
    assert not Path("study").exists()


def test_standard_output_is_no_file_that_exists(run):
    assert orderlens("analyze RUN --table fixed-sequence --bootstrap 0 --format json --out /dev/stdout") == 0


def test_a_folder_with_a_spec_of_its_own_is_no_run(run):
    Path("project").mkdir()
    Path("project/spec.json").write_text('{"openapi": "3.0"}', encoding="utf-8")
    assert orderlens("report RUN --samples 0 --bootstrap 0 --out project/report.html") == 0
    assert Path("project/report.html").stat().st_size > 0

"""The recipes run: windows, a few steps, an export that loads, the probe of letters, the curves."""

from __future__ import annotations

import json
import lzma
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from orderlens.models.small.folder import bundled_folder, read_folder
from orderlens.texts.sources import sample_rows

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("wikipedia-en", "wikinews-en", "gutenberg", "c4-en")


def recipe(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a recipe in a separate process."""
    command = [sys.executable, str(ROOT / "recipes" / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))


@pytest.fixture
def recipe_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run a recipe as a script in this process, which has loaded torch already."""

    def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "recipes" / script), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        monkeypatch.syspath_prepend(ROOT / "recipes")
        monkeypatch.setattr("torch.set_float32_matmul_precision", lambda _: None)
        code, said = 0, ""
        try:
            runpy.run_path(command[0], run_name="__main__")
        except SystemExit as stop:
            code, said = (stop.code or 0, "") if isinstance(stop.code, int | None) else (1, f"{stop.code}\n")
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(command, code, out, err + said)

    return run


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the windows of a few passages, passed off as the four sources, and of task documents."""
    folder = tmp_path_factory.mktemp("recipe")
    (folder / "corpus").mkdir()
    with lzma.open(folder / "corpus" / "text-0.jsonl.xz", "wt", encoding="utf-8") as file:
        for index, row in enumerate(list(sample_rows("passages"))[:24]):
            file.write(json.dumps({"source": SOURCES[index % 4], "text": row["text"]}) + "\n")
    done = recipe(
        "train_bundled.py", "prepare", "--corpus", folder / "corpus", "--work", folder / "w",
        "--task-documents", 12, "--processes", 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "w"


@pytest.mark.parametrize("which", ["toy", "toy-ar"])
def test_a_few_steps_export_a_model_that_loads(which: str, work: Path, recipe_here) -> None:
    common = ("--which", which, "--work", work, "--device", "cpu")
    done = recipe_here(
        "train_bundled.py", "train", *common, "--steps", 2, "--batch", 8, "--attention", "dense"
    )
    assert done.returncode == 0, done.stderr
    assert "done at step 2" in done.stdout
    done = recipe_here("train_bundled.py", "export", *common, "--out", work / "out", "--limit", 2)
    assert done.returncode == 0, done.stderr
    loaded = read_folder(work / "out" / which)
    assert loaded.config.attention == ("causal" if which == "toy-ar" else "block-causal")
    figures = json.loads((work / "out" / which / "figures.json").read_text(encoding="utf-8"))
    assert figures["step"] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "either --max-minutes or --steps"),
        (("--steps", 2, "--batch", 3), "raise the batch size"),
        (("--steps", 2, "--which", "huge"), "no model 'huge'; choose one of tiny"),
        (("--steps", 2, "--work", "nowhere"), "nowhere holds no windows; run 'prepare' first"),
    ],
)
def test_bad_input_is_one_clear_line(
    arguments: tuple[object, ...], said: str, work: Path, recipe_here
) -> None:
    done = recipe_here(
        "train_bundled.py", "train", "--which", "toy", "--work", work, "--device", "cpu", *arguments
    )
    assert done.returncode != 0
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_probe_refuses_an_autoregressive_model(recipe_here) -> None:
    done = recipe_here("probe_binding.py", "--model", bundled_folder("tiny-ar"))
    assert done.returncode != 0
    assert "autoregressive" in done.stderr


def test_a_letter_directly_behind_a_name_is_found_again_and_one_before_it_is_not(recipe_here) -> None:
    done = recipe_here("probe_binding.py", "--trials", 6)
    assert done.returncode == 0, done.stderr
    right = {row["format"]: row["share_right"] for row in map(json.loads, done.stdout.splitlines())}
    assert right["Anna K"] > 0.9
    assert right["K. Anna"] < 0.6


def test_curves_of_all_three_models_are_drawn(tmp_path: Path, recipe_here) -> None:
    pytest.importorskip("matplotlib")
    done = recipe_here("draw_curves.py", tmp_path / "curves.svg")
    assert done.returncode == 0, done.stderr
    drawing = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert all(f"{name}, training mixture" in drawing for name in ("tiny", "tiny-ar", "twin"))

"""``orderlens train`` end to end on a small text, on the CPU."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from orderlens.cli.main import main
from orderlens.models.small.folder import read_folder
from orderlens.tasks.bundled import training_documents

SMALL = [
    "--layers",
    "2",
    "--width",
    "32",
    "--heads",
    "2",
    "--window",
    "64",
    "--batch-size",
    "8",
    "--vocab-size",
    "400",
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "some.jsonl"
    stream = training_documents("arith", 0)
    path.write_text("".join(json.dumps({"text": next(stream)}) + "\n" for _ in range(300)))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["train", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_trains_resumes_and_writes_a_model_folder(text: Path, tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "model")
    code, printed, _ = run(capsys, "--data", str(text), "--out", out, "--steps", "40", *SMALL, "--json")
    summary = json.loads(printed)
    assert code == 0
    assert summary["steps"] == 40
    assert set(summary["heldout_nats_per_token"]) == {"forced-ar", "reverse-ar", "random"}
    lines = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.5
    loaded = read_folder(tmp_path / "model")
    assert loaded.config.attention == "block-causal"
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("Mia has 5 eggs.")) == "Mia has 5 eggs."
    code, printed, _ = run(
        capsys, "--data", str(text), "--out", out, "--steps", "45", *SMALL, "--resume", "--json"
    )
    assert (code, json.loads(printed)["steps"]) == (0, 45)
    code, _, error = run(capsys, "--data", str(text), "--out", out, "--steps", "5", *SMALL)
    assert code == 2
    assert "add --resume" in error


def test_an_autoregressive_model_by_one_option(text: Path, tmp_path: Path, capsys) -> None:
    arguments = ["--data", str(text), "--out", str(tmp_path / "ar"), "--steps", "3", "--attention", "causal"]
    code, printed, _ = run(capsys, *arguments, *SMALL)
    assert code == 0
    assert "held-out log P/n: forced-ar" in printed
    assert read_folder(tmp_path / "ar").config.attention == "causal"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "3", "--max-minutes", "1"], "either in steps or in minutes"),
        (["--steps", "0"], "must be positive"),
        (["--width", "32"], "does not split into 3 heads"),
        (["--window", "100"], "not a multiple of the block size"),
        (["--vocab-size", "10"], "allowed are 300 to 65536"),
        (["--device", "toaster"], "device 'toaster' is unknown"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(
    text: Path, tmp_path: Path, capsys, arguments, message: str
) -> None:
    code, _, error = run(capsys, "--data", str(text), "--out", str(tmp_path / "x"), *arguments)
    assert code == 2
    assert message in " ".join(error.split())

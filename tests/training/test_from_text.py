"""``orderlens train`` end to end on a small text, on the CPU."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from orderlens.cli.main import main
from orderlens.errors import UserInputError
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.models.small.folder import read_folder
from orderlens.tasks.bundled import frozen_items
from orderlens.training.from_text import TextTraining, prepare

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
    texts = (f"{item['prompt']} {item['solution']}" for item in frozen_items("arith")[:300])
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
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
        (["--width", "32"], "cannot be split into 3 heads"),
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


def foreign_tokenizer(path: Path) -> str:
    """A byte-level tokenizer whose ids 0 and 1 are the letters ! and "."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(path))
    return str(path)


def test_a_tokenizer_whose_first_ids_spell_text_is_refused(text: Path, tmp_path: Path, capsys) -> None:
    """Trained on, it would take every ! for a mask."""
    foreign = foreign_tokenizer(tmp_path / "foreign.json")
    code, _, error = run(capsys, "--data", str(text), "--out", str(tmp_path / "x"), "--tokenizer", foreign)
    assert code == 2
    assert "ids 0 and 1 must be <|mask|> and <|eos|>" in error
    assert "omit --tokenizer to train one" in error
    code, _, error = run(capsys, "--data", str(text), "--out", str(tmp_path / "y"), "--tokenizer", "no.json")
    assert code == 2
    assert "no.json is missing" in error


def test_a_model_trained_here_lends_its_tokenizer(text: Path, tmp_path: Path, capsys) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    few = ["--data", str(text), "--steps", "1", *SMALL, "--json"]
    assert run(capsys, *few, "--out", str(first))[0] == 0
    assert run(capsys, *few, "--out", str(second), "--tokenizer", str(first / "tokenizer.json"))[0] == 0
    one, other = (read_folder(folder).tokenizer for folder in (first, second))
    assert other.encode("Mia has 5 eggs.") == one.encode("Mia has 5 eggs.")
    assert other.vocab_size == one.vocab_size


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers 0 is out of range; allowed are 1 to 256"),
        ({"batch_size": 70_000}, "batch size 70000 is out of range; allowed are 1 to 65,536"),
        ({"width": 97}, "width 97 cannot be split into 3 heads of even width"),
        ({"width": 9}, "width 9 cannot be split into 3 heads of even width"),
        ({"window": 48}, "window 48 is not a multiple of the block size 32"),
        ({"vocab_size": 299}, "vocabulary size 299 is out of range; allowed are 300 to 65536"),
        ({"vocab_size": 65_537}, "allowed are 300 to 65536"),
    ],
)
def test_shapes_that_cannot_be(changes: dict[str, int], message: str) -> None:
    with pytest.raises(UserInputError, match=message):
        TextTraining(steps=1, **changes)


@pytest.mark.parametrize(("width", "ffn"), [(12, 32), (96, 256), (98, 288), (384, 1024)])
def test_the_inner_width_is_eight_thirds_rounded_up_to_32(width: int, ffn: int) -> None:
    config = TextTraining(steps=1, width=width, heads=1).config(500)
    assert (config.ffn_width, config.vocab_size, config.width) == (ffn, 500, width)


def test_every_twentieth_document_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    words = [f"document {place} " + "word " * 30 for place in range(45)]
    path.write_text("".join(json.dumps({"text": word}) + "\n" for word in words))
    options = TextTraining(steps=1, window=64, tokenizer="tiny")
    prepare([path], tmp_path / "out", options)
    tokenizer = FastTokenizer.from_file(tmp_path / "out" / "tokenizer.json")
    heldout, trained = (
        tokenizer.decode(np.load(tmp_path / "out" / name).flatten().tolist(), skip_special=True)
        for name in ("heldout.npy", "windows/text/0.npy")
    )
    assert [place for place in range(45) if f"document {place} " in heldout] == [19, 39]
    assert [place for place in range(45) if f"document {place} " in trained] == [
        place for place in range(45) if place not in (19, 39)
    ]
    assert json.loads((tmp_path / "out" / "corpus.json").read_text())["n_documents"] == 45


def test_of_few_documents_the_last_twentieth_of_each_is_held_out(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("a" * 190 + "b" * 10)
    prepare([path], tmp_path / "out", TextTraining(steps=1, window=64, tokenizer="tiny"))
    tokenizer = FastTokenizer.from_file(tmp_path / "out" / "tokenizer.json")
    heldout = tokenizer.decode(
        np.load(tmp_path / "out" / "heldout.npy").flatten().tolist(), skip_special=True
    )
    assert heldout.strip() == "b" * 10


def test_files_without_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "blank.jsonl"
    path.write_text('{"text": " "}\n')
    with pytest.raises(UserInputError, match=r"no text in .*blank\.jsonl"):
        prepare([path], tmp_path / "out", TextTraining(steps=1))
    assert not (tmp_path / "out").exists()

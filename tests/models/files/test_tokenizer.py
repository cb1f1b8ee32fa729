from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

tokenizers = pytest.importorskip("tokenizers")

from orderlens.errors import ModelLoadError  # noqa: E402
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A byte-level tokenizer that would add a BOS if asked to, with two added tokens."""
    alphabet = {letter: i for i, letter in enumerate(tokenizers.pre_tokenizers.ByteLevel.alphabet())}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(["<s>", "<mask>"])
    made.add_tokens(["<turn>"])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    made.save(str(tmp_path / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "mask_token": {"content": "<mask>"},
        "added_tokens_decoder": {"258": {"content": "<turn>", "special": True}},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize("text", ["plain", "naïve — 日本語", "", "<mask><turn>\n\t "])
def test_text_survives_and_nothing_is_added(folder: Path, text: str) -> None:
    tokenizer = FastTokenizer.from_folder(folder)
    ids = tokenizer.encode(text)
    assert 256 not in ids
    assert tokenizer.decode(ids) == text


def test_special_tokens(folder: Path) -> None:
    tokenizer = FastTokenizer.from_folder(folder)
    assert tokenizer.special_ids == {256, 257, 258}  # flagged in either file
    assert tokenizer.named_id("mask_token") == 257
    assert tokenizer.named_id("eos_token") is None
    assert tokenizer.id_of("<turn>") == 258
    assert tokenizer.id_of("<nothing>") is None
    assert tokenizer.largest_id == 258
    assert tokenizer.decode([*tokenizer.encode("a"), 257], skip_special=True) == "a"


def test_missing_and_broken_files(tmp_path: Path, folder: Path) -> None:
    assert has_tokenizer(folder)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert not has_tokenizer(empty)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is missing"):
        FastTokenizer.from_folder(empty)
    (empty / "tokenizer.json").write_text("{broken")
    with pytest.raises(ModelLoadError, match="cannot be read") as caught:
        FastTokenizer.from_folder(empty)
    assert "\n" not in str(caught.value)
    (folder / "tokenizer_config.json").write_text("[1")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json"):
        FastTokenizer.from_folder(folder)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("The wa", "ter is"),
        ("", "water"),
        ("The ", ""),
        ("The", " water"),
        ("\u00e9t\u00e9 \u65e5", "\u672c \u8a9e"),
        ("a", "\u65e5"),
    ],
)
def test_pairs_are_one_text_cut_at_the_first_token_of_the_continuation(prompt: str, text: str) -> None:
    tokenizer = FastTokenizer.from_file(files("orderlens") / "models/data/tiny-ar/tokenizer.json")
    ((ids, first),) = tokenizer.encode_pairs([(prompt, text)])
    assert ids == tokenizer.encode(prompt + text)
    ends = [end for _, end in tokenizer._tokenizer.encode(prompt + text, add_special_tokens=False).offsets]
    assert first == sum(end <= len(prompt) for end in ends)


def test_a_boundary_that_no_token_holds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orderlens.models.files.tokenizer._TEXTS_PER_CALL", 2)
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    found = FastTokenizer(words).encode_pairs([("a", " b c"), ("a ", "b"), ("a b", "")])
    assert found == [([0, 1, 2], 1), ([0, 1], 1), ([0, 1], 2)]


def test_unknown_words_are_counted() -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = FastTokenizer(words)
    for text, count in (("a b a c", 2), ("a [UNK] b", 1), ("a a", 0)):
        assert tokenizer.count_unknown(text, tokenizer.encode(text)) == count

"""Byte-level BPE from ``vocab.json`` and ``merges.txt``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")

from orderlens.errors import ModelLoadError  # noqa: E402
from orderlens.models.files.tokenizer import FastTokenizer, has_tokenizer  # noqa: E402

MERGES = [("1", "2"), ("a", "b"), ("Ġ", "ab"), ("!", "Ċ")]  # so declared tokens begin at 260


def write(folder: Path, **settings: Any) -> Path:
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*letters, *(a + b for a, b in MERGES)])}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in MERGES))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def pieces(folder: Path, text: str) -> list[str]:
    tokenizer = FastTokenizer.from_folder(folder)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    return [tokenizer.decode([index]) for index in ids]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("DreamTokenizer", "12 ab", ["1", "2", " ab"]),  # every digit is a separate word
        ("Qwen2Tokenizer", "12 ab", ["1", "2", " ab"]),
        ("GPT2Tokenizer", "12 ab", ["12", " ab"]),
        ("DreamTokenizer", "!\nab", ["!\n", "ab"]),  # a line's end belongs to the sign before it
        ("GPT2Tokenizer", "!\nab", ["!", "\n", "ab"]),
    ],
)
def test_words_are_cut_as_the_class_does(tmp_path: Path, kind: str, text: str, expected: list[str]) -> None:
    folder = write(tmp_path, tokenizer_class=kind)
    assert has_tokenizer(folder)
    assert pieces(folder, text) == expected


def test_declared_tokens_follow_the_vocabulary(tmp_path: Path) -> None:
    declared = {
        "261": {"content": "<|mask|>", "special": True},
        "260": {"content": "<|end|>", "special": False},
    }
    folder = write(
        tmp_path, tokenizer_class="DreamTokenizer", added_tokens_decoder=declared, mask_token="<|mask|>"
    )
    tokenizer = FastTokenizer.from_folder(folder)
    assert tokenizer.encode("ab<|end|><|mask|>")[1:] == [260, 261]
    assert tokenizer.named_id("mask_token") == 261
    assert tokenizer.special_ids == {261}


def test_composed_letters(tmp_path: Path) -> None:
    tokenizer = FastTokenizer.from_folder(write(tmp_path, tokenizer_class="DreamTokenizer"))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "\u00e9"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"tokenizer_class": "LlamaTokenizer"},
            "its tokenizer_class LlamaTokenizer cannot be read without it; supported classes",
        ),
        ({}, "tokenizer_class None"),
        (
            {"tokenizer_class": "DreamTokenizer", "added_tokens_decoder": {"300": {"content": "<x>"}}},
            "gives '<x>' the id 300, but vocab.json implies 260",
        ),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelLoadError, match=words):
        FastTokenizer.from_folder(write(tmp_path, **settings))


def test_broken_files(tmp_path: Path) -> None:
    folder = write(tmp_path, tokenizer_class="DreamTokenizer")
    (folder / "merges.txt").write_text("#version: 0.2\nq z w\n")
    with pytest.raises(ModelLoadError, match=r"vocab\.json cannot be read"):
        FastTokenizer.from_folder(folder)

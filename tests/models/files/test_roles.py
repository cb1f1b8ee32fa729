"""Which ids mean what: who says so first, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

tokenizers = pytest.importorskip("tokenizers")

from orderlens.errors import ModelLoadError, UserInputError  # noqa: E402
from orderlens.models.files.roles import IdsOnlyTokenizer, PublishedTokens, TokenRoles, find_roles  # noqa: E402
from orderlens.models.files.tokenizer import FastTokenizer  # noqa: E402

PUBLISHED = PublishedTokens(mask_id=9, mask_tokens=("[M]", "<mask>"), eos_id=8, turn_ends=("<end>",))
WORDS = {"a": 0, "b": 1, "<s>": 2, "</s>": 3, "<mask>": 4, "<end>": 5, "[M]": 6}


@pytest.fixture
def made(tmp_path: Path):
    """Return a function that writes the files and finds the roles."""

    def make(
        config: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        settings: dict[str, Any] | None = None,
        *,
        words: dict[str, int] | None = WORDS,
        vocab_size: int = 12,
    ) -> TokenRoles:
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        tokenizer = None
        if words is not None:
            plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="a"))
            plain.add_special_tokens([name for name in ("<s>",) if name in words])
            plain.save(str(tmp_path / "tokenizer.json"))
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings or {}))
            tokenizer = FastTokenizer.from_folder(tmp_path)
        return find_roles(tmp_path, config or {}, vocab_size, tokenizer, PUBLISHED)

    return make


@pytest.mark.parametrize(
    ("files", "mask"),
    [
        ({"config": {"mask_token_id": 1, "mask_id": 2}}, 1),
        ({"config": {"mask_id": 2}}, 2),
        ({"config": {"mask_id": 2}, "generation": {"mask_token_id": 5}}, 2),
        ({"generation": {"mask_id": 5}}, 5),
        ({"config": {"mask_token_id": 0}}, 0),
        ({"settings": {"mask_token": "<mask>"}}, 4),
        ({"settings": {"mask_token": {"content": "b"}}}, 1),
        ({"settings": {"mask_token": "nobody"}}, 6),
        ({}, 6),
        ({"words": {"a": 0, "<mask>": 1}}, 1),
        ({"words": {"a": 0}}, 9),
        ({"words": None}, 9),
    ],
)
def test_who_names_the_mask(made, files: dict[str, Any], mask: int) -> None:
    assert made(**files).mask_id == mask


@pytest.mark.parametrize(
    ("files", "eos"),
    [
        ({"config": {"eos_token_id": 3}}, {3}),
        ({"config": {"eos_token_id": [3, 5]}}, {3, 5}),
        ({"config": {"eos_token_id": 3}, "generation": {"eos_token_id": [3, 1]}}, {1, 3}),
        ({"config": {"eos_token_id": 3}, "settings": {"eos_token": "b"}}, {3}),
        ({"settings": {"eos_token": "</s>"}}, {3}),
        ({}, {8}),
        ({"vocab_size": 8, "config": {"mask_id": 7}}, set()),
        ({"words": None}, {8}),
    ],
)
def test_who_says_what_ends_a_text(made, files: dict[str, Any], eos: set[int]) -> None:
    assert made(**files).eos_ids == eos


def test_special_ids_are_neither_eos_nor_mask(made) -> None:
    roles = made({"mask_id": 6, "eos_token_id": 3})
    assert roles.special_ids == {2, 5}
    assert made({"mask_id": 2, "eos_token_id": 5}).special_ids == set()
    assert made(words=None).special_ids == set()


def test_rows_behind_the_tokenizer_are_padding(made) -> None:
    assert made(vocab_size=12).valid_vocab == 7
    assert made(words=None, vocab_size=12).valid_vocab == 12
    with pytest.raises(
        ModelLoadError, match=r"ids up to 6, but the model's vocabulary has 5.*another checkpoint"
    ):
        made(vocab_size=5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"mask_token_id": 12},
            r"mask id 12 is outside the vocabulary of 12; config.json can name it \(mask_t",
        ),
        ({"mask_token_id": -1}, "mask id -1 is outside"),
        ({"mask_token_id": [6, 7]}, r"mask_token_id=\[6, 7\] must be one token id"),
        ({"eos_token_id": [3, 6]}, "id 6 is both the mask and an EOS"),
        ({"eos_token_id": [3, 40]}, r"EOS id 40 is outside the vocabulary of 12.*\(eos_token_id\)"),
        ({"mask_token_id": "6"}, r"mask_token_id='6' must be a token id \(a whole number\)"),
        ({"mask_token_id": True}, "mask_token_id=True must be a token id"),
        ({"eos_token_id": [3, 1.5]}, "eos_token_id=1.5 must be a token id"),
    ],
)
def test_ids_that_cannot_be(made, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        made(config)


def test_without_a_tokenizer_ids_are_spelled_and_text_is_refused() -> None:
    assert IdsOnlyTokenizer().decode([3, 14]) == "3 14"
    with pytest.raises(UserInputError, match=r"no tokenizer, so the text 'hello' cannot be encoded; give"):
        IdsOnlyTokenizer().encode("hello")


def test_an_empty_list_names_nothing(made) -> None:
    assert made({"mask_token_id": [], "eos_token_id": []}).mask_id == 6
    assert made({"mask_token_id": [], "eos_token_id": []}).eos_ids == {8}

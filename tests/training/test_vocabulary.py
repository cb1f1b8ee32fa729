"""A tokenizer of one's own: special ids first, digits apart, every text comes back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers")

from orderlens.training.data import EOS_ID, MASK_ID, SPECIAL_TOKENS, train_tokenizer

TEXTS = [
    "The year 2023 had 365 days, and 2024 had 366.",
    "don't we'll they've 12 12 12 12 1234 1234 1234",
] * 20


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, 280)


def test_special_tokens_come_first_and_the_size_is_a_limit(tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert (tokenizer.token_to_id("<|mask|>"), tokenizer.token_to_id("<|eos|>")) == (MASK_ID, EOS_ID)
    assert tokenizer.get_vocab_size() == 280
    assert train_tokenizer(["ab"], 1000).get_vocab_size() < 300


@pytest.mark.parametrize(
    ("text", "pieces"),
    [("1234", 4), (" 1234", 4), ("12 12", 4), ("x12", 3), ("3.14", 4)],
)
def test_digits_are_never_merged(tokenizer, text: str, pieces: int) -> None:
    assert len(tokenizer.encode(text).ids) == pieces


def test_frequent_words_become_one_token_with_their_space(tokenizer) -> None:
    assert tokenizer.encode(" had").tokens == ["Ġhad"]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=40))
def test_every_text_comes_back(tokenizer, text: str) -> None:
    if not any(token in text for token in SPECIAL_TOKENS):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text

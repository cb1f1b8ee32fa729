"""Train a byte-level BPE tokenizer with the ``tokenizers`` library.

Ids 0 and 1 are always the mask and the end of text. Digits are never merged, so that numbers are spelt one
digit at a time; a digit may carry the space before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MASK_TOKEN, EOS_TOKEN = "<|mask|>", "<|eos|>"
SPECIAL_TOKENS = (MASK_TOKEN, EOS_TOKEN, "<|pad|>", "<|reserved|>")
MASK_ID, EOS_ID = 0, 1

WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What a merge may not cross: words with their space, single digits, runs of punctuation or white space."""


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Any:
    """Return a ``tokenizers.Tokenizer`` with at most ``vocab_size`` ids, the 256 bytes among them."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer

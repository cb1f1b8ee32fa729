"""A tokenizer with one token per character for small checkpoints. Needs tokenizers when called."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

LETTERS = (*(chr(code) for code in range(32, 127)), "\n", "\t")


def write_letters(
    folder: Path,
    after: Sequence[str] = (),
    before: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    plain: Collection[str] = (),
) -> dict[str, int]:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``; return the ids of the special tokens.

    Args:
        folder: must exist.
        after: special tokens behind the letters, in the order of their ids.
        before: special tokens before the letters, which then start at ``len(before)``.
        settings: contents of ``tokenizer_config.json``, e.g. ``{"mask_token": "[MASK]"}``.
        plain: those of the special tokens that are not marked as special, as some published turn ends are.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab = {token: index for index, token in enumerate((*before, *LETTERS, *after))}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    specials = (*before, *after)
    tokenizer.add_tokens([AddedToken(text, special=text not in plain, normalized=False) for text in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(settings or {})), encoding="utf-8")
    return {token: vocab[token] for token in specials}

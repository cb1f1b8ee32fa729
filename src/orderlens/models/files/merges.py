"""Byte-level BPE from ``vocab.json`` and ``merges.txt``, for folders without ``tokenizer.json``.

Such a folder names the class of its tokenizer in ``tokenizer_config.json``, and with it the way it cuts a
text into words; the classes' own code is not needed. Dream's published checkpoints come like this.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orderlens.errors import MissingPackageError, ModelLoadError, one_line

VOCABULARY, MERGES = "vocab.json", "merges.txt"
GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS: Mapping[str, str] = {
    "GPT2Tokenizer": GPT2_WORDS,
    "Qwen2Tokenizer": QWEN_WORDS,
    "DreamTokenizer": QWEN_WORDS,
}
"""``tokenizer_class`` → the pattern of a word."""
_COMPOSED = ("Qwen2Tokenizer", "DreamTokenizer")
"""Classes that compose accents with their letters (NFC) before anything else."""


def has_merges(folder: Path) -> bool:
    """Return whether the folder holds both files."""
    return (folder / VOCABULARY).is_file() and (folder / MERGES).is_file()


def from_merges(folder: Path, settings: Mapping[str, Any]) -> Any:
    """Build the ``tokenizers.Tokenizer``; ``settings`` is ``tokenizer_config.json``."""
    try:
        from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    except ImportError:
        raise MissingPackageError(
            f"{folder / VOCABULARY} needs the tokenizers package; pip install 'orderlens[torch]'"
        ) from None
    kind = str(settings.get("tokenizer_class"))
    if kind not in WORDS:
        raise ModelLoadError(
            f"{folder} has no tokenizer.json, and tokenizer_config.json calls the tokenizer {kind}; "
            f"readable without it are {', '.join(WORDS)}"
        )
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(folder / VOCABULARY), str(folder / MERGES)))
    except Exception as error:  # noqa: BLE001  the package raises bare Exception for malformed files
        raise ModelLoadError(f"{folder / VOCABULARY} cannot be read: {one_line(error)}") from None
    words = pre_tokenizers.Split(Regex(WORDS[kind]), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    if kind in _COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    _add_declared(tokenizer, settings.get("added_tokens_decoder") or {}, folder)
    return tokenizer


def _add_declared(tokenizer: Any, declared: Mapping[str, Any], folder: Path) -> None:
    """Add the tokens that the settings declare, in the order of their ids, which must leave no gap."""
    from tokenizers import AddedToken

    for index, entry in sorted((int(key), entry) for key, entry in declared.items()):
        text = str(entry["content"])
        tokenizer.add_tokens([AddedToken(text, special=bool(entry.get("special")), normalized=False)])
        if tokenizer.token_to_id(text) != index:
            raise ModelLoadError(
                f"{folder}: tokenizer_config.json gives '{text}' the id {index}; "
                f"after {VOCABULARY} it would be {tokenizer.token_to_id(text)}"
            )

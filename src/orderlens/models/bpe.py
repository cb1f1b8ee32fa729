"""A ``tokenizer.json`` of the ``tokenizers`` library behind our Tokenizer protocol.

Text is only ever text: a special token's name written in it is spelt out in ordinary tokens. Knows nothing
of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from orderlens.errors import MissingPackageError, ModelLoadError


class BpeTokenizer:
    """Byte-level BPE: ``decode(encode(text)) == text`` for every text."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def from_file(cls, path: Path) -> BpeTokenizer:
        """Read a ``tokenizer.json``."""
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingPackageError(
                "this model needs tokenizers; pip install 'orderlens[torch]'"
            ) from error
        if not path.is_file():
            raise ModelLoadError(f"{path}: no tokenizer.json in the model folder")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # tokenizers raises plain Exception
            raise ModelLoadError(f"{path}: not a tokenizers file ({error})") from error

    @property
    def vocab_size(self) -> int:
        """Number of ids, special ones included."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` without special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_with_ends(self, text: str) -> tuple[list[int], list[int]]:
        """Return the ids of ``text`` and, for each, the index of the character after its last one."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return list(found.ids), [end for _, end in found.offsets]

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of several texts, in parallel where the library allows."""
        return [
            list(item.ids) for item in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; special tokens appear by name, broken UTF-8 as U+FFFD."""
        return str(self._tokenizer.decode([int(item) for item in ids], skip_special_tokens=False))

    def byte_count(self, ids: Sequence[int]) -> int:
        """Return how many bytes of text ``ids`` stand for (a byte-level token has one character per byte)."""
        return sum(len(self._tokenizer.id_to_token(int(item))) for item in ids)

    def token_id(self, token: str) -> int | None:
        """Return the id of a token's name, or None."""
        found = self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def save(self, path: Path) -> None:
        """Write the ``tokenizer.json``."""
        self._tokenizer.save(str(path))

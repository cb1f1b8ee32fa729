"""``tokenizer.json`` of a checkpoint folder, through the ``tokenizers`` package.

Encoding adds no special tokens: texts are cut into prompt and target afterwards, and an inserted BOS would
shift every position. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orderlens.errors import MissingPackageError, ModelLoadError, one_line

_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "mask_token", "unk_token", "sep_token", "cls_token")


class HFTokenizer:
    """A fast tokenizer and what ``tokenizer_config.json`` says about its special tokens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tokenizer = _load(folder / "tokenizer.json")
        self.settings = _settings(folder / "tokenizer_config.json")
        declared = self.settings.get("added_tokens_decoder") or {}
        flagged = {int(key) for key, entry in declared.items() if entry.get("special")}
        decoder = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(flagged | {index for index, token in decoder.items() if token.special})

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text`` without adding special tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """Return the text of ``ids``."""
        return str(self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=skip_special))

    def id_of(self, token: str) -> int | None:
        """Return the id of one token's exact string, or None."""
        index = self._tokenizer.token_to_id(token)
        return None if index is None else int(index)

    def named_id(self, name: str) -> int | None:
        """Return the id that ``tokenizer_config.json`` gives to ``eos_token``, ``mask_token`` or the like."""
        text = self.named_tokens.get(name)
        return None if text is None else self.id_of(text)

    @property
    def named_tokens(self) -> dict[str, str]:
        """Strings of the declared special tokens, by role."""
        found = {name: _text(self.settings.get(name)) for name in _NAMED_TOKENS}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def largest_id(self) -> int:
        """The largest id any token has."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


def has_tokenizer(folder: Path) -> bool:
    """Return whether the folder holds a fast tokenizer."""
    return (folder / "tokenizer.json").is_file()


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingPackageError(f"{path} needs the tokenizers package; install orderlens[torch]") from None
    if not path.is_file():
        raise ModelLoadError(f"{path} is missing; the checkpoint needs its fast tokenizer file")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the package raises bare Exception for malformed files
        raise ModelLoadError(f"{path} cannot be read: {one_line(error)}") from None


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelLoadError(f"{path} cannot be read as JSON: {one_line(error)}") from None
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    """Return a token's string; older files wrap it in an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None

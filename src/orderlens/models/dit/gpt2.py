"""The tokenizer of checkpoints that ship none: GPT-2's.

Looked for in the checkpoint's folder, then in the folder that ``$ORDERLENS_GPT2`` names, then on the hub, and
only once text has to be encoded or decoded: token ids need no tokenizer. Knows nothing of networks.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.files.hub import resolve_snapshot
from orderlens.models.files.tokenizer import SETTINGS, TOKENIZER, FastTokenizer, has_tokenizer

VARIABLE = "ORDERLENS_GPT2"
HUB = "hf:openai-community/gpt2"
END_OF_TEXT = "<|endoftext|>"


class Gpt2Tokenizer:
    """GPT-2's tokenizer, found when it is first needed."""

    def __init__(self, vocab_size: int) -> None:
        """Promise a tokenizer whose ids are below ``vocab_size``."""
        self._vocab_size = vocab_size
        self._found: FastTokenizer | None = None
        self._missing: UserInputError | None = None

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; a missing tokenizer is an error that says where to put one."""
        return self._get().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``; ids spelt out where the tokenizer cannot be had."""
        try:
            return self._get().decode(ids)
        except UserInputError:
            return " ".join(str(int(index)) for index in ids)

    def _get(self) -> FastTokenizer:
        if self._missing is not None:
            raise self._missing
        if self._found is None:
            try:
                self._found = find_gpt2(self._vocab_size)
            except UserInputError as error:
                self._missing = error
                raise
        return self._found


def find_gpt2(vocab_size: int) -> FastTokenizer:
    """Return GPT-2's tokenizer from the named folder or the hub.

    Raises:
        ModelLoadError: there is none, or it has more ids than the model.
    """
    named = os.environ.get(VARIABLE)
    if named is not None and not has_tokenizer(Path(named)):
        raise ModelLoadError(f"${VARIABLE} is '{named}', which holds no {TOKENIZER}")
    folder = Path(named) if named is not None else _from_hub()
    return fitting(FastTokenizer.from_folder(folder), vocab_size, folder)


def fitting(tokenizer: FastTokenizer, vocab_size: int, folder: Path) -> FastTokenizer:
    """Return the tokenizer, refusing one whose ids the model does not have."""
    if tokenizer.largest_id >= vocab_size:
        raise ModelLoadError(
            f"{folder}: the tokenizer knows ids up to {tokenizer.largest_id}, but the model's vocabulary has "
            f"{vocab_size}; it belongs to another checkpoint"
        )
    return tokenizer


def _from_hub() -> Path:
    try:
        return resolve_snapshot(HUB, patterns=(TOKENIZER, SETTINGS))
    except UserInputError as error:
        raise ModelLoadError(
            f"this checkpoint ships no tokenizer and GPT-2's cannot be had ({error}); put GPT-2's "
            f"{TOKENIZER} into its folder, or name a folder that holds it in ${VARIABLE}"
        ) from None

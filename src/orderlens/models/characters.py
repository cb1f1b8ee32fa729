"""The character tokenizer of the ``hmm`` control: lower-case letters, digits and common punctuation."""

from __future__ import annotations

from collections.abc import Sequence

ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 .,;:!?'\"-()\n"
UNKNOWN = "?"


class CharacterTokenizer:
    """One id per character; text is lower-cased and unknown characters become ``?``.

    The ids after the characters are EOS (decoded as nothing) and the mask (decoded as ``_``).
    """

    def __init__(self, n_characters: int = len(ALPHABET)) -> None:
        self.characters = ALPHABET[:n_characters]
        self.eos_id = len(self.characters)
        self.mask_id = self.eos_id + 1
        self._ids = {character: index for index, character in enumerate(self.characters)}

    def encode(self, text: str) -> list[int]:
        """Return one id per character of ``text``."""
        unknown = self._ids.get(UNKNOWN, 0)
        return [self._ids.get(character, unknown) for character in text.lower()]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``."""
        extra = {self.eos_id: "", self.mask_id: "_"}
        return "".join(extra[i] if i in extra else self.characters[i] for i in ids)

"""Tokenizers: ``tokenizer.json`` through the package ``tokenizers``, BPE from two files, characters.

Encoding adds no special tokens: texts are split into prompt and target afterwards, and an inserted BOS would
shift every position. A folder without ``tokenizer.json`` (Dream's published checkpoints) names its tokenizer
class in ``tokenizer_config.json``; the class determines how text is split into words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from orderlens.errors import MissingPackageError, ModelLoadError, one_line
from orderlens.models.files.configfile import read_json

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
_NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "mask_token", "unk_token", "sep_token", "cls_token")
_TEXTS_PER_CALL = 1024
"""Texts per tokenizer call with character offsets, which take much more memory than the ids."""


class FastTokenizer:
    """A fast tokenizer and the special tokens that ``tokenizer_config.json`` declares."""

    def __init__(
        self,
        tokenizer: Any,
        settings: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        *,
        text_only: bool = False,
    ) -> None:
        """Wrap a ``tokenizers.Tokenizer``.

        Args:
            tokenizer: the tokenizer.
            settings: the contents of ``tokenizer_config.json``.
            folder: the tokenizer's folder, for other files in it (the chat template).
            text_only: encode the name of a special token in a text as ordinary tokens. Chat models need
                False: their templates write special tokens by name.
        """
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = text_only
        self.settings, self.folder = dict(settings or {}), folder
        flagged = _flagged(self.settings.get("added_tokens_decoder") or {})
        decoder = self._tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(flagged | {index for index, token in decoder.items() if token.special})

    @classmethod
    def from_file(cls, path: Path) -> FastTokenizer:
        """Read a single ``tokenizer.json`` for plain text."""
        return cls(_load(path), text_only=True)

    @classmethod
    def from_folder(cls, folder: Path) -> FastTokenizer:
        """Read the tokenizer of a published checkpoint; text may contain names of special tokens.

        A folder without ``tokenizer.json`` may hold the two files of a byte-level BPE instead.
        """
        path = folder / SETTINGS
        settings = read_json(path) if path.is_file() else {}
        is_one_file = (folder / TOKENIZER).is_file() or not has_merges(folder)
        tokenizer = _load(folder / TOKENIZER) if is_one_file else from_merges(folder, settings)
        return cls(tokenizer, settings, folder)

    def encode(self, text: str) -> list[int]:
        with self._spelling():
            return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def count_unknown(self, text: str, ids: Sequence[int]) -> int:
        name = getattr(self._tokenizer.model, "unk_token", None) or self.named_tokens.get("unk_token")
        unknown = None if name is None else self.id_of(name)
        return 0 if unknown is None else max(0, list(ids).count(unknown) - text.count(str(name)))

    @contextmanager
    def _spelling(self) -> Iterator[None]:
        """Name the tokenizer in the error for a text that it cannot encode."""
        try:
            yield
        except Exception as error:
            where = "the tokenizer" if self.folder is None else f"the tokenizer in {self.folder}"
            raise ModelLoadError(
                f"{where} cannot encode this text ({one_line(error)}); use one with an unknown token or with "
                "bytes"
            ) from error

    def encode_many(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the ids of several texts, encoded in parallel if the library allows it."""
        return [list(item.ids) for item in self._encoded(list(texts))]

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int]]:
        """Return the ids of each prompt + continuation, encoded as one text, and the number of prompt ids.

        A token that contains a character of the continuation belongs to the continuation.
        """
        found: list[tuple[list[int], int]] = []
        for start in range(0, len(pairs), _TEXTS_PER_CALL):
            part = pairs[start : start + _TEXTS_PER_CALL]
            encoded = self._encoded([prompt + text for prompt, text in part])
            found += [
                (list(item.ids), tokens_before(item, len(prompt)))
                for item, (prompt, _) in zip(encoded, part, strict=True)
            ]
        return found

    def _encoded(self, texts: list[str]) -> list[Any]:
        with self._spelling():
            return list(self._tokenizer.encode_batch(texts, add_special_tokens=False))

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        return str(self._tokenizer.decode([int(index) for index in ids], skip_special_tokens=skip_special))

    def byte_count(self, ids: Sequence[int]) -> int:
        """Return the number of bytes of text in ``ids`` (a byte-level token has one character per byte)."""
        return sum(len(self._tokenizer.id_to_token(int(item))) for item in ids)

    def id_of(self, token: str) -> int | None:
        """Return the id of one token's exact string, or None."""
        index = self._tokenizer.token_to_id(token)
        return None if index is None else int(index)

    def named_id(self, name: str) -> int | None:
        """Return the id of a role in ``tokenizer_config.json``, such as ``eos_token`` or ``mask_token``."""
        text = self.named_tokens.get(name)
        return None if text is None else self.id_of(text)

    @property
    def named_tokens(self) -> dict[str, str]:
        """Strings of the declared special tokens, by role."""
        found = {name: _text(self.settings.get(name)) for name in _NAMED_TOKENS}
        return {name: text for name, text in found.items() if text is not None}

    @property
    def vocab_size(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    @property
    def largest_id(self) -> int:
        """The largest id any token has."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)

    def save(self, path: Path) -> None:
        """Write the ``tokenizer.json``."""
        self._tokenizer.save(str(path))


def tokens_before(encoding: Any, character: int) -> int:
    """Return the number of tokens of a ``tokenizers.Encoding`` that end before or at a character's index."""
    found = encoding.char_to_token(character)
    if found is None:  # no token contains it: the text ends there, or the tokenizer drops this space
        return bisect_right([end for _, end in encoding.offsets], character)
    return int(found)


def has_tokenizer(folder: Path) -> bool:
    """Return whether the folder holds a tokenizer that can be read."""
    return (folder / TOKENIZER).is_file() or has_merges(folder)


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingPackageError(
            f"{path} needs the tokenizers package; pip install 'orderlens[torch]'"
        ) from None
    if not path.is_file():
        raise ModelLoadError(f"{path} is missing; a model folder needs this tokenizer file")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the package raises bare Exception for malformed files
        raise ModelLoadError(f"{path} cannot be read: {one_line(error)}") from None


def _flagged(declared: Any) -> set[int]:
    """Return the ids that ``tokenizer_config.json`` calls special."""
    try:
        return {int(key) for key, entry in declared.items() if entry.get("special")}
    except (AttributeError, ValueError) as error:
        raise ModelLoadError(
            f"{SETTINGS}: added_tokens_decoder must map token ids to objects ({one_line(error)})"
        ) from None


def _text(value: object) -> str | None:
    """Return a token's string; older files wrap it in an object with ``content``."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


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
"""``tokenizer_class`` → the pattern that splits text into words."""
_COMPOSED = ("Qwen2Tokenizer", "DreamTokenizer")
"""Classes that normalise text to NFC (accents composed with their letters) first."""


def has_merges(folder: Path) -> bool:
    """Return whether the folder holds the two files of a byte-level BPE."""
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
            f"{folder} has no tokenizer.json, and its tokenizer_class {kind} cannot be read without it; "
            f"supported classes: {', '.join(WORDS)}"
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
    """Add the tokens that the settings declare, in the order of their ids, which must be consecutive."""
    from tokenizers import AddedToken

    for index, entry in sorted((int(key), entry) for key, entry in declared.items()):
        text = str(entry["content"])
        tokenizer.add_tokens([AddedToken(text, special=bool(entry.get("special")), normalized=False)])
        if tokenizer.token_to_id(text) != index:
            raise ModelLoadError(
                f"{folder}: tokenizer_config.json gives '{text}' the id {index}, but {VOCABULARY} implies "
                f"{tokenizer.token_to_id(text)}; the files belong to different tokenizers"
            )


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
        unknown = self._ids.get(UNKNOWN, 0)
        return [self._ids.get(character, unknown) for character in text.lower()]

    def count_unknown(self, text: str, ids: Sequence[int]) -> int:
        return sum(character not in self._ids for character in text.lower())

    def decode(self, ids: Sequence[int]) -> str:
        extra = {self.eos_id: "", self.mask_id: "_"}
        return "".join(extra[i] if i in extra else self.characters[i] for i in ids)

"""Which token ids mean what in a checkpoint, and the stand-in for a missing tokenizer. numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.files.configfile import CONFIG, read_json
from orderlens.models.files.tokenizer import FastTokenizer

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True)
class TokenRoles:
    """Which ids mean what; ``valid_vocab`` is one past the largest id the tokenizer knows."""

    mask_id: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    valid_vocab: int


class IdsOnly:
    """Stands in for a tokenizer where the checkpoint has none: token ids work, text is refused."""

    def encode(self, text: str) -> list[int]:
        raise UserInputError(
            f"this checkpoint has no tokenizer.json, so the text '{text[:40]}' cannot be encoded"
        )

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(int(index)) for index in ids)


@dataclass(frozen=True, slots=True)
class Published:
    """What a family's published checkpoints call their tokens, for files that do not say.

    Attributes:
        mask_id: the mask's id.
        mask_tokens: its possible names in the tokenizer.
        eos_id: what ends a text.
        turn_ends: names of tokens that end a turn: special, whether the tokenizer flags them or not.
        eos_in_config_only: generation_config.json is not read, and the tokenizer is asked last: what they
            call EOS may be the end of a turn.
    """

    mask_id: int
    mask_tokens: tuple[str, ...]
    eos_id: int
    turn_ends: tuple[str, ...] = ()
    eos_in_config_only: bool = False


def find_roles(
    folder: Path,
    values: Mapping[str, Any],
    vocab_size: int,
    tokenizer: FastTokenizer | None,
    published: Published,
) -> TokenRoles:
    """Return the roles from config.json, generation_config.json, the tokenizer, or the published ids."""
    path = folder / GENERATION_CONFIG
    read = path.is_file() and not published.eos_in_config_only
    generation = read_json(path) if read else {}
    known = known_ids(tokenizer, vocab_size)
    mask = _mask_id((values, generation), tokenizer, published)
    eos = _eos_ids((values, generation), tokenizer, published, vocab_size)
    special = set(tokenizer.special_ids) if tokenizer else set[int]()
    ends = [tokenizer.id_of(name) for name in published.turn_ends] if tokenizer else []
    special |= {index for index in ends if index is not None}
    return check_roles(TokenRoles(mask, eos, frozenset(special - eos - {mask}), known), vocab_size)


def known_ids(tokenizer: FastTokenizer | None, vocab_size: int) -> int:
    """Return one past the largest id in use; rows of the output matrix behind it are padding."""
    known = tokenizer.largest_id + 1 if tokenizer else vocab_size
    if known > vocab_size:
        raise ModelLoadError(
            f"the tokenizer knows ids up to {known - 1}, but the model's vocabulary has {vocab_size}; "
            "tokenizer.json belongs to another checkpoint"
        )
    return known


def check_roles(roles: TokenRoles, vocab_size: int) -> TokenRoles:
    """Refuse ids outside the vocabulary."""
    for label, index in (("mask", roles.mask_id), *(("EOS", token) for token in sorted(roles.eos_ids))):
        if not 0 <= index < vocab_size:
            raise ModelLoadError(
                f"{label} id {index} is outside the vocabulary of {vocab_size}; "
                f"{CONFIG} can name it ({'mask' if label == 'mask' else 'eos'}_token_id)"
            )
    return roles


def _mask_id(
    files: Sequence[Mapping[str, Any]], tokenizer: FastTokenizer | None, published: Published
) -> int:
    candidates: list[object] = [found.get(key) for found in files for key in ("mask_token_id", "mask_id")]
    if tokenizer is not None:
        candidates += [
            tokenizer.named_id("mask_token"),
            *(tokenizer.id_of(name) for name in published.mask_tokens),
        ]
    found = next((value for value in candidates if value not in (None, [])), published.mask_id)
    return next(_whole("mask_token_id", found))


def _eos_ids(
    files: Sequence[Mapping[str, Any]],
    tokenizer: FastTokenizer | None,
    published: Published,
    vocab_size: int,
) -> frozenset[int]:
    """Return all ids that the files call EOS; a generation configuration often adds the end of a turn.

    Where no file says what ends a text it is the tokenizer's or the published id (for some families the
    padding's, which is the same), or nothing in a vocabulary without it.
    """
    stated = frozenset(
        token for found in files for token in _whole("eos_token_id", found.get("eos_token_id"))
    )
    named = tokenizer.named_id("eos_token") if tokenizer else None
    usual = published.eos_id if published.eos_id < vocab_size else None
    padding = next(_whole("pad_token_id", files[0].get("pad_token_id")), None)
    others = (usual, padding, named) if published.eos_in_config_only else (named, usual)
    first = next((token for token in others if token is not None), None)
    return stated or frozenset(() if first is None else (first,))


def _whole(key: str, value: object) -> Iterator[int]:
    """Yield the token ids in ``value``: one, several, or none for None."""
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(item, bool) or not isinstance(item, int):
            raise ModelLoadError(f"{CONFIG}: {key}={item!r} must be a token id (a whole number)")
        yield item

"""Finds the mask, EOS and special ids of a checkpoint; replaces a missing tokenizer. numpy only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.files.configfile import CONFIG, ConfigValues, read_json
from orderlens.models.files.tokenizer import FastTokenizer

GENERATION_CONFIG = "generation_config.json"


@dataclass(frozen=True, slots=True)
class TokenRoles:
    """Mask, EOS and special ids; ``valid_vocab`` is the tokenizer's largest id + 1.

    ``excluded_ids`` are special tokens that no order may reveal, besides the mask.
    """

    mask_id: int
    eos_ids: frozenset[int]
    special_ids: frozenset[int]
    valid_vocab: int
    excluded_ids: frozenset[int] = frozenset()


class IdsOnlyTokenizer:
    """Replaces the tokenizer of a model that has none: token ids work, text is refused."""

    has_text = False

    def encode(self, text: str) -> list[int]:
        raise UserInputError(
            f"this model has no tokenizer, so the text '{text[:40]}' cannot be encoded; give token ids, put "
            "tokenizer.json into the model's folder, or pass a tokenizer to ol.wrap"
        )

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(int(index)) for index in ids)


@dataclass(frozen=True, slots=True)
class PublishedTokens:
    """Token ids and names of a family's published checkpoints, used if the files do not state them.

    Attributes:
        mask_id: the mask's id.
        mask_tokens: its possible names in the tokenizer.
        eos_id: the id that ends a text.
        turn_ends: names of tokens that end a turn; always special, even if the tokenizer does not flag them.
        eos_in_config_only: ignore generation_config.json and use the tokenizer last, because their EOS may be
            the end of a turn.
        excluded: key of ``config.json`` → published id of a token that no order may reveal; None if only the
            file can state it.
    """

    mask_id: int
    mask_tokens: tuple[str, ...]
    eos_id: int
    turn_ends: tuple[str, ...] = ()
    eos_in_config_only: bool = False
    excluded: Mapping[str, int | None] = field(default_factory=dict)


def find_roles(
    folder: Path,
    values: Mapping[str, Any],
    vocab_size: int,
    tokenizer: FastTokenizer | None,
    published: PublishedTokens,
) -> TokenRoles:
    """Return the roles from config.json, generation_config.json, the tokenizer, or the published ids."""
    path = folder / GENERATION_CONFIG
    read = path.is_file() and not published.eos_in_config_only
    generation = read_json(path) if read else {}
    known = count_known_ids(tokenizer, vocab_size)
    mask = _mask_id((values, generation), tokenizer, published)
    eos = _eos_ids((values, generation), tokenizer, published, vocab_size)
    special = set(tokenizer.special_ids) if tokenizer else set[int]()
    ends = [tokenizer.id_of(name) for name in published.turn_ends] if tokenizer else []
    excluded = _excluded_ids(values, published, vocab_size) - {mask}
    special |= {index for index in ends if index is not None} | excluded
    return check_roles(TokenRoles(mask, eos, frozenset(special - eos - {mask}), known, excluded), vocab_size)


def _excluded_ids(values: Mapping[str, Any], published: PublishedTokens, vocab_size: int) -> frozenset[int]:
    """Return the ids that the file states for excluded tokens, else the published ones in the vocabulary."""
    read, found = ConfigValues(values), set[int]()
    for key, usual in published.excluded.items():
        if key in read:
            found.add(read.token(key, vocab_size))
        elif usual is not None and usual < vocab_size:
            found.add(usual)
    return frozenset(found)


def count_known_ids(tokenizer: FastTokenizer | None, vocab_size: int) -> int:
    """Return the largest id in use + 1; rows of the output matrix from there on are padding."""
    known = tokenizer.largest_id + 1 if tokenizer else vocab_size
    if known > vocab_size:
        raise ModelLoadError(
            f"the tokenizer has ids up to {known - 1}, but the model's vocabulary has {vocab_size} ids; "
            "tokenizer.json belongs to another checkpoint"
        )
    return known


def check_roles(roles: TokenRoles, vocab_size: int) -> TokenRoles:
    """Refuse ids outside the vocabulary, and a mask that also ends a text."""
    if roles.mask_id in roles.eos_ids:
        raise ModelLoadError(
            f"id {roles.mask_id} is both the mask and an EOS; {CONFIG} can name them (mask_token_id, "
            "eos_token_id)"
        )
    for label, index in (("mask", roles.mask_id), *(("EOS", token) for token in sorted(roles.eos_ids))):
        if not 0 <= index < vocab_size:
            raise ModelLoadError(
                f"{label} id {index} is outside the vocabulary of {vocab_size}; "
                f"{CONFIG} can name it ({'mask' if label == 'mask' else 'eos'}_token_id)"
            )
    return roles


def _mask_id(
    files: Sequence[Mapping[str, Any]], tokenizer: FastTokenizer | None, published: PublishedTokens
) -> int:
    candidates: list[object] = [found.get(key) for found in files for key in ("mask_token_id", "mask_id")]
    if tokenizer is not None:
        candidates += [
            tokenizer.named_id("mask_token"),
            *(tokenizer.id_of(name) for name in published.mask_tokens),
        ]
    found = next((value for value in candidates if value not in (None, [])), published.mask_id)
    first, *others = _read_token_ids("mask_token_id", found)
    if others:
        raise ModelLoadError(f"{CONFIG}: mask_token_id={found!r} must be one token id")
    return first


def _eos_ids(
    files: Sequence[Mapping[str, Any]],
    tokenizer: FastTokenizer | None,
    published: PublishedTokens,
    vocab_size: int,
) -> frozenset[int]:
    """Return all ids that the files call EOS; a generation configuration often adds the end of a turn.

    If no file states an EOS, it is the tokenizer's or the published id (for some families the padding id,
    which is the same). If the vocabulary does not have that id, there is none.
    """
    stated = frozenset(
        token for found in files for token in _read_token_ids("eos_token_id", found.get("eos_token_id"))
    )
    named = tokenizer.named_id("eos_token") if tokenizer else None
    usual = published.eos_id if published.eos_id < vocab_size else None
    padding = next(_read_token_ids("pad_token_id", files[0].get("pad_token_id")), None)
    others = (usual, padding, named) if published.eos_in_config_only else (named, usual)
    first = next((token for token in others if token is not None), None)
    return stated or frozenset(() if first is None else (first,))


def _read_token_ids(key: str, value: object) -> Iterator[int]:
    """Yield the token ids in ``value``: one, several, or none for None."""
    for item in value if isinstance(value, list) else [] if value is None else [value]:
        if isinstance(item, bool) or not isinstance(item, int):
            raise ModelLoadError(f"{CONFIG}: {key}={item!r} must be a token id (a whole number)")
        yield item

"""Which token ids mean what in a LLaDA-2 checkpoint.

Sources, in this order: explicit values, config.json, the tokenizer, the published ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.files.roles import TokenRoles, check_roles, known_ids
from orderlens.models.files.tokenizer import FastTokenizer
from orderlens.models.llada2.config import PUBLISHED_EOS_ID, PUBLISHED_MASK_ID, LLaDA2Config

TURN_END = "<|role_end|>"
MASK_TOKEN = "<|mask|>"  # noqa: S105  a vocabulary entry


def find_roles(
    values: dict[str, Any],
    config: LLaDA2Config,
    tokenizer: FastTokenizer | None,
    mask_id: int | None = None,
    eos_ids: Sequence[int] | None = None,
) -> TokenRoles:
    """Return the token roles from explicit values, config.json, the tokenizer, or the published ids."""
    known = known_ids(tokenizer, config.vocab_size)
    mask = mask_id if mask_id is not None else _mask_id(values, tokenizer)
    eos = frozenset(eos_ids if eos_ids is not None else _eos_ids(values, config, tokenizer))
    special = set(tokenizer.special_ids) if tokenizer else set()
    turn_end = tokenizer.id_of(TURN_END) if tokenizer else None
    special |= {turn_end} if turn_end is not None else set()
    return check_roles(TokenRoles(mask, eos, frozenset(special - eos - {mask}), known), config.vocab_size)


def _mask_id(values: dict[str, Any], tokenizer: FastTokenizer | None) -> int:
    candidates: list[object] = [values.get("mask_token_id"), values.get("mask_id")]
    if tokenizer is not None:
        candidates += [tokenizer.named_id("mask_token"), tokenizer.id_of(MASK_TOKEN)]
    return _whole(
        "mask_token_id", next((value for value in candidates if value is not None), PUBLISHED_MASK_ID)
    )


def _eos_ids(values: dict[str, Any], config: LLaDA2Config, tokenizer: FastTokenizer | None) -> list[int]:
    """Prefer what config.json calls EOS, then the published id, then padding (published: the same id).

    The tokenizer comes last: there the end of a turn may be called EOS, which is a special token here.
    """
    published = PUBLISHED_EOS_ID if config.vocab_size > PUBLISHED_EOS_ID else None
    named = tokenizer.named_id("eos_token") if tokenizer else None
    candidates = (values.get("eos_token_id"), published, values.get("pad_token_id"), named, PUBLISHED_EOS_ID)
    found = next(value for value in candidates if value is not None)
    return [_whole("eos_token_id", value) for value in (found if isinstance(found, list) else [found])]


def _whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ModelLoadError(f"config.json: {key}={value!r} must be a token id (a whole number)")
    return value

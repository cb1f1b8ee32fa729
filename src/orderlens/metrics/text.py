"""Statistics of generated token sequences: diversity, length, end of text.

Sequences are token ids in text order. The ``segment_`` versions process many sequences in one call. Does not
depend on a tokenizer.

Shape letters: N tokens, S sequences.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from orderlens.errors import UserInputError
from orderlens.metrics.segments import AnyArray, FloatArray, Segments, divide


def cut_at_eos(tokens: Sequence[int], eos_ids: Collection[int]) -> list[int]:
    """Return the tokens before the first EOS: the part that is decoded to text."""
    ends = [place for place, token in enumerate(tokens) if token in eos_ids]
    return list(tokens[: ends[0]]) if ends else list(tokens)


def distinct_n(tokens: ArrayLike, n: int, eos_ids: Collection[int] = ()) -> float:
    """Return unique n-grams / n-grams of one sequence without EOS; NaN if it is shorter than n."""
    ids = _without(tokens, eos_ids)
    return float(segment_distinct_n(ids, Segments.one(len(ids)), n)[0])


def length_matched_distinct_n(
    sequences: Sequence[ArrayLike], n: int, eos_ids: Collection[int] = ()
) -> list[float]:
    """Return ``distinct_n`` of sequences for the same prompt, all cut to the length of the shortest.

    Distinct-n decreases with length, so short texts look more diverse; equal lengths remove this effect.
    """
    cleaned = [_without(tokens, eos_ids) for tokens in sequences]
    length = min((len(ids) for ids in cleaned), default=0)
    return [distinct_n(ids[:length], n) for ids in cleaned]


def eos_fraction(tokens: ArrayLike, eos_ids: Collection[int]) -> float:
    """Return EOS tokens / generated positions; NaN without positions."""
    ids = np.asarray(tokens)
    return float(np.isin(ids, sorted(eos_ids)).mean()) if len(ids) else math.nan


def token_entropy(tokens: ArrayLike, eos_ids: Collection[int] = ()) -> float:
    """Return the Shannon entropy (nats) of the token frequencies in a sequence, without EOS."""
    ids = _without(tokens, eos_ids)
    return float(segment_token_entropy(ids, Segments.one(len(ids)))[0])


def segment_distinct_n(tokens_N: AnyArray, segments: Segments, n: int) -> FloatArray:
    """Return ``distinct_n`` of every sequence [S] (EOS already removed)."""
    if n < 1:
        raise UserInputError(f"distinct-n needs n ≥ 1, got {n}")
    codes, grams = _ngrams(tokens_N, segments, n)
    ordered = grams.sort(codes)
    is_new = np.ones(len(codes), np.bool_)
    is_new[1:] = ordered[1:] != ordered[:-1]
    is_new[grams.starts[grams.lengths > 0]] = True
    return divide(grams.total(is_new), grams.lengths)


def segment_token_entropy(tokens_N: AnyArray, segments: Segments) -> FloatArray:
    """Return ``token_entropy`` of every sequence [S] (EOS already removed)."""
    ordered = segments.sort(np.asarray(tokens_N, np.int64))
    kinds = Segments.of_changes(segments.ids(), ordered)
    count = kinds.lengths.astype(np.float64)
    length = segments.lengths.astype(np.float64)
    owner = Segments(np.searchsorted(kinds.bounds, segments.bounds))
    weighted = owner.total(count * np.log(count)) if len(count) else np.zeros(segments.count)
    filled = length > 0
    out = np.full(segments.count, np.nan)
    out[filled] = np.maximum(np.log(length[filled]) - weighted[filled] / length[filled], 0.0)
    return out


def _ngrams(tokens_N: AnyArray, segments: Segments, n: int) -> tuple[AnyArray, Segments]:
    """Return one code per n-gram (equal codes: equal n-grams), and the sequences as segments of the codes."""
    ids = np.asarray(tokens_N, np.int64)
    codes = ids
    for back in range(1, n):
        base = int(ids.max(initial=0)) + 1
        if int(codes.max(initial=0)) >= (2**62) // base:
            codes = np.unique(codes, return_inverse=True)[1].astype(np.int64)
        codes = codes[:-1] * base + ids[back:] if len(codes) else codes
    ends = segments.ranks() >= n - 1
    starts_inside = ends[n - 1 :] if len(ids) >= n else np.zeros(0, np.bool_)
    return codes[: len(starts_inside)][starts_inside], segments.filter(ends)


def _without(tokens: ArrayLike, eos_ids: Collection[int]) -> AnyArray:
    values = np.asarray(list(tokens) if isinstance(tokens, str) else tokens)
    if values.ndim != 1:
        raise UserInputError(f"a sequence must be one list of token ids, got shape {values.shape}")
    if eos_ids:
        values = values[~np.isin(values, sorted(eos_ids))]
    if values.dtype.kind in "iu":
        return values
    return np.unique(values, return_inverse=True)[1] if len(values) else np.zeros(0, np.int64)

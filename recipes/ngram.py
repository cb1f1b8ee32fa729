"""Counting baselines over token ids: interpolated Kneser–Ney of any length, down to the unigram.

Numpy only: n-grams are hashed to 64 bits and counted by sorting, so that a hundred million tokens fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def hash_grams(tokens: NDArray[np.integer], length: int) -> Keys:
    """Return a 64-bit key of the ``length``-gram that starts at each position, [len(tokens) − length + 1]."""
    count = len(tokens) - length + 1
    keys = np.zeros(max(0, count), np.uint64)
    for offset in range(length if count > 0 else 0):
        keys = (keys + tokens[offset : offset + count].astype(np.uint64) + np.uint64(1)) * _MULTIPLIER
        keys ^= keys >> np.uint64(29)
    return keys


@dataclass(frozen=True)
class Table:
    """Sorted keys and their numbers; a missing key has the number 0."""

    keys: Keys
    numbers: NDArray[np.float64]

    @classmethod
    def of(cls, keys: Keys, weights: NDArray[np.float64] | None = None) -> Table:
        """Sum ``weights`` (1 each by default) by key."""
        unique, inverse = np.unique(keys, return_inverse=True)
        return cls(unique, np.bincount(inverse, weights, minlength=len(unique)).astype(np.float64))

    def __getitem__(self, keys: Keys) -> NDArray[np.float64]:
        if not len(self.keys):
            return np.zeros(len(keys))
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, self.numbers[place], 0.0)


@dataclass(frozen=True)
class _Level:
    """Counts of one length: grams, and per context the total and the number of different followers."""

    grams: Table
    totals: Table
    followers: Table
    discount: float


class KneserNey:
    """Interpolated Kneser–Ney with one discount per length; below the unigram it is uniform."""

    def __init__(self, tokens: NDArray[np.integer], length: int, vocab_size: int) -> None:
        self.length, self.vocab_size = length, vocab_size
        self._levels = [self._level(tokens, n, raw=n == length) for n in range(1, length + 1)]

    @staticmethod
    def _level(tokens: NDArray[np.integer], n: int, raw: bool) -> _Level:
        """Count ``n``-grams: occurrences at full length, else the number of different preceding tokens."""
        if raw:
            starts = np.arange(len(tokens) - n + 1)
        else:
            starts = np.unique(hash_grams(tokens, n + 1), return_index=True)[1] + 1
        keys = hash_grams(tokens, n)[starts]
        grams = Table.of(keys)
        first = starts[np.unique(keys, return_index=True)[1]]
        contexts = hash_grams(tokens, n - 1)[first] if n > 1 else np.zeros(len(first), np.uint64)
        once, twice = float((grams.numbers == 1).sum()), float((grams.numbers == 2).sum())
        discount = once / (once + 2 * twice) if once and twice else 0.5
        return _Level(grams, Table.of(contexts, grams.numbers), Table.of(contexts), discount)

    def log_probs(self, tokens: Sequence[int] | NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the natural-log probability of every token given those before it, [len(tokens)]."""
        ids = np.asarray(tokens)
        probs = np.full(len(ids), 1.0 / self.vocab_size)
        for n, level in enumerate(self._levels, start=1):
            probs[n - 1 :] = self._mix(level, ids, n, probs[n - 1 :])
        logs: NDArray[np.float64] = np.log(probs)
        return logs

    @staticmethod
    def _mix(
        level: _Level, ids: NDArray[np.integer], n: int, lower: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        grams = hash_grams(ids, n)
        contexts = hash_grams(ids, n - 1)[: len(grams)] if n > 1 else np.zeros(len(grams), np.uint64)
        total = level.totals[contexts]
        known = total > 0
        safe = np.where(known, total, 1.0)
        discounted = np.maximum(level.grams[grams] - level.discount, 0.0) / safe
        backoff = level.discount * level.followers[contexts] / safe
        mixed: NDArray[np.float64] = np.where(known, discounted + backoff * lower, lower)
        return mixed

"""Random streams with keys, independent of the place in a batch.

The same (seed, sample id, order, purpose) always gives the same numbers. Results therefore do not depend on
batch size, number of workers or resuming. Global random state is not used.

Token draws and randomised rules have one stream per chain and block; row t of it, [pass, offset], belongs to
the block's t-th forward pass.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Key = str | int
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def keyed_generator(seed: int, *keys: Key) -> np.random.Generator:
    """Return a generator that depends only on ``seed`` and ``keys``; ``1`` and ``"1"`` are different keys."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (seed, *keys):
        text = f"{type(part).__name__}:{part}".encode()
        digest.update(len(text).to_bytes(8, "little") + text)
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest.digest(), "little")))


def draw_stream(sample_seed: int, sample_id: str, policy_spec: str, block: int) -> np.random.Generator:
    """Return the stream for the token draws of one block."""
    return keyed_generator(sample_seed, sample_id, policy_spec, "draw", block)


def rule_stream(order_seed: int | None, sample_id: str, policy_spec: str, block: int) -> np.random.Generator:
    """Return the stream that an order or a commit rule receives as ``uniforms_R``."""
    return keyed_generator(order_seed or 0, sample_id, policy_spec, "rule", block)


BUFFERED_NUMBERS = 1024
"""Numbers of a stream that one call draws: enough for 32 passes of a block of 32 positions."""


class NumberRows:
    """Buffers every chain's stream for several passes, [N, passes, block size]; opens it on first use."""

    def __init__(
        self, n_chains: int, block_size: int, open_stream: Callable[[int], np.random.Generator]
    ) -> None:
        self._open = open_stream
        self._streams: dict[int, np.random.Generator] = {}
        self._buffered = max(1, BUFFERED_NUMBERS // block_size)
        self._rows_NPB = np.empty((n_chains, self._buffered, block_size))
        self._end_N = np.zeros(n_chains, np.int64)

    def enter_block(self, chain: int) -> None:
        """Start the chain's next stream."""
        self._streams.pop(chain, None)
        self._end_N[chain] = 0

    def rows(self, chain_C: IntArray, pass_C: IntArray) -> FloatArray:
        """Return the numbers [C, B] of each chain's pass; the passes of a block must not decrease."""
        for place in np.flatnonzero(pass_C >= self._end_N[chain_C]).tolist():
            self._refill(int(chain_C[place]), int(pass_C[place]))
        rows: FloatArray = self._rows_NPB[chain_C, pass_C - self._end_N[chain_C] + self._buffered]
        return rows

    def _refill(self, chain: int, wanted: int) -> None:
        """Draw numbers until the buffer contains pass ``wanted``."""
        if chain not in self._streams:
            self._streams[chain] = self._open(chain)
        while self._end_N[chain] <= wanted:
            self._streams[chain].random(out=self._rows_NPB[chain])
            self._end_N[chain] += self._buffered

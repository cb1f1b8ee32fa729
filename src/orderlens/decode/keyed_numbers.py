"""The keyed random numbers behind draws and randomised rules: one stream per chain and block.

Row t of a block's stream [pass, offset] belongs to its t-th forward pass. The stream is a function of its key
alone, so a number does not depend on what shares the batch; rows are made for some passes at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from orderlens.models.protocol import FloatArray, IntArray
from orderlens.rng import keyed_generator


def draw_stream(sample_seed: int, sample_id: str, policy_spec: str, block: int) -> np.random.Generator:
    """Return the stream behind the token draws of one block."""
    return keyed_generator(sample_seed, sample_id, policy_spec, "draw", block)


def rule_stream(order_seed: int | None, sample_id: str, policy_spec: str, block: int) -> np.random.Generator:
    """Return the stream that an order or a commit rule sees as ``uniforms_R``."""
    return keyed_generator(order_seed or 0, sample_id, policy_spec, "rule", block)


NUMBERS_AHEAD = 1024
"""Numbers of a stream that are made at once: a block of 32 positions that takes 32 passes needs one call."""


class NumberRows:
    """Every chain's stream, some passes ahead: [N, passes, block size]; opened when first asked for."""

    def __init__(
        self, n_chains: int, block_size: int, open_stream: Callable[[int], np.random.Generator]
    ) -> None:
        self._open = open_stream
        self._streams: dict[int, np.random.Generator] = {}
        self._ahead = max(1, NUMBERS_AHEAD // block_size)
        self._rows_NPB = np.empty((n_chains, self._ahead, block_size))
        self._end_N = np.zeros(n_chains, np.int64)

    def enter_block(self, chain: int) -> None:
        """Start the chain's next stream."""
        self._streams.pop(chain, None)
        self._end_N[chain] = 0

    def rows(self, chain_C: IntArray, pass_C: IntArray) -> FloatArray:
        """Return the numbers [C, B] of each chain's pass; passes of a block must not go backwards."""
        for place in np.flatnonzero(pass_C >= self._end_N[chain_C]).tolist():
            self._refill(int(chain_C[place]), int(pass_C[place]))
        rows: FloatArray = self._rows_NPB[chain_C, pass_C - self._end_N[chain_C] + self._ahead]
        return rows

    def _refill(self, chain: int, wanted: int) -> None:
        """Make numbers until those of pass ``wanted`` are there."""
        if chain not in self._streams:
            self._streams[chain] = self._open(chain)
        while self._end_N[chain] <= wanted:
            self._streams[chain].random(out=self._rows_NPB[chain])
            self._end_N[chain] += self._ahead

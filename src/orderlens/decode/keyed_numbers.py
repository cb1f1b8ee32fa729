"""The keyed random numbers behind draws and randomised rules: one stream per chain and block.

Row t of a block's stream [pass, offset] belongs to its t-th forward pass. The stream is a function of its key
alone, so a number does not depend on what shares the batch, and rows are made one pass at a time.
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


class NumberRows:
    """The current row of every chain's stream, [N, block size]; streams are opened when first asked for."""

    def __init__(
        self, n_chains: int, block_size: int, open_stream: Callable[[int], np.random.Generator]
    ) -> None:
        self._open = open_stream
        self._streams: dict[int, np.random.Generator] = {}
        self._rows_NB = np.empty((n_chains, block_size))
        self._made_N = np.full(n_chains, -1)

    def enter_block(self, chain: int) -> None:
        """Start the chain's next stream."""
        self._streams.pop(chain, None)
        self._made_N[chain] = -1

    def rows(self, chain_C: IntArray, pass_C: IntArray) -> FloatArray:
        """Return the numbers [C, B] of each chain's pass; passes of a block must not go backwards."""
        behind = self._made_N[chain_C] < pass_C
        for chain, wanted in zip(chain_C[behind].tolist(), pass_C[behind].tolist(), strict=True):
            if chain not in self._streams:
                self._streams[chain] = self._open(chain)
            for _ in range(wanted - int(self._made_N[chain])):
                self._streams[chain].random(out=self._rows_NB[chain])
            self._made_N[chain] = wanted
        return self._rows_NB[chain_C]

"""Orders that ignore the model: left to right, right to left, uniformly random."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.rules.orders.protocol import Card, StaticOrder


class ForcedAR(StaticOrder):
    """Left to right inside the block."""

    id = "forced-ar"
    summary = "left to right inside each block"
    card = Card("Forced-AR", "structured", 0, "o")

    def path(self, n_positions: int, sample_id: str, block: int) -> NDArray[np.int64]:
        """Return 0, 1, 2 and so on."""
        return np.arange(n_positions, dtype=np.int64)


class ReverseAR(StaticOrder):
    """Right to left inside the block."""

    id = "reverse-ar"
    summary = "right to left inside each block"
    card = Card("Reverse-AR", "control", 5, "D")

    def path(self, n_positions: int, sample_id: str, block: int) -> NDArray[np.int64]:
        """Return n−1 down to 0."""
        return np.arange(n_positions - 1, -1, -1, dtype=np.int64)


class RandomOrder(StaticOrder):
    """Uniformly random, keyed by (seed, sample id, block): the same whatever shares the batch."""

    id = "random"
    summary = "uniformly random; random:3 is seed 3, plain random is seed 0"
    card = Card("Random", "random", 4, "X")

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed

    @classmethod
    def parse(cls, argument: str) -> RandomOrder:
        """Build from the text after the colon, a non-negative integer."""
        if not argument.isascii() or not argument.isdigit():
            raise UserInputError(
                f"order 'random:{argument}': the seed must be a non-negative integer, e.g. random:3"
            )
        if len(argument) > 18:  # it is stored as a 64-bit number
            raise UserInputError(f"order 'random:{argument}': the seed must have at most 18 digits")
        return cls(int(argument))

    @property
    def seed(self) -> int:
        """The seed of the permutations."""
        return self._seed

    def path(self, n_positions: int, sample_id: str, block: int) -> NDArray[np.int64]:
        """Return a permutation that depends only on (seed, sample id, block)."""
        generator = keyed_generator(self._seed, sample_id, self.id, "path", block)
        return generator.permutation(n_positions).astype(np.int64)

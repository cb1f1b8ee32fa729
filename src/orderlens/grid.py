"""Where blocks lie: the block grid of a sequence and the canvas a decoder fills.

Positions are 0-based. A grid has an offset: when it is positive, ``[0, offset)`` is a short first block and
blocks of ``block_size`` follow; anchored at 0 the offset is 0, anchored at the prompt's end it is the
prompt length modulo the block size, so that decoding starts on a boundary.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise


def block_edges(length: int, block_size: int, offset: int = 0) -> list[tuple[int, int]]:
    """Return the half-open blocks that tile ``[0, length)``; the last one may be cut short."""
    edges = sorted({0, *range(offset, length, block_size), length})
    return list(pairwise(edges))


@dataclass(frozen=True, slots=True)
class Canvas:
    """The positions that one sample's decoding covers.

    Attributes:
        prompt_length: tokens given.
        n_requested: tokens to score or generate.
        block_size: tokens per block.
        offset: grid offset, below ``block_size``.
    """

    prompt_length: int
    n_requested: int
    block_size: int
    offset: int

    @classmethod
    def plan(cls, prompt_length: int, n_requested: int, block_size: int, anchor: str) -> Canvas:
        """Lay the grid from position 0 (``"zero"``), or so that the prompt ends a block (``"prompt"``)."""
        offset = prompt_length % block_size if anchor == "prompt" else 0
        return cls(prompt_length, n_requested, block_size, offset)

    @property
    def first_start(self) -> int:
        """Start of the first block that holds a position to decode; it may also hold the prompt's tail."""
        return self.prompt_length - (self.prompt_length - self.offset) % self.block_size

    @property
    def requested_end(self) -> int:
        """One past the last requested position."""
        return self.prompt_length + self.n_requested

    @property
    def end(self) -> int:
        """One past the canvas: the requested end rounded up to whole blocks."""
        return self.requested_end + (self.offset - self.requested_end) % self.block_size

    @property
    def block_starts(self) -> range:
        """Starts of all blocks to decode."""
        return range(self.first_start, self.end, self.block_size)

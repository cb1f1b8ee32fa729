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
        prompt_length: tokens given before the first position to fill.
        n_requested: tokens to score or generate.
        block_size: tokens per block.
        offset: grid offset, below ``block_size``.
        n_suffix: tokens given after the last position to fill.
    """

    prompt_length: int
    n_requested: int
    block_size: int
    offset: int
    n_suffix: int = 0

    @classmethod
    def plan(
        cls, prompt_length: int, n_requested: int, block_size: int, anchor: str, n_suffix: int = 0
    ) -> Canvas:
        """Lay the grid from position 0 (``"zero"``), or so that the prompt ends a block (``"prompt"``)."""
        offset = prompt_length % block_size if anchor == "prompt" else 0
        return cls(prompt_length, n_requested, block_size, offset, n_suffix)

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
        """One past the last block to decode: the requested end rounded up to whole blocks."""
        return self.requested_end + (self.offset - self.requested_end) % self.block_size

    @property
    def fill_end(self) -> int:
        """One past the last position that is filled: whole blocks, unless a suffix says what follows."""
        return self.requested_end if self.n_suffix else self.end

    @property
    def total(self) -> int:
        """One past everything a full-attention model sees: the blocks, or the text to the suffix's end."""
        return self.requested_end + self.n_suffix if self.n_suffix else self.end

    @property
    def visible_suffix(self) -> int:
        """Suffix tokens that share a block with a position to fill: all that block-causal models see."""
        return min(self.n_suffix, self.end - self.requested_end)

    def window(self, start: int, attention: str) -> tuple[int, int]:
        """Return the positions that the block at ``start`` is evaluated in: itself, or the whole canvas."""
        return (start, start + self.block_size) if attention == "block-causal" else (0, self.total)

    def reach(self, attention: str) -> int:
        """Return how many positions of the model's context are used."""
        return self.end if attention == "block-causal" else self.total

    @property
    def block_starts(self) -> range:
        """Starts of all blocks to decode."""
        return range(self.first_start, self.end, self.block_size)

"""The block grid of a sequence, and the canvas of positions that a decoder fills.

Positions are 0-based. Blocks of ``block_size`` start at an offset; if it is positive, ``[0, offset)`` is a
short first block. A grid anchored at 0 has offset 0. A grid anchored at the prompt's end has the offset
prompt length modulo block size, so that decoding starts at the edge of a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

Overflow: TypeAlias = Literal["fill", "mask"]
"""What happens to positions past the requested length: they are filled, or stay masked."""


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
        fills_overflow: whether positions past the requested length are filled too; they complete the last
            block.
    """

    prompt_length: int
    n_requested: int
    block_size: int
    offset: int
    n_suffix: int = 0
    fills_overflow: bool = True

    @classmethod
    def plan(
        cls,
        prompt_length: int,
        n_requested: int,
        block_size: int,
        anchor: str,
        n_suffix: int = 0,
        fills_overflow: bool = True,
    ) -> Canvas:
        """Lay the grid from position 0 (``"zero"``), or so that the prompt ends a block (``"prompt"``)."""
        offset = prompt_length % block_size if anchor == "prompt" else 0
        return cls(prompt_length, n_requested, block_size, offset, n_suffix, fills_overflow)

    @property
    def first_start(self) -> int:
        """Start of the first block with a position to decode; it may begin inside the prompt."""
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
        """One past the last filled position: the end of a block, or of the request.

        The request ends it if a suffix follows, or if positions past the requested length stay masked.
        """
        return self.requested_end if self.n_suffix or not self.fills_overflow else self.end

    @property
    def total(self) -> int:
        """One past the last position that a full-attention model sees, suffix included."""
        return self.requested_end + self.n_suffix if self.n_suffix else self.end

    @property
    def visible_suffix(self) -> int:
        """Number of suffix tokens in the last block to fill; block-causal models see no others."""
        return min(self.n_suffix, self.end - self.requested_end)

    def window(self, start: int, attention: str) -> tuple[int, int]:
        """Return the positions to evaluate for the block at ``start``: the block, or the whole canvas."""
        return (start, start + self.block_size) if attention == "block-causal" else (0, self.total)

    def reach(self, attention: str) -> int:
        """Return the number of positions of the model's context that are used."""
        return self.end if attention == "block-causal" else self.total

    @property
    def block_starts(self) -> range:
        """Starts of all blocks to decode."""
        return range(self.first_start, self.end, self.block_size)

"""What one forward of a session works on: windows over cached prefixes, and the rows wanted of them.

Shape letters: N windows, W width, R rows, Q most rows that any window wants.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from orderlens.models.protocol import IntArray
from orderlens.models.small.cache import KeyCache


@dataclass(frozen=True, slots=True)
class CachedWindows:
    """Windows of equal width, each over the first ``starts_N`` cached positions of its slot."""

    cache: KeyCache
    slots_N: IntArray
    starts_N: IntArray
    tokens_NW: IntArray

    @property
    def width(self) -> int:
        """W."""
        return int(self.tokens_NW.shape[1])


@dataclass(frozen=True)
class WantedRows:
    """Rows by window and offset, the windows ascending."""

    window_R: IntArray
    offset_R: IntArray

    @cached_property
    def place_R(self) -> IntArray:
        """How many earlier rows are of the same window."""
        place: IntArray = np.arange(len(self.window_R)) - np.searchsorted(self.window_R, self.window_R)
        return place

    @property
    def most(self) -> int:
        """Q."""
        return int(self.place_R.max(initial=-1)) + 1

    def offsets(self, count: int) -> IntArray:
        """Return the rows' offsets [N, Q]; 0 where a window wants fewer than Q."""
        offset_NQ = np.zeros((count, self.most), np.int64)
        offset_NQ[self.window_R, self.place_R] = self.offset_R
        return offset_NQ

"""The input of one forward: equal-width windows of several sequences, on the device.

Shape letters: N windows, W width, T = N·W tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.models.protocol import IntArray

HEADER = 3
"""Packed integers per window before its tokens: table row, start, width."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of one forward; each sees itself and its slot's cached positions before ``start``.

    Attributes:
        packed_NX: int32 [N, 3 + W]: table row, first position, valid width, then the tokens.
        longest_start: upper bound of all starts, known on the host.
    """

    packed_NX: Tensor
    longest_start: int

    @property
    def rows(self) -> Tensor:
        """Page-table row of each window [N]."""
        return self.packed_NX[:, 0]

    @property
    def starts(self) -> Tensor:
        """Position of each window's first token [N]."""
        return self.packed_NX[:, 1]

    @property
    def widths(self) -> Tensor:
        """Number of valid tokens of each window [N]; the others are padding and are masked."""
        return self.packed_NX[:, 2]

    @property
    def tokens(self) -> Tensor:
        """Token ids [N, W]."""
        return self.packed_NX[:, HEADER:]

    @property
    def positions(self) -> Tensor:
        """Absolute positions [N, W]."""
        return self.starts[:, None] + torch.arange(self.width, device=self.packed_NX.device)

    @property
    def count(self) -> int:
        """N."""
        return self.packed_NX.shape[0]

    @property
    def width(self) -> int:
        """W."""
        return self.packed_NX.shape[1] - HEADER


def pack(rows_N: IntArray, starts_N: IntArray, widths_N: IntArray, tokens_NW: IntArray) -> NDArray[np.int32]:
    """Return the packed integers [N, 3 + W] on the host."""
    return np.column_stack((rows_N, starts_N, widths_N, tokens_NW)).astype(np.int32)

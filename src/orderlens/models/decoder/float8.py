"""Weights in 8 bits: float8 numbers (e4m3) with float32 scales, converted here or stored so in a checkpoint.

A converted matrix has one scale per row: the row's largest absolute value becomes 448, the largest float8
number. A stored one has one scale per block of rows and columns (``weight_block_size``, usually 128 × 128);
its scales are repeated for each row, because the kernels read one scale per row and group of columns.

Only experts stay in float8, and only if all of them are stored so; other stored float8 matrices are
multiplied by their scales when they are loaded. Does not depend on files or families.

Shape letters: O rows, C columns, S groups of columns.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

import torch
from torch import Tensor

from orderlens.kernels.shapes import StackedExperts, interleaved, on_float8_units, unscaled

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
"""The largest float8 number (e4m3)."""
SMALLEST_SCALE = 2.0**-100
"""Scale of a row of zeros."""


class Matrix(NamedTuple):
    """A matrix [O, C] as stored: float8 values with scales [O, S], or plain values."""

    values_OC: Tensor
    scale_OS: Tensor | None = None

    def plain(self) -> Tensor:
        """Return the numbers [O, C]; scaled ones as float32."""
        return self.values_OC if self.scale_OS is None else unscaled(self.values_OC, self.scale_OS)

    def to(self, device: torch.device) -> Matrix:
        """Return this matrix on another device."""
        scale_OS = None if self.scale_OS is None else self.scale_OS.to(device)
        return Matrix(self.values_OC.to(device), scale_OS)

    def rows(self, chosen: slice) -> Matrix:
        """Return some rows."""
        return Matrix(self.values_OC[chosen], None if self.scale_OS is None else self.scale_OS[chosen])

    def columns(self, chosen: slice) -> Matrix:
        """Return some columns, whole groups of them."""
        if self.scale_OS is None:
            return Matrix(self.values_OC[:, chosen])
        group = self.values_OC.shape[1] // self.scale_OS.shape[1]
        groups = slice(chosen.start // group, chosen.stop // group)
        return Matrix(self.values_OC[:, chosen], self.scale_OS[:, groups])

    def as_float8(self) -> Matrix:
        """Return the matrix in float8; one that is stored so stays unchanged."""
        return self if self.scale_OS is not None else to_float8(self.values_OC)


def to_float8(weight_OC: Tensor) -> Matrix:
    """Return a plain matrix in float8 with one scale per row [O, 1]."""
    wide_OC = weight_OC.float()
    scale_O1 = (wide_OC.abs().amax(dim=1, keepdim=True) / LARGEST).clamp_min(SMALLEST_SCALE)
    return Matrix((wide_OC / scale_O1).to(FLOAT8), scale_O1)


def row_scales(scale_XY: Tensor, rows: int, columns: int, block: tuple[int, int], group: int) -> Tensor:
    """Return block scales [⌈O / block rows⌉, ⌈C / block columns⌉] as scales per row [O, C / group].

    Args:
        scale_XY: the stored scales.
        rows: O.
        columns: C.
        block: rows and columns of a block.
        group: columns per resulting scale; divides ``columns`` and the block's columns.
    """
    tall_OY = scale_XY.float().repeat_interleave(block[0], dim=0)[:rows]
    return tall_OY.repeat_interleave(block[1] // group, dim=1)[:, : columns // group].contiguous()


def group_width(columns: int, block: tuple[int, int]) -> int:
    """Return the largest number of columns that divides a matrix and its blocks into equal groups."""
    return gcd(columns, block[1])


def scales_per_row(columns: int, block: tuple[int, int] | None) -> int:
    """Return the number of scales of a row: one, or one per group of a matrix with ``block`` scales."""
    return 1 if block is None else columns // group_width(columns, block)


class Float8Stack:
    """Stacked experts in float8, allocated once and filled expert by expert."""

    def __init__(self, E: int, F: int, C: int, device: torch.device, block: tuple[int, int] | None) -> None:
        S_up, S_down = scales_per_row(C, block), scales_per_row(F, block)
        group = None if block is None else gcd(group_width(C, block), group_width(F, block))
        self.experts = StackedExperts(
            torch.empty(E, 2 * F, C, device=device, dtype=FLOAT8),
            torch.empty(E, C, F, device=device, dtype=FLOAT8),
            torch.empty(E, 2 * F, S_up, device=device),
            torch.empty(E, C, S_down, device=device),
            on_float8_units(device, C, F, group),
        )

    def fill(self, expert: int, gate: Matrix, up: Matrix, down: Matrix) -> None:
        """Store one expert; plain matrices are converted on the stack's device."""
        experts, F = self.experts, len(gate.values_OC)
        scales_FS, scales_CS = experts.gate_up_scale_EFS, experts.down_scale_ECS
        assert scales_FS is not None
        assert scales_CS is not None
        self._copy(gate, experts.gate_up_EFC[expert, :F], scales_FS[expert, :F])
        self._copy(up, experts.gate_up_EFC[expert, F:], scales_FS[expert, F:])
        self._copy(down, experts.down_ECF[expert], scales_CS[expert])

    def _copy(self, matrix: Matrix, values_OC: Tensor, scale_OS: Tensor) -> None:
        found = matrix.to(values_OC.device).as_float8()
        assert found.scale_OS is not None
        if self.experts.ordered:
            values_OC.copy_(found.values_OC)
        else:
            values_OC.copy_(interleaved(found.values_OC, scale_OS.shape[1]))
        scale_OS.copy_(found.scale_OS)  # one scale of a converted row is repeated for each group

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Numbers as pairs of float8 numbers, for products on float8 matrix units.

A number is ``(high + low) · scale``: two float8 numbers (e4m3), and a power of two that a run of numbers
shares. The eight significant bits of a bfloat16 number fit into the two. Only numbers below 1/896 of the
largest one of the run lose bits.

Shape letters: N rows, K columns, G groups of columns.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
_ONE_448TH = tl.constexpr(1 / 448)
"""One over the largest float8 number."""
_LEAST = tl.constexpr(27 << 23)
"""Bits of the smallest scale, 2⁻¹⁰⁰."""
_SMALL = tl.constexpr(2.0**-6)
"""Float8 numbers below this one have fewer than four significant bits: they are multiples of 2⁻⁹."""
_SHIFT = tl.constexpr(1.5 * 2.0**14)
"""Adding and subtracting this rounds a float32 number to a multiple of 2⁻⁹."""


class Pairs(NamedTuple):
    """Rows of numbers as pairs.

    Attributes:
        parts_2NK: all high parts, then all low parts.
        scale_NG: powers of two (float32), each for K / G adjacent columns.
    """

    parts_2NK: Tensor
    scale_NG: Tensor

    @classmethod
    def empty(cls, rows: int, columns: int, groups: int, device: torch.device) -> Pairs:
        """Return uninitialised pairs."""
        parts_2NK = torch.empty(2, rows, columns, device=device, dtype=FLOAT8)
        return cls(parts_2NK, torch.empty(rows, groups, device=device))


@triton.jit
def scale_of(most):
    """Return the smallest power of two by which ``most`` is at most 448, and its inverse."""
    bits = (most * _ONE_448TH).to(tl.int32, bitcast=True)
    bits = tl.maximum((bits + 0x7FFFFF) & 0x7F800000, _LEAST)
    return bits.to(tl.float32, bitcast=True), (0x7F000000 - bits).to(tl.float32, bitcast=True)


@triton.jit
def rounded(x):
    """Round float32 numbers of at most 448 to float8 numbers, to even; still as float32."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000  # four significant bits
    small = (x + _SHIFT) - _SHIFT
    return tl.where(tl.abs(x) < _SMALL, small, bits.to(tl.float32, bitcast=True))


@triton.jit
def store_pair(value, at, plane, mask):
    """Store float32 numbers of at most 448 as pairs; low parts are ``plane`` numbers after high ones."""
    high = rounded(value)
    tl.store(at, high.to(tl.float8e4nv), mask=mask)
    tl.store(at + plane, rounded(value - high).to(tl.float8e4nv), mask=mask)

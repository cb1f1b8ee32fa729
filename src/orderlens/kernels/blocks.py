"""How large a block of a matrix may be. Needs no Triton."""

from __future__ import annotations


def divisor(size: int, wanted: int) -> int:
    """Return the largest power of two that divides ``size`` and does not exceed ``wanted``, itself one."""
    return min(wanted, size & -size)

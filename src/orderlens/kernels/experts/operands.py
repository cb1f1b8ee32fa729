# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Tiles of the matrices that grouped products read: through tensor descriptors, or by addresses.

Of weights, and for the down product the tokens' rows as well: one instruction moves a whole tile, so that the
warps only multiply. GPUs before Hopper cannot do that and get addresses instead.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def weight_tile(
    weights,
    row,
    k,
    WIDTH: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILED: tl.constexpr,
):
    """Return the BLOCK_N rows from ``row`` on and BLOCK_K columns from ``k`` on of weights [·, WIDTH]."""
    if TILED:
        tile = weights.load([row, k])
    else:
        n = (row + tl.arange(0, BLOCK_N)).to(tl.int64)
        tile = tl.load(weights + (n * WIDTH)[:, None] + (k + tl.arange(0, BLOCK_K))[None, :])
    return tile


def matrix_tiles(matrix: Tensor, rows: int, columns: int, tiled: bool) -> Any:
    """Return a kernel's argument: a descriptor of tiles of this size, or the matrix itself."""
    return TensorDescriptor.from_tensor(matrix, [rows, columns]) if tiled else matrix

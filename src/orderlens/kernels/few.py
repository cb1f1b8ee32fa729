# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of few rows with a matrix, in parts of the sum that the next kernel adds.

With 32 tokens a product is the reading of its matrix. One tile of it per program, through a tensor
descriptor, asks for the whole matrix at once; that needs more programs than the matrix has panels, so the sum
is cut. Parts are float32, and whoever reads them adds them in their order: always the same numbers, and no
kernel between. Cuts do not depend on the number of rows, so a row's numbers do not either.

Shape letters: T rows, D width, N outputs, S parts of the sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from orderlens.kernels.gpu import divisor, gpu_of

MOST_ROWS = 64
"""A program holds all rows; with more of them a vendor's product is as fast."""


class Cut(NamedTuple):
    """How a product is cut and launched.

    Attributes:
        block_n: outputs of a program; fewer where they do not divide them.
        span: numbers summed by a program; likewise.
        block_k: of them, loaded at a time; all at once when it is the span.
        warps: per program.
        stages: loads under way, when there are several.
    """

    block_n: int = 64
    span: int = 256
    block_k: int = 256
    warps: int = 4
    stages: int = 1


FEWEST_ROWS, FEWEST = 32, Cut(block_n=128, warps=8)
"""One window's rows leave room for twice the outputs; the sum is cut alike, so the numbers are the same."""
WIDE = Cut(span=1024, block_k=128, stages=4)
"""For a matrix so large that fewer programs ask for enough of it, and fewer parts matter more."""


@triton.jit
def added(parts, at, mask, rows_and_outputs, PARTS: tl.constexpr):
    """Return the float32 sum of the numbers ``at`` some places of each of PARTS parts, in their order."""
    total = tl.load(parts + at, mask=mask, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts + part * rows_and_outputs + at, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _few_kernel(
    x,
    matrix,
    parts,
    rows,
    outputs,
    width,
    SPAN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply all rows by one piece of the matrix; grid (N / BLOCK_N, D / SPAN).

    Reads x [T, D] and a descriptor of tiles BLOCK_N × BLOCK_K of matrix [N, D]; writes parts [S, T, N]
    (float32). The matrix is the left operand: the matrix unit takes any number of rows from 16 on as the
    right one. Rows are asked for before the tile, whose loading is waited for at once.
    """
    first_n, split = tl.program_id(0) * BLOCK_N, tl.program_id(1)
    row, n = tl.arange(0, BLOCK_T), first_n + tl.arange(0, BLOCK_N)
    there = row < rows
    x_at = x + (row * width)[:, None] + (split * SPAN + tl.arange(0, BLOCK_K))[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_T), tl.float32)
    if SPAN == BLOCK_K:
        tokens = tl.load(x_at, mask=there[:, None])
        tile = matrix.load([first_n, split * SPAN])
        tokens = tl.where(there[:, None], tokens, 0.0)  # here: what is loaded is else waited for up there
        acc = tl.dot(tile, tl.trans(tokens), acc, input_precision="ieee")
    else:
        for k in range(0, SPAN, BLOCK_K):
            tile = matrix.load([first_n, split * SPAN + k])
            tokens = tl.load(x_at + k, mask=there[:, None], other=0.0)
            acc = tl.dot(tile, tl.trans(tokens), acc, input_precision="ieee")
    target = ((split * rows + row) * outputs)[None, :] + n[:, None]
    tl.store(parts + target, acc, mask=there[None, :])


def applies(x_TD: Tensor, matrix_ND: Tensor) -> bool:
    """Return whether there are few rows, of the matrix's dtype, on a GPU that loads tiles."""
    return (
        len(x_TD) <= MOST_ROWS
        and x_TD.dtype == matrix_ND.dtype
        and x_TD.is_contiguous()
        and matrix_ND.is_contiguous()
        and gpu_of(x_TD.device).descriptors
    )


def product_parts(x_TD: Tensor, matrix_ND: Tensor, cut: Cut | None = None) -> Tensor:
    """Return float32 parts [S, T, N] whose sum over S is x @ matrixᵀ."""
    rows, (outputs, width) = len(x_TD), matrix_ND.shape
    cut = cut or (FEWEST if rows <= FEWEST_ROWS else Cut())
    block_n, span = divisor(outputs, cut.block_n), divisor(width, cut.span)
    block_k = min(span, cut.block_k)
    parts_STN = torch.empty(width // span, rows, outputs, device=x_TD.device, dtype=torch.float32)
    _few_kernel[(outputs // block_n, width // span)](
        x_TD,
        TensorDescriptor.from_tensor(matrix_ND, [block_n, block_k]),
        parts_STN,
        rows,
        outputs,
        width,
        SPAN=span,
        BLOCK_T=max(16, triton.next_power_of_2(rows)),
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return parts_STN

"""Output layers with a bias, for a head that multiplies hidden states with one matrix and adds nothing.

The bias becomes one more column of the matrix, and every hidden state one more number, a 1. Both are padded
with zeros to a width that the fused head takes. Exact: the sum has one term more.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

STEP = 32
"""Widths are rounded up to a multiple of this (see ``decode.cuda.fused_head.can_fuse``)."""


def with_bias(weight_VC: Tensor, bias_V: Tensor) -> Tensor:
    """Return the matrix with its bias as column C, zeros behind it."""
    padded_VX = functional.pad(weight_VC, (0, _more(weight_VC.shape[1])))
    padded_VX[:, weight_VC.shape[1]] = bias_V
    return padded_VX


def with_one(hidden: Tensor) -> Tensor:
    """Return hidden states [..., C] with a 1 behind them, then zeros: rows for a ``with_bias`` matrix."""
    width = hidden.shape[-1]
    padded = functional.pad(hidden, (0, _more(width)))
    padded[..., width] = 1
    return padded


def _more(width: int) -> int:
    return 1 + (-width - 1) % STEP

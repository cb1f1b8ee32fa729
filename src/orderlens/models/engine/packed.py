"""Products on the CPU: wide matrices packed once into oneDNN's blocks, 16 bits where it has none for them.

Shape letters: R rows, O outputs, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.weak import WeakTensorKeyDictionary

ROWS, NUMBERS, WIDE = range(4, 161), range(2**16, 2**26 + 1), 4
"""Where blocks beat MKL: so many rows, a matrix of so many numbers, so many outputs per input at least."""

_packed: Any = WeakTensorKeyDictionary()
"""Matrix → ((address, version), the same packed); gone with the matrix."""


def _knows(operator: str) -> bool:
    """Return whether oneDNN says that this processor has products of a kind; older torch cannot say."""
    found = getattr(torch.ops.mkldnn, operator, None)
    return found is None or bool(found())


_SUPPORT: dict[torch.dtype, Callable[[], bool]] = {
    torch.bfloat16: cache(lambda: _knows("_is_mkldnn_bf16_supported")),
    torch.float16: cache(lambda: _knows("_is_mkldnn_fp16_supported")),
}
"""Whether products in 16 bits are fast here."""


def linear(x: Tensor, weight_OD: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return x @ weightᵀ + bias as torch does, but for 16 bits on a processor without such products.

    There the operands are widened and the result is rounded, which is how a GPU counts: torch's own loop
    takes some thirty times as long.
    """
    if x.device.type != "cpu" or x.dtype not in _SUPPORT or _SUPPORT[x.dtype]():
        return functional.linear(x, weight_OD, bias_O)
    bias_O = None if bias_O is None else bias_O.float()
    return functional.linear(x.float(), weight_OD.float(), bias_O).to(x.dtype)


def product(x: Tensor, weight_OD: Tensor) -> Tensor:
    """Return x @ weightᵀ, [..., D] to [..., O].

    In float32 on the CPU, without gradients, a wide matrix is packed when it first meets few rows, and kept
    beside itself as long as it lives and stays the same: MKL packs it anew for every product. Give a tensor
    that stays, not a slice made for the call.
    """
    if not can_pack(x, weight_OD):
        return linear(x, weight_OD)
    state = (weight_OD.data_ptr(), weight_OD._version)
    kept = _packed.get(weight_OD)
    if kept is None or kept[0] != state:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight_OD.detach().contiguous(), ROWS.stop)
        kept = _packed[weight_OD] = (state, packed)
    return torch.as_tensor(torch.ops.mkldnn._linear_pointwise(x, kept[1], None, "none", [], ""))


def can_pack(x: Tensor, weight_OD: Tensor) -> bool:
    """Return whether the packed product applies and is worth it."""
    outputs, width = weight_OD.shape
    return (
        not (torch.is_grad_enabled() and (x.requires_grad or weight_OD.requires_grad))
        and x.device.type == "cpu"
        and x.dtype == weight_OD.dtype == torch.float32
        and outputs >= WIDE * width
        and x.numel() // width in ROWS
        and outputs * width in NUMBERS
        and not weight_OD.is_inference()  # such a tensor counts no changes
        and _installed()
    )


def _installed() -> bool:
    has = getattr(torch.ops.mkldnn, "_linear_pointwise", None) is not None
    return has and bool(torch._C._has_mkldnn)

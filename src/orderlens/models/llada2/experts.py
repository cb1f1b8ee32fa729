"""The experts of one layer, in plain torch: a loop over the visited ones, or a grouped matrix product.

The loop runs anywhere, reads memory-mapped experts only when a token needs them, and is what CPU, MPS and
small GPUs use. The grouped product needs CUDA, bf16 and stacked experts. Our own kernels are
``kernels/experts/experts.py``. All three add a token's experts in a fixed order: results do not vary.

Shape letters: T tokens, C model width, K experts per token, A = T·K assignments, E experts, F expert width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.kernels.shapes import StackedExperts
from orderlens.models.engine.layer_parts import swiglu
from orderlens.models.engine.packed import linear
from orderlens.models.llada2.weights import Experts


def loop_over_experts(x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor, experts: Experts) -> Tensor:
    """Return the weighted sum of each token's experts [T, C], visiting one expert after the other."""
    K = ids_TK.shape[1]
    order_A, counts = sort_by_expert(ids_TK, len(experts))
    weight_A = weights_TK.flatten()
    y_TC = torch.zeros(x_TC.shape, device=x_TC.device, dtype=torch.float32)
    start = 0
    for expert, count in enumerate(counts.tolist()):
        if count:
            chosen = order_A[start : start + count]
            rows = chosen // K
            output = expert_output(x_TC[rows], experts, expert)
            y_TC.index_add_(0, rows, output.float() * weight_A[chosen, None])
            start += count
    return y_TC.to(x_TC.dtype)


def expert_output(x_NC: Tensor, experts: Experts, expert: int) -> Tensor:
    """Return one expert's output [N, C]; its matrices come to the tokens' device and dtype if they must."""
    gate_FC, up_FC, down_CF = (part.to(x_NC.device, x_NC.dtype) for part in experts.matrices(expert))
    inner = functional.silu(linear(x_NC, gate_FC)) * linear(x_NC, up_FC)
    return linear(inner, down_CF)


def sort_by_expert(ids_TK: Tensor, n_experts: int) -> tuple[Tensor, Tensor]:
    """Return the assignments ordered by expert [A] and the number of them per expert [E], without a sync."""
    flat_A = ids_TK.flatten()
    counts_E = torch.zeros(n_experts, dtype=torch.int64, device=flat_A.device)
    counts_E.scatter_add_(0, flat_A.long(), torch.ones_like(flat_A, dtype=torch.int64))
    return flat_A.argsort(stable=True), counts_E


def grouped_product(x_TC: Tensor, ids_TK: Tensor, weights_TK: Tensor, experts: StackedExperts) -> Tensor:
    """Return the weighted sum of each token's experts [T, C] by two grouped matrix products."""
    multiply = grouped_mm()
    K = ids_TK.shape[1]
    order_A, counts_E = sort_by_expert(ids_TK, len(experts))
    ends_E = counts_E.cumsum(0).int()
    inner_AF = swiglu(multiply(x_TC[order_A // K], experts.gate_up_EFC.transpose(1, 2), offs=ends_E))
    sorted_AC = multiply(inner_AF, experts.down_ECF.transpose(1, 2), offs=ends_E)
    y_AC = torch.empty_like(sorted_AC)
    y_AC[order_A] = sorted_AC
    y_TKC = y_AC.view(len(x_TC), K, -1).float()
    return torch.sum(y_TKC * weights_TK[..., None], dim=1).to(x_TC.dtype)


def grouped_mm() -> Callable[..., Any]:
    """Return torch's grouped matrix product under whichever name this version has."""
    found = getattr(functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)
    if found is None:
        raise RuntimeError(f"torch {torch.__version__} has no grouped matrix product")
    return found  # type: ignore[no-any-return]


def can_group(x_TC: Tensor, experts: Experts) -> bool:
    """Return whether the grouped product applies."""
    return x_TC.is_cuda and x_TC.dtype == torch.bfloat16 and isinstance(experts, StackedExperts)

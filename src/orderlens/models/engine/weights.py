"""The digest of weights that do not come from a file, and output layers with a bias.

A head multiplies hidden states by one matrix and adds nothing. So a bias of the output layer becomes one more
column of the matrix, and every hidden state is extended by a 1. Both are padded with zeros to a width that
the fused head supports. The result is exact: the sum has one more term.

Shape letters: V vocabulary, C model width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

WIDTH_STEP = 32
"""Widths with a bias column are multiples of this, as ``kernels.head.fused_head.can_fuse`` requires."""


def tensors_digest(weights: Any, settings: object) -> str:
    """Return a digest of all tensors in a state dict or a tree of dataclasses and tuples, and of settings."""
    state = hashlib.blake2b(repr(settings).encode(), digest_size=16)
    for name, tensor in _named(weights, ""):
        state.update(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode())
        state.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).cpu().numpy().tobytes())
    return state.hexdigest()


def _named(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, dict):
        inner = list(value.items())
    elif is_dataclass(value):
        inner = [(field.name, getattr(value, field.name)) for field in fields(value)]
    else:
        inner = list(enumerate(value)) if isinstance(value, list | tuple) else []
    for key, item in inner:
        yield from _named(item, f"{name}.{key}")


def with_bias(weight_VC: Tensor, bias_V: Tensor) -> Tensor:
    """Return the matrix with its bias as column C, followed by zeros."""
    padded_VX = functional.pad(weight_VC, (0, _extra_width(weight_VC.shape[1])))
    padded_VX[:, weight_VC.shape[1]] = bias_V
    return padded_VX


def with_one(hidden: Tensor) -> Tensor:
    """Return hidden states [..., C] followed by a 1, then zeros: the operand of a ``with_bias`` matrix."""
    width = hidden.shape[-1]
    padded = functional.pad(hidden, (0, _extra_width(width)))
    padded[..., width] = 1
    return padded


def _extra_width(width: int) -> int:
    return 1 + (-width - 1) % WIDTH_STEP

"""Protocols for the arguments of kernels: configurations, layers, pages and windows satisfy them.

Needs no Triton. Shape letters: N windows, W width, R rows of the page table, X pages of a row, E experts,
C model width, F expert width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from orderlens.kernels.gpu import divisor, gpu_of

PAGE = 32
"""Positions per page of the key/value cache."""
SIDE = 128
"""Rows and columns of a tile of weights on float8 units."""
SUM_FLOOR = 1e-20
"""Added to the sum of the chosen experts' sigmoids before dividing, as published."""


class HeadShape(Protocol):
    """Heads of a layer and their rotary encoding.

    Attributes:
        n_heads: query heads.
        n_kv_heads: key/value heads; query heads share them in equal groups.
        head_width: numbers per head.
        rotary_width: leading dimensions of a head with rotary encoding.
        max_positions: longest sequence.
        norm_eps: added to a mean square before its root is taken.
    """

    @property
    def n_heads(self) -> int: ...

    @property
    def n_kv_heads(self) -> int: ...

    @property
    def head_width(self) -> int: ...

    @property
    def rotary_width(self) -> int: ...

    @property
    def max_positions(self) -> int: ...

    @property
    def norm_eps(self) -> float: ...


class HeadNorms(Protocol):
    """Norm weights of queries and keys, applied before rotary encoding; None if a model has none.

    Attributes:
        q_norm_D: weights for the queries.
        k_norm_D: weights for the keys.
    """

    @property
    def q_norm_D(self) -> Tensor | None: ...

    @property
    def k_norm_D(self) -> Tensor | None: ...


class CachedPages(Protocol):
    """Keys and values of all layers in pages [K, PAGE, D], and the page table.

    Attributes:
        keys: keys of each layer.
        values: values of each layer.
        table_RX: page numbers of each sequence (int32).
    """

    @property
    def keys(self) -> Sequence[Tensor]: ...

    @property
    def values(self) -> Sequence[Tensor]: ...

    @property
    def table_RX(self) -> Tensor: ...


class WindowBatch(Protocol):
    """Equal-width windows of several sequences.

    Attributes:
        packed_NX: int32 [N, 3 + W]: table row, first position, valid width, then the tokens.
        count: N.
        width: W.
    """

    @property
    def packed_NX(self) -> Tensor: ...

    @property
    def count(self) -> int: ...

    @property
    def width(self) -> int: ...


class RouterShape(Protocol):
    """How a token's experts are chosen: the best experts of the best groups, plus shared experts.

    Attributes:
        n_experts: routed experts.
        n_groups: number of equal groups of routed experts.
        n_kept_groups: number of groups from which a token's experts are chosen.
        n_active: routed experts per token.
        n_shared: experts that every token uses.
        routed_scale: factor on the weights of the chosen experts.
    """

    @property
    def n_experts(self) -> int: ...

    @property
    def n_groups(self) -> int: ...

    @property
    def n_kept_groups(self) -> int: ...

    @property
    def n_active(self) -> int: ...

    @property
    def n_shared(self) -> int: ...

    @property
    def routed_scale(self) -> float: ...


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts of a layer in two tensors, for grouped matrix products."""

    gate_up_EFC: Tensor
    """[E, 2F, C]: gate rows, then up rows; float8 where there are scales."""
    down_ECF: Tensor
    gate_up_scale_EFS: Tensor | None = None
    """[E, 2F, S] float32: S scales per row, each for C / S adjacent columns; None for plain weights."""
    down_scale_ECS: Tensor | None = None
    ordered: bool = False
    """Whether the columns of float8 weights are in order, for float8 matrix units; else ``interleaved``."""

    def __len__(self) -> int:
        return len(self.gate_up_EFC)

    @property
    def is_float8(self) -> bool:
        """Whether the weights are float8 numbers with scales."""
        return self.gate_up_scale_EFS is not None

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate [F, C], up [F, C] and down [C, F] of one expert; scaled ones as float32."""
        gate_up_FC, down_CF = self.gate_up_EFC[expert], self.down_ECF[expert]
        if self.gate_up_scale_EFS is not None and self.down_scale_ECS is not None:
            plain = unscaled if self.ordered else _plain
            gate_up_FC = plain(gate_up_FC, self.gate_up_scale_EFS[expert])
            down_CF = plain(down_CF, self.down_scale_ECS[expert])
        gate_FC, up_FC = gate_up_FC.chunk(2)
        return gate_FC, up_FC, down_CF


def unscaled(values_OC: Tensor, scale_OS: Tensor) -> Tensor:
    """Return float8 values times their scales as float32 [O, C]."""
    wide_OC = values_OC.float()
    return (wide_OC.reshape(*scale_OS.shape, -1) * scale_OS[..., None]).flatten(1)


def on_float8_units(device: torch.device, width: int, expert_width: int, block: int | None) -> bool:
    """Return whether float8 experts of this shape are multiplied on float8 units, so with columns in order.

    Args:
        device: where the weights are.
        width: columns of gate and up.
        expert_width: columns of down.
        block: columns per scale; None for one scale per row.
    """
    step = SIDE if block is None else block
    return gpu_of(device).specialises and not (width % (2 * SIDE) or expert_width % SIDE or step % SIDE)


def run_width(columns: int, n_scales: int) -> int:
    """Return the number of columns that ``interleaved`` reorders together: one step of a product."""
    return divisor(columns // n_scales, 128)


def interleaved(values_OC: Tensor, n_scales: int) -> Tensor:
    """Return a float8 matrix in which columns of the first and second half of each run alternate."""
    run = run_width(values_OC.shape[1], n_scales)
    half = max(run // 2, 1)
    return _transposed_runs(values_OC, run // half, half)


def _plain(values_OC: Tensor, scale_OS: Tensor) -> Tensor:
    """Return interleaved float8 values times their scales as float32 [O, C], columns in order."""
    run = run_width(values_OC.shape[1], scale_OS.shape[1])
    half = max(run // 2, 1)
    return unscaled(_transposed_runs(values_OC, half, run // half), scale_OS)


def _transposed_runs(values_OC: Tensor, rows: int, columns: int) -> Tensor:
    """Return the matrix with every run of rows × columns numbers of a row transposed."""
    bits_OC = values_OC.view(torch.uint8)
    turned = bits_OC.reshape(len(bits_OC), -1, rows, columns).transpose(2, 3)
    return turned.reshape(bits_OC.shape).view(values_OC.dtype)

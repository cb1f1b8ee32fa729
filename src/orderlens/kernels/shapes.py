"""What kernels take of a network and its cache: configurations, layers, pages and windows have these.

Needs no Triton. Shape letters: N windows, W width, R rows of the page table, X pages of a row, E experts,
C model width, F expert width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

PAGE = 32
"""Positions per page of the key/value cache."""
SUM_FLOOR = 1e-20
"""Added to the sum of the chosen experts' sigmoids before dividing, as published."""


class HeadShape(Protocol):
    """Heads of a layer and their rotary encoding."""

    @property
    def n_heads(self) -> int:
        """Query heads."""
        ...

    @property
    def n_kv_heads(self) -> int:
        """Key/value heads; query heads share them in equal groups."""
        ...

    @property
    def head_width(self) -> int:
        """Numbers per head."""
        ...

    @property
    def rotary_width(self) -> int:
        """Leading dimensions of a head that carry the position."""
        ...

    @property
    def max_positions(self) -> int:
        """Longest sequence."""
        ...

    @property
    def norm_eps(self) -> float:
        """Added to a mean square before its root is taken."""
        ...


class HeadNorms(Protocol):
    """Norms over head_width on queries and keys before they are turned; None where a model has none."""

    @property
    def q_norm_D(self) -> Tensor | None:
        """Of the queries."""
        ...

    @property
    def k_norm_D(self) -> Tensor | None:
        """Of the keys."""
        ...


class CachedPages(Protocol):
    """Keys and values of all layers in pages [K, PAGE, D], and the table that finds a sequence's pages."""

    @property
    def keys(self) -> Sequence[Tensor]:
        """Of each layer."""
        ...

    @property
    def values(self) -> Sequence[Tensor]:
        """Of each layer."""
        ...

    @property
    def table_RX(self) -> Tensor:
        """Page numbers of each sequence (int32)."""
        ...


class WindowBatch(Protocol):
    """Equal-width windows of several sequences."""

    @property
    def packed_NX(self) -> Tensor:
        """int32 [N, 3 + W]: table row, first position, valid width, then the tokens."""
        ...

    @property
    def count(self) -> int:
        """N."""
        ...

    @property
    def width(self) -> int:
        """W."""
        ...


class RouterShape(Protocol):
    """How a token's experts are chosen: the best of the best groups, and shared ones that all visit."""

    @property
    def n_experts(self) -> int:
        """Routed experts."""
        ...

    @property
    def n_groups(self) -> int:
        """Equal groups of them."""
        ...

    @property
    def n_kept_groups(self) -> int:
        """Groups among which a token chooses."""
        ...

    @property
    def n_active(self) -> int:
        """Experts that a token chooses."""
        ...

    @property
    def n_shared(self) -> int:
        """Experts that every token visits."""
        ...

    @property
    def routed_scale(self) -> float:
        """Factor on the weights of the chosen experts."""
        ...


@dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts of a layer in two tensors, for grouped matrix products."""

    gate_up_EFC: Tensor
    """[E, 2F, C]: gate rows, then up rows."""
    down_ECF: Tensor

    def __len__(self) -> int:
        return len(self.gate_up_EFC)

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate [F, C], up [F, C] and down [C, F] of one expert."""
        gate_FC, up_FC = self.gate_up_EFC[expert].chunk(2)
        return gate_FC, up_FC, self.down_ECF[expert]

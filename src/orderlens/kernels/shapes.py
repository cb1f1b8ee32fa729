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
    """Heads of a layer and their rotary encoding.

    Attributes:
        n_heads: query heads.
        n_kv_heads: key/value heads; query heads share them in equal groups.
        head_width: numbers per head.
        rotary_width: leading dimensions of a head that carry the position.
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
    """Norms over head_width on queries and keys before they are turned; None where a model has none.

    Attributes:
        q_norm_D: of the queries.
        k_norm_D: of the keys.
    """

    @property
    def q_norm_D(self) -> Tensor | None: ...

    @property
    def k_norm_D(self) -> Tensor | None: ...


class CachedPages(Protocol):
    """Keys and values of all layers in pages [K, PAGE, D], and the table that finds a sequence's pages.

    Attributes:
        keys: of each layer.
        values: of each layer.
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
    """How a token's experts are chosen: the best of the best groups, and shared ones that all visit.

    Attributes:
        n_experts: routed experts.
        n_groups: equal groups of them.
        n_kept_groups: groups among which a token chooses.
        n_active: experts that a token chooses.
        n_shared: experts that every token visits.
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
    """[E, 2F, C]: gate rows, then up rows."""
    down_ECF: Tensor

    def __len__(self) -> int:
        return len(self.gate_up_EFC)

    def matrices(self, expert: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return gate [F, C], up [F, C] and down [C, F] of one expert."""
        gate_FC, up_FC = self.gate_up_EFC[expert].chunk(2)
        return gate_FC, up_FC, self.down_ECF[expert]

"""What the shared parts must know of a network's heads; a family's configuration and layers have these."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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

"""A block-causal DDiT (BD3-LM) over the page pool: the engine's protocol, in plain torch."""

from __future__ import annotations

import torch
from torch import Tensor

from orderlens.models.dit.network import DitNetwork
from orderlens.models.engine.pages import PagePool, attend, store_keys
from orderlens.models.engine.window import Windows


class PagedDit:
    """Windows that see their slot's cached prefix and themselves."""

    gathers = True

    def __init__(self, network: DitNetwork) -> None:
        self.network = network

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its activations."""
        return self.network.dtype

    def splits(self, n_windows: int, longest_start: int) -> int:
        """Return 1: the attention is one piece."""
        del n_windows, longest_start
        return 1

    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        """Return hidden states [T, X]."""
        hidden_NWX = self.network.forward(
            windows.tokens,
            windows.positions,
            lambda index, q, k, v: attend(q, k, v, index, windows, pool),
        )
        return hidden_NWX.flatten(0, 1)

    def store(self, windows: Windows, pool: PagePool) -> None:
        """Cache the windows' keys and values; each layer writes all of them before any window reads."""

        def keep(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            store_keys(k, v, index, windows, pool)
            return attend(q, k, v, index, windows, pool)

        self.network.forward(windows.tokens, windows.positions, keep)

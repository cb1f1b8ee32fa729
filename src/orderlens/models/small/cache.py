"""Keys and values of finished blocks, one slot per sequence. Knows nothing of networks or windows.

Shape letters: S slots, N windows, K key/value heads, L cached positions, W window, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from orderlens.models.protocol import IntArray


class KeyCache:
    """Keys and values [layer][S, K, L, D]; slots shorter than L are padded on the right.

    Attributes:
        lengths_S: cached positions of each slot.
        keys: one tensor per layer.
        values: one tensor per layer.
    """

    def __init__(
        self, lengths_S: IntArray, n_layers: int, kv_heads: int, head_width: int, like: Tensor
    ) -> None:
        shape = (len(lengths_S), kv_heads, int(lengths_S.max(initial=0)), head_width)
        self.lengths_S = lengths_S
        self.keys = [like.new_zeros(shape) for _ in range(n_layers)]
        self.values = [like.new_zeros(shape) for _ in range(n_layers)]

    def reserve(self, length: int, most: int) -> None:
        """Make room for ``length`` positions: by doubling, to at most ``most`` or what is needed."""
        have = self.keys[0].shape[2]
        if have >= length:
            return
        pad = (0, 0, 0, max(length, min(2 * have, most)) - have)
        self.keys = [torch.nn.functional.pad(keys, pad) for keys in self.keys]
        self.values = [torch.nn.functional.pad(values, pad) for values in self.values]

    def append(self, slots_N: IntArray, new: Sequence[tuple[Tensor, Tensor]], most: int) -> None:
        """Write each layer's window keys and values [N, K, W, D] behind what ``slots_N`` hold.

        The slots' lengths stay as they are until ``lengthen``, so that a forward which fails leaves the cache
        usable.
        """
        width = new[0][0].shape[2]
        self.reserve(int((self.lengths_S[slots_N] + width).max()), most)
        slot_N1 = torch.as_tensor(slots_N, device=self.keys[0].device)[:, None]
        place = self.lengths_S[slots_N][:, None] + np.arange(width)
        place_NW = torch.as_tensor(place, device=self.keys[0].device)
        for layer, (k_NKWD, v_NKWD) in enumerate(new):
            self.keys[layer][slot_N1, :, place_NW] = k_NKWD.transpose(1, 2)
            self.values[layer][slot_N1, :, place_NW] = v_NKWD.transpose(1, 2)

    def lengthen(self, slots_N: IntArray, width: int) -> None:
        """Count what was appended."""
        self.lengths_S[slots_N] += width

    def keep(self, slots: IntArray) -> None:
        """Keep (or repeat) the given slots, renumbered in this order."""
        index = torch.as_tensor(slots, device=self.keys[0].device)
        longest = int(self.lengths_S[slots].max(initial=0))
        self.keys = [keys[index, :, :longest] for keys in self.keys]
        self.values = [values[index, :, :longest] for values in self.values]
        self.lengths_S = self.lengths_S[slots]

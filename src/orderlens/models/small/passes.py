"""A session's forwards by the network's own modules: any device, any dtype, any kind of attention.

Shape letters: N windows, W window, L cached positions, R rows, Q rows of a window, H heads, K key/value
heads, D head width, C width.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor

from orderlens.models.protocol import IntArray
from orderlens.models.small.network import Layer, Transformer, attention, revealed_mask
from orderlens.models.small.windows import CachedWindows, WantedRows
from orderlens.models.torch.rotary import rotary_at, rotate

RARE_STARTS = {"cpu": 8, "cuda": 512}
"""Fewer windows than this with one prefix length are batched with others, under a mask: on a GPU one large
masked forward is faster than many small ones."""


class ModulePasses:
    """The forwards of a session in plain torch."""

    def __init__(self, network: Transformer) -> None:
        self._network, self._device = network, network.embedding.weight.device

    def batches(self, slots_N: IntArray, starts_N: IntArray, at_once: int) -> Iterator[IntArray]:
        """Batch windows of one prefix length together, so that they need no mask; mix only the rare ones."""
        del slots_N
        order = np.argsort(starts_N, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(starts_N[order])) + 1)
        few = RARE_STARTS.get(self._device.type, 8)
        rare = [group for group in groups if len(group) < few]
        mixed = [np.concatenate(rare)] if rare else []
        for group in (*(group for group in groups if len(group) >= few), *mixed):
            for low in range(0, len(group), at_once):
                yield group[low : low + at_once]

    def keys(self, windows: CachedWindows) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values [N, K, W, D] of the windows."""
        prefix = _Prefix(windows, self._device)
        new: list[tuple[Tensor, Tensor]] = []

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            new.append((k, v))
            return prefix.attend(layer, q, k, v)

        self._network(self._tensor(windows.tokens_NW), prefix.positions_NW, attend)
        return new

    def rows(self, windows: CachedWindows, wanted: WantedRows) -> Tensor:
        """Return hidden states [R, C] of the wanted rows; the last layer is computed for those alone."""
        prefix = _Prefix(windows, self._device)
        network, config = self._network, self._network.config
        rotary = rotary_at(prefix.positions_NW, config.head_width, config.rope_theta)
        tokens = self._tensor(windows.tokens_NW)
        if config.attention == "permutation":
            prefix.mask = revealed_mask(tokens == config.mask_id)
        x_NWC = network.embedding(tokens)
        for layer in list(network.layers)[:-1]:
            x_NWC = layer(x_NWC, *rotary, prefix.attend)
        return _last_layer_rows(network, x_NWC, rotary, prefix, wanted)

    def _tensor(self, values: IntArray) -> Tensor:
        return torch.as_tensor(values, device=self._device)


class _Prefix:
    """The cached prefixes of a batch of windows: what they attend to besides themselves."""

    def __init__(self, windows: CachedWindows, device: torch.device) -> None:
        starts, width = windows.starts_N, windows.width
        self._cache = windows.cache
        self.longest = int(starts.max(initial=0))  # 0 where nothing is cached: windows are whole canvases
        starts_N = torch.as_tensor(starts, device=device)
        self.positions_NW = starts_N[:, None] + torch.arange(width, device=device)
        self._index = torch.as_tensor(windows.slots_N, device=device)
        self.mask: Tensor | None = None
        if self.longest and (starts != self.longest).any():
            cached_NL = torch.arange(self.longest, device=device) < starts_N[:, None]
            own_NW = torch.ones((len(starts), width), dtype=torch.bool, device=device)
            self.mask = torch.cat([cached_NL, own_NW], dim=1)[:, None, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the windows to their prefixes and themselves."""
        return attention(q, *self.extended(layer, k, v), self.mask)

    def mask_at(self, pick_NQ1: Tensor) -> Tensor | None:
        """Return the mask of some queries of each window, given by their offsets."""
        if self.mask is None or self.mask.shape[-2] == 1:
            return self.mask
        return self.mask[:, 0].gather(1, pick_NQ1.expand(-1, -1, self.mask.shape[-1]))[:, None]

    def extended(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of prefix and window, [N, K, L + W, D]."""
        if not self.longest:
            return k, v
        cached_k = self._cache.keys[layer][:, :, : self.longest].index_select(0, self._index)
        cached_v = self._cache.values[layer][:, :, : self.longest].index_select(0, self._index)
        return torch.cat([cached_k, k], dim=2), torch.cat([cached_v, v], dim=2)


def _last_layer_rows(
    network: Transformer,
    x_NWC: Tensor,
    rotary: tuple[Tensor, Tensor],
    prefix: _Prefix,
    wanted: WantedRows,
) -> Tensor:
    """Run the last layer with all keys but only the wanted queries (padded to the most any window wants)."""
    layer = cast(Layer, network.layers[-1])
    own, device = layer.attention, x_NWC.device
    pick = torch.as_tensor(wanted.offsets(len(x_NWC)), device=device)[..., None]
    normed_NWC = layer.attention_norm(x_NWC)
    n, w, c = normed_NWC.shape
    d = own.head_width
    weight_q, weight_kv = own.qkv.weight[:c], own.qkv.weight[c:]
    kv = (normed_NWC @ weight_kv.T).view(n, w, 2, own.kv_heads, d).permute(2, 0, 3, 1, 4)
    k, v = rotate(own.k_norm(kv[0]), *rotary), kv[1]
    queries_NQC = normed_NWC.gather(1, pick.expand(-1, -1, c))
    q = (queries_NQC @ weight_q.T).view(n, -1, own.n_heads, d).transpose(1, 2)
    cos, sin = (
        table.expand(n, 1, w, -1).gather(2, pick[:, None].expand(-1, 1, -1, d // 2)) for table in rotary
    )
    q = rotate(own.q_norm(q), cos, sin)
    o_NHQD = attention(q, *prefix.extended(own.index, k, v), prefix.mask_at(pick))
    out_NQC = own.out(o_NHQD.transpose(1, 2).reshape(n, -1, c))
    rows = tuple(torch.as_tensor(index, device=device) for index in (wanted.window_R, wanted.place_R))
    x_RC = x_NWC.gather(1, pick.expand(-1, -1, c))[rows] + out_NQC[rows]
    return torch.as_tensor(network.final_norm(x_RC + layer.ffn(layer.ffn_norm(x_RC))))

"""The Session protocol of the bundled transformer: a key cache, and forwards in batches of a fitting size.

Shape letters: S slots, N states, W window, L prefix, R rows, C width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from orderlens.common.machine import keep_freed_memory
from orderlens.models.protocol import HiddenRows, IntArray, StateBatch
from orderlens.models.small.network import Transformer, attention, block_causal_mask
from orderlens.models.small.passes import CachedWindows, KeyCache, window_keys, window_rows

STATES_AT_ONCE = {"cpu": 32, "cuda": 2048}
"""Windows of 32 tokens per forward: they fill the device and stay in its cache (CPU) or memory (GPU)."""


RARE_STARTS = {"cpu": 8, "cuda": 512}
"""Fewer windows than this with one prefix length are batched with others, under a mask: on a GPU one large
masked forward is faster than many small ones."""


class TransformerSession:
    """The Session protocol over a key/value cache."""

    def __init__(self, network: Transformer, block_size: int) -> None:
        self._network, self._block_size = network, block_size
        self._device = self._weight.device
        self._caches = network.config.attention == "block-causal"
        self._cache = self._empty(np.zeros(0, np.int64))
        if self._device.type == "cpu":
            keep_freed_memory()

    @torch.inference_mode()
    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        if not self._caches:
            return
        lengths_S = np.array([len(prefix) for prefix in prefixes], np.int64)
        self._cache = self._empty(lengths_S)
        by_length, size = np.argsort(-lengths_S, kind="stable"), self._at_once(int(lengths_S.max(initial=1)))
        for low in range(0, len(by_length), size):
            members = by_length[low : low + size]
            self._prefill_some([prefixes[i] for i in members], [grid_offsets[i] for i in members], members)

    def _prefill_some(self, prefixes: Sequence[IntArray], offsets: Sequence[int], slots: IntArray) -> None:
        width = max(len(prefix) for prefix in prefixes)
        if not width:
            return
        tokens_SL = np.zeros((len(prefixes), width), np.int64)
        for row, prefix in zip(tokens_SL, prefixes, strict=True):
            row[: len(prefix)] = prefix
        device = self._device
        mask_SLL = torch.stack([block_causal_mask(width, self._block_size, o, device) for o in offsets])

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._cache.keys[layer][slots, :, :width] = k
            self._cache.values[layer][slots, :, :width] = v
            return attention(q, k, v, mask_SLL[:, None])

        positions_SL = torch.arange(width, device=device).expand(len(prefixes), width)
        self._network(torch.as_tensor(tokens_SL, device=device), positions_SL, attend)

    @torch.inference_mode()
    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        width, starts_N = tokens_NW.shape[1], self._cache.lengths_S[slots]
        most = self._network.config.max_positions
        for members in self._batches(starts_N, width):
            windows = CachedWindows(self._cache, slots[members], starts_N[members], tokens_NW[members])
            self._cache.append(slots[members], window_keys(self._network, windows), most)
        self._cache.lengthen(slots, width)

    def keep(self, slots: IntArray) -> None:
        if self._caches:
            self._cache.keep(slots)

    @torch.inference_mode()
    def evaluate(self, states: StateBatch) -> HiddenRows:
        config = self._network.config
        hidden_RC = self._weight.new_empty((len(states.row_state_R), config.width))
        by_state_R = np.argsort(states.row_state_R, kind="stable")
        first_row_N = np.searchsorted(states.row_state_R[by_state_R], np.arange(len(states.slots_N) + 1))
        for members in self._batches(states.starts_N, states.tokens_NW.shape[1]):
            rows = np.concatenate([by_state_R[first_row_N[n] : first_row_N[n + 1]] for n in members])
            if len(rows):
                counts = first_row_N[members + 1] - first_row_N[members]
                windows = CachedWindows(
                    self._cache, states.slots_N[members], states.starts_N[members], states.tokens_NW[members]
                )
                window_R = np.repeat(np.arange(len(members)), counts)
                found_RC = window_rows(self._network, windows, window_R, states.row_offset_R[rows])
                hidden_RC[torch.as_tensor(rows, device=hidden_RC.device)] = found_RC
        return HiddenRows(hidden_RC, self._weight, (config.mask_id,), config.vocab_size)

    def _batches(self, starts_N: IntArray, width: int) -> Iterator[IntArray]:
        """Yield windows of one prefix length together, so that they need no mask; mix only the rare ones."""
        order, at_once = np.argsort(starts_N, kind="stable"), self._at_once(width)
        groups = np.split(order, np.flatnonzero(np.diff(starts_N[order])) + 1)
        few = RARE_STARTS.get(self._device.type, 8)
        rare = [group for group in groups if len(group) < few]
        mixed = [np.concatenate(rare)] if rare else []
        for group in (*(group for group in groups if len(group) >= few), *mixed):
            for low in range(0, len(group), at_once):
                yield group[low : low + at_once]

    @property
    def _weight(self) -> Tensor:
        return self._network.embedding.weight

    def _empty(self, lengths_S: IntArray) -> KeyCache:
        config = self._network.config
        return KeyCache(lengths_S, config.n_layers, config.kv_heads, config.head_width, self._weight)

    def _at_once(self, width: int) -> int:
        return max(1, STATES_AT_ONCE.get(self._device.type, 32) * 32 // max(width, 1))

"""The Session protocol for the small transformer: a key cache, and forwards in batches of a suitable size.

Forwards over cached prefixes use the network's modules, so they run on any device, dtype and attention.

Shape letters: S slots, N states or windows, W window, L cached positions, R rows, Q rows of a window, H
heads, K key/value heads, D head width, C width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from orderlens.common.machine import keep_freed_memory
from orderlens.models.engine.layer_parts import rotary_at, rotate
from orderlens.models.protocol import HiddenRows, IntArray, StateBatch
from orderlens.models.small.network import Layer, Transformer, attention, block_causal_mask, revealed_mask

WINDOWS_PER_FORWARD = {"cpu": 32, "cuda": 2048}
"""Windows of 32 tokens per forward: they fill the device and fit in its cache (CPU) or memory (GPU)."""


RARE_STARTS = {"cpu": 8, "cuda": 512}
"""If fewer windows than this share a prefix length, they are batched with others under a mask: on a GPU one
large masked forward is faster than many small ones."""


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
        by_length, size = (
            np.argsort(-lengths_S, kind="stable"),
            self._windows_per_forward(int(lengths_S.max(initial=1))),
        )
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
        """Yield batches of windows with one prefix length, which need no mask; mix only rare lengths."""
        order, at_once = np.argsort(starts_N, kind="stable"), self._windows_per_forward(width)
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

    def _windows_per_forward(self, width: int) -> int:
        return max(1, WINDOWS_PER_FORWARD.get(self._device.type, 32) * 32 // max(width, 1))


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
        """Reserve ``length`` positions; the size doubles, limited to ``most`` unless more are needed."""
        have = self.keys[0].shape[2]
        if have >= length:
            return
        pad = (0, 0, 0, max(length, min(2 * have, most)) - have)
        self.keys = [torch.nn.functional.pad(keys, pad) for keys in self.keys]
        self.values = [torch.nn.functional.pad(values, pad) for values in self.values]

    def append(self, slots_N: IntArray, new: Sequence[tuple[Tensor, Tensor]], most: int) -> None:
        """Write each layer's window keys and values [N, K, W, D] after the cached positions of ``slots_N``.

        The slots' lengths change only in ``lengthen``, so that a failed forward leaves the cache usable.
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
        """Add the appended positions to the slots' lengths."""
        self.lengths_S[slots_N] += width

    def keep(self, slots: IntArray) -> None:
        """Keep (or repeat) these slots, renumbered in this order."""
        index = torch.as_tensor(slots, device=self.keys[0].device)
        longest = int(self.lengths_S[slots].max(initial=0))
        self.keys = [keys[index, :, :longest] for keys in self.keys]
        self.values = [values[index, :, :longest] for values in self.values]
        self.lengths_S = self.lengths_S[slots]


@dataclass(frozen=True, slots=True)
class CachedWindows:
    """Windows of equal width, each over the first ``starts_N`` cached positions of its slot."""

    cache: KeyCache
    slots_N: IntArray
    starts_N: IntArray
    tokens_NW: IntArray


def window_keys(network: Transformer, windows: CachedWindows) -> list[tuple[Tensor, Tensor]]:
    """Return each layer's keys and values [N, K, W, D] of the windows."""
    prefix = _CachedPrefix(network, windows)
    new: list[tuple[Tensor, Tensor]] = []

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        new.append((k, v))
        return prefix.attend(layer, q, k, v)

    network(prefix.tensor(windows.tokens_NW), prefix.positions_NW, attend)
    return new


def window_rows(
    network: Transformer, windows: CachedWindows, window_R: IntArray, offset_R: IntArray
) -> Tensor:
    """Return hidden states [R, C] of some rows, by window (ascending) and offset in it.

    They are normalised for the output matrix. The last layer is computed for these rows only.
    """
    prefix, config = _CachedPrefix(network, windows), network.config
    rotary = rotary_at(prefix.positions_NW, config.head_width, config.rope_theta)
    tokens = prefix.tensor(windows.tokens_NW)
    if config.attention == "permutation":
        prefix.mask = revealed_mask(tokens == config.mask_id)
    x_NWC = network.embedding(tokens)
    for layer in list(network.layers)[:-1]:
        x_NWC = layer(x_NWC, *rotary, prefix.attend)
    place_R = np.arange(len(window_R)) - np.searchsorted(window_R, window_R)
    offset_NQ = np.zeros((len(x_NWC), int(place_R.max(initial=-1)) + 1), np.int64)
    offset_NQ[window_R, place_R] = offset_R
    rows = (prefix.tensor(window_R), prefix.tensor(place_R))
    return _last_layer_rows(network, x_NWC, rotary, prefix, prefix.tensor(offset_NQ)[..., None], rows)


class _CachedPrefix:
    """The cached prefixes of a batch of windows, and attention to them."""

    def __init__(self, network: Transformer, windows: CachedWindows) -> None:
        starts, slots, width = windows.starts_N, windows.slots_N, windows.tokens_NW.shape[1]
        self._cache, self._device = windows.cache, network.embedding.weight.device
        self.longest = int(starts.max(initial=0))  # 0 if nothing is cached: windows are whole canvases
        starts_N, same_start = self.tensor(starts), bool((starts == self.longest).all())
        different_N = starts_N[:1] if same_start else starts_N
        self.positions_NW = different_N[:, None] + torch.arange(width, device=self._device)
        self.mask: Tensor | None = None
        if self.longest and not same_start:
            cached_NL = torch.arange(self.longest, device=self._device) < starts_N[:, None]
            own_NW = torch.ones((len(starts), width), dtype=torch.bool, device=self._device)
            self.mask = torch.cat([cached_NL, own_NW], dim=1)[:, None, None]
        at_end = bool(self.longest) and bool((windows.cache.lengths_S[slots] == self.longest).all())
        self._in_place = same_start and at_end and bool((np.diff(slots) == 1).all())
        self._slots = slice(int(slots[0]), int(slots[0]) + len(slots))
        self._index, self._room = self.tensor(slots), self.longest + width
        self._copies: list[Tensor] = []
        if self._in_place:
            self._cache.reserve(self._room, network.config.max_positions)

    def tensor(self, values: IntArray) -> Tensor:
        """Return the numbers on the network's device."""
        return torch.as_tensor(values, device=self._device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the windows to their prefixes and themselves."""
        return attention(q, *self.with_prefix(layer, k, v), self.mask)

    def mask_at(self, pick_NQ1: Tensor) -> Tensor | None:
        """Return the mask of some queries of each window, selected by their offsets."""
        if self.mask is None or self.mask.shape[-2] == 1:
            return self.mask
        return self.mask[:, 0].gather(1, pick_NQ1.expand(-1, -1, self.mask.shape[-1]))[:, None]

    def with_prefix(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of prefix and window, [N, K, L + W, D]; valid until the next call.

        Windows of neighbouring slots that start at the end of their slots are written into the unused part of
        the cache. For other windows the prefix is copied.
        """
        if not self.longest:
            return k, v
        cached = (self._cache.keys[layer], self._cache.values[layer])
        if self._in_place:
            both = [part[self._slots, :, : self._room] for part in cached]
        else:
            shape = (len(k), k.shape[1], self._room, k.shape[3])
            both = self._copies = self._copies or [k.new_empty(shape) for _ in cached]
            for copy, part in zip(both, cached, strict=True):
                torch.index_select(part[:, :, : self.longest], 0, self._index, out=copy[:, :, : self.longest])
        for into, new in zip(both, (k, v), strict=True):
            into[:, :, self.longest :] = new
        return both[0], both[1]


def _last_layer_rows(
    network: Transformer,
    x_NWC: Tensor,
    rotary: tuple[Tensor, Tensor],
    prefix: _CachedPrefix,
    pick_NQ1: Tensor,
    rows: tuple[Tensor, Tensor],
) -> Tensor:
    """Run the last layer with all keys but only the selected queries; return its outputs at ``rows``."""
    layer = cast(Layer, network.layers[-1])
    own = layer.attention
    normed_NWC = layer.attention_norm(x_NWC)
    n, w, c = normed_NWC.shape
    d = own.head_width
    weight_q, weight_kv = own.qkv.weight[:c], own.qkv.weight[c:]
    kv = (normed_NWC @ weight_kv.T).view(n, w, 2, own.kv_heads, d).permute(2, 0, 3, 1, 4)
    k, v = rotate(own.k_norm(kv[0]), *rotary), kv[1]
    queries_NQC = normed_NWC.gather(1, pick_NQ1.expand(-1, -1, c))
    q = (queries_NQC @ weight_q.T).view(n, -1, own.n_heads, d).transpose(1, 2)
    cos, sin = (
        table.expand(n, 1, w, -1).gather(2, pick_NQ1[:, None].expand(-1, 1, -1, d // 2)) for table in rotary
    )
    q = rotate(own.q_norm(q), cos, sin)
    o_NHQD = attention(q, *prefix.with_prefix(own.index, k, v), prefix.mask_at(pick_NQ1))
    out_NQC = own.out(o_NHQD.transpose(1, 2).reshape(n, -1, c))
    x_RC = x_NWC.gather(1, pick_NQ1.expand(-1, -1, c))[rows] + out_NQC[rows]
    return torch.as_tensor(network.final_norm(layer.ffn(layer.ffn_norm(x_RC), x_RC)))

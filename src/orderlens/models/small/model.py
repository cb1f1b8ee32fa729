"""The bundled transformer as a Model: plain forwards for inspection, cached sessions for decoding.

Block-causal networks keep keys and values of finished blocks, so a state costs one window. Full-attention
networks (the same layers without the block mask) keep nothing and see whole canvases.

Shape letters: S slots, N states, W window, L cached positions, R rows, H heads, K key/value heads,
D head width, C width.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor

from orderlens.errors import UserInputError
from orderlens.models.chat import ChatTemplate
from orderlens.models.protocol import Anchor, FloatArray, HiddenRows, IntArray, StateBatch, Tokenizer
from orderlens.models.small.network import (
    Layer,
    Transformer,
    attention,
    block_causal_mask,
    revealed_mask,
)
from orderlens.models.torch.device import pick_dtype
from orderlens.models.torch.rotary import rotary_at, rotate

STATES_AT_ONCE = {"cpu": 32, "cuda": 2048}
"""Windows per forward: enough to fill the device, small enough to stay in cache (CPU) or memory (GPU)."""


RARE_STARTS = {"cpu": 8, "cuda": 512}
"""Fewer states than this with one prefix length are batched with others, under a mask: on a GPU one large
masked forward is faster than many small ones."""


class TransformerModel:
    """The Model protocol around a :class:`Transformer`."""

    anchor: Anchor = "zero"
    precision: Literal["float32"] = "float32"

    def __init__(
        self,
        network: Transformer,
        tokenizer: Tokenizer,
        *,
        name: str,
        digest: str,
        special_ids: frozenset[int] = frozenset(),
        eos_ids: frozenset[int] = frozenset(),
        chat: ChatTemplate | None = None,
        block_size: int | None = None,
    ) -> None:
        if network.config.attention == "causal":
            raise UserInputError(f"{name} is autoregressive: it has no reveal orders; use it as an evaluator")
        self.network = network.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.name, self.digest, self.special_ids = name, digest, special_ids
        self.block_size = network.config.block_size if block_size is None else block_size
        if not 1 <= self.block_size <= network.config.max_positions:
            raise UserInputError(
                f"block_size={block_size} must lie between 1 and {network.config.max_positions}"
            )
        self.permuted = network.config.attention == "permutation"
        self.attention: Literal["block-causal", "full"] = (
            "block-causal" if network.config.attention == "block-causal" else "full"
        )
        self.vocab_size = network.config.vocab_size
        self.mask_id = network.config.mask_id
        self.eos_ids = eos_ids or frozenset({network.config.eos_id})
        self.chat = chat
        self.max_positions = network.config.max_positions

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.network.embedding.weight.device

    def with_block_size(self, block_size: int) -> TransformerModel:
        """Return this network on another block grid (it was trained on its own; expect worse likelihoods)."""
        return self._like(self.network, self.digest, block_size)

    def with_dtype(self, name: str) -> TransformerModel:
        """Return a copy whose weights and activations have another dtype (``"bfloat16"``, ``"float32"``)."""
        network = copy.deepcopy(self.network).to(pick_dtype(name, torch.float32))
        return self._like(network, f"{self.digest}-{name}", self.block_size)

    def _like(self, network: Transformer, digest: str, block_size: int) -> TransformerModel:
        return TransformerModel(
            network,
            self.tokenizer,
            name=self.name,
            digest=digest,
            special_ids=self.special_ids,
            eos_ids=self.eos_ids,
            chat=self.chat,
            block_size=block_size,
        )

    def log_probs(self, tokens: Sequence[int], grid_offset: int = 0) -> FloatArray:
        """Return normalised log-probabilities [L, V]: one plain forward of the whole sequence."""
        if not len(tokens):
            return np.empty((0, self.vocab_size))
        with torch.inference_mode():
            ids_BT = torch.tensor([list(tokens)], device=self.device)
            positions_BT = torch.arange(ids_BT.shape[1], device=self.device)[None]
            mask = self._mask(ids_BT, grid_offset)
            hidden_BTC = self.network(ids_BT, positions_BT, lambda _, q, k, v: attention(q, k, v, mask))
            logits_TV = hidden_BTC[0].float() @ self.network.embedding.weight.T.float()
            logits_TV[:, self.mask_id] = -torch.inf
            return torch.log_softmax(logits_TV, dim=1).double().cpu().numpy()

    def _mask(self, ids_BT: Tensor, grid_offset: int) -> Tensor | None:
        if self.permuted:
            return revealed_mask(ids_BT == self.mask_id)
        if self.attention == "full":
            return None
        return block_causal_mask(ids_BT.shape[1], self.block_size, grid_offset, self.device)

    def open_session(self) -> TransformerSession:
        """Return a session without slots."""
        return TransformerSession(self)


class TransformerSession:
    """The Session protocol over a key/value cache [layer][S, K, L, D]."""

    def __init__(self, model: TransformerModel) -> None:
        self._model = model
        self._network = model.network
        self._lengths_S = np.zeros(0, np.int64)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @torch.inference_mode()
    def prefill(self, prefixes: Sequence[IntArray], grid_offsets: Sequence[int]) -> None:
        """Cache the keys and values of every prefix, short ones padded on the right."""
        if self._model.attention == "full":
            return
        self._lengths_S = np.array([len(prefix) for prefix in prefixes])
        config, width = self._network.config, int(self._lengths_S.max(initial=0))
        shape = (len(prefixes), config.kv_heads, width, config.head_width)
        weight = self._network.embedding.weight
        self._keys = [weight.new_zeros(shape) for _ in range(config.n_layers)]
        self._values = [weight.new_zeros(shape) for _ in range(config.n_layers)]
        for members in self._batches(np.argsort(-self._lengths_S, kind="stable"), max(width, 1)):
            self._prefill_some([prefixes[i] for i in members], [grid_offsets[i] for i in members], members)

    def _prefill_some(self, prefixes: Sequence[IntArray], offsets: Sequence[int], slots: IntArray) -> None:
        width = max(len(prefix) for prefix in prefixes)
        if not width:
            return
        tokens_SL = np.zeros((len(prefixes), width), np.int64)
        for row, prefix in zip(tokens_SL, prefixes, strict=True):
            row[: len(prefix)] = prefix
        mask_SLL = torch.stack(
            [block_causal_mask(width, self._model.block_size, o, self._device) for o in offsets]
        )

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._keys[layer][slots, :, :width] = k
            self._values[layer][slots, :, :width] = v
            return attention(q, k, v, mask_SLL[:, None])

        positions_SL = torch.arange(width, device=self._device).expand(len(prefixes), width)
        self._network(torch.as_tensor(tokens_SL, device=self._device), positions_SL, attend)

    @torch.inference_mode()
    def extend(self, slots: IntArray, tokens_NW: IntArray) -> None:
        """Append one finished block to each slot; its keys come from a forward of the final tokens."""
        width = tokens_NW.shape[1]
        starts_N = self._lengths_S[slots]
        self._reserve(int((starts_N + width).max()))
        for members in self._batches(np.arange(len(slots)), width):
            new = self._window_pass(slots[members], starts_N[members], tokens_NW[members])
            slot_N1 = self._tensor(slots[members])[:, None]
            place_NW = self._tensor(starts_N[members][:, None] + np.arange(width))
            for layer, (k_NHWD, v_NHWD) in enumerate(new):
                self._keys[layer][slot_N1, :, place_NW] = k_NHWD.transpose(1, 2)
                self._values[layer][slot_N1, :, place_NW] = v_NHWD.transpose(1, 2)
        self._lengths_S[slots] += width

    def keep(self, slots: IntArray) -> None:
        """Keep (or repeat) the given slots, renumbered in this order."""
        if self._model.attention == "full":
            return
        index = torch.as_tensor(slots, device=self._device)
        longest = int(self._lengths_S[slots].max(initial=0))
        self._keys = [keys[index, :, :longest] for keys in self._keys]
        self._values = [values[index, :, :longest] for values in self._values]
        self._lengths_S = self._lengths_S[slots]

    @torch.inference_mode()
    def evaluate(self, states: StateBatch) -> HiddenRows:
        """Return hidden states of the wanted rows; states with equal prefixes are evaluated together."""
        hidden_RC = self._network.embedding.weight.new_empty(
            (len(states.row_state_R), self._network.config.width)
        )
        rows_of = np.argsort(states.row_state_R, kind="stable")
        first_row_N = np.searchsorted(states.row_state_R[rows_of], np.arange(len(states.slots_N) + 1))
        for members in self._batches_by_start(states.starts_N, states.tokens_NW.shape[1]):
            rows = np.concatenate([rows_of[first_row_N[n] : first_row_N[n + 1]] for n in members])
            if len(rows):
                local = np.searchsorted(members[np.argsort(members)], states.row_state_R[rows])
                local = np.argsort(members)[local]
                hidden_RC[torch.as_tensor(rows, device=self._device)] = self._rows_pass(
                    states.slots_N[members],
                    states.starts_N[members],
                    states.tokens_NW[members],
                    local,
                    states.row_offset_R[rows],
                )
        config = self._network.config
        return HiddenRows(hidden_RC, self._network.embedding.weight, (config.mask_id,), config.vocab_size)

    @property
    def _device(self) -> torch.device:
        return self._model.device

    def _batches(self, members: IntArray, width: int) -> Iterator[IntArray]:
        budget = STATES_AT_ONCE.get(self._device.type, 32) * 32
        size = max(1, budget // width)
        for low in range(0, len(members), size):
            yield members[low : low + size]

    def _batches_by_start(self, starts_N: IntArray, width: int) -> Iterator[IntArray]:
        """Batch states of one prefix length together, so that they need no mask; mix only the rare ones."""
        order = np.argsort(starts_N, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(starts_N[order])) + 1)
        few = RARE_STARTS.get(self._device.type, 8)
        rare = [group for group in groups if len(group) < few]
        for group in groups:
            if len(group) >= few:
                yield from self._batches(group, width)
        if rare:
            yield from self._batches(np.concatenate(rare), width)

    def _reserve(self, length: int) -> None:
        """Grow the cache, doubling, so that ``length`` positions fit."""
        have = self._keys[0].shape[2]
        if have >= length:
            return
        grown = max(length, min(2 * have, self._model.max_positions))
        pad = (0, 0, 0, grown - have)
        self._keys = [torch.nn.functional.pad(keys, pad) for keys in self._keys]
        self._values = [torch.nn.functional.pad(values, pad) for values in self._values]

    def _window_pass(
        self, slots: IntArray, starts: IntArray, tokens_NW: IntArray
    ) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's window keys and values [N, K, W, D]."""
        prefix = _Prefix(self, slots, starts, tokens_NW.shape[1])
        new: list[tuple[Tensor, Tensor]] = []

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            new.append((k, v))
            return prefix.attend(layer, q, k, v)

        self._network(self._tensor(tokens_NW), prefix.positions_NW, attend)
        return new

    def _rows_pass(
        self,
        slots: IntArray,
        starts: IntArray,
        tokens_NW: IntArray,
        row_state: IntArray,
        row_offset: IntArray,
    ) -> Tensor:
        """Return hidden states [R, C] of the wanted rows; the last layer is computed for those alone."""
        prefix = _Prefix(self, slots, starts, tokens_NW.shape[1])
        network, config = self._network, self._network.config
        cos, sin = rotary_at(prefix.positions_NW, config.head_width, config.rope_theta)
        tokens = self._tensor(tokens_NW)
        if self._model.permuted:
            prefix.mask = revealed_mask(tokens == config.mask_id)
        x_NWC = network.embedding(tokens)
        for layer in list(network.layers)[:-1]:
            x_NWC = layer(x_NWC, cos, sin, prefix.attend)
        return _last_layer_rows(network, x_NWC, (cos, sin), prefix, row_state, row_offset)

    def _tensor(self, values: IntArray) -> Tensor:
        return torch.as_tensor(values, device=self._device)


class _Prefix:
    """The cached prefix of a batch of states: what their windows attend to besides themselves."""

    def __init__(self, session: TransformerSession, slots: IntArray, starts: IntArray, width: int) -> None:
        self._session, self._slots = session, slots
        self._blockwise = session._model.attention == "block-causal"
        self.longest = int(starts.max(initial=0)) if self._blockwise else 0
        device = session._device
        starts_N = torch.as_tensor(starts, device=device)
        self.positions_NW = starts_N[:, None] + torch.arange(width, device=device)
        self._index = torch.as_tensor(slots, device=device)
        self.mask: Tensor | None = None
        if self.longest and (starts != self.longest).any():
            cached_NL = torch.arange(self.longest, device=device) < starts_N[:, None]
            own_NW = torch.ones((len(slots), width), dtype=torch.bool, device=device)
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
        cached_k = self._session._keys[layer][:, :, : self.longest].index_select(0, self._index)
        cached_v = self._session._values[layer][:, :, : self.longest].index_select(0, self._index)
        return torch.cat([cached_k, k], dim=2), torch.cat([cached_v, v], dim=2)


def _last_layer_rows(
    network: Transformer,
    x_NWC: Tensor,
    rotary: tuple[Tensor, Tensor],
    prefix: _Prefix,
    row_state: IntArray,
    row_offset: IntArray,
) -> Tensor:
    """Run the last layer with all keys but only the wanted queries (padded to the most any state wants)."""
    layer = cast(Layer, network.layers[-1])
    own, device = layer.attention, x_NWC.device
    in_state = np.argsort(np.argsort(row_state, kind="stable"), kind="stable") - np.searchsorted(
        np.sort(row_state), row_state
    )
    offset_NQ = np.zeros((len(x_NWC), int(in_state.max()) + 1), np.int64)
    offset_NQ[row_state, in_state] = row_offset
    pick = torch.as_tensor(offset_NQ, device=device)[..., None]
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
    rows = (torch.as_tensor(row_state, device=device), torch.as_tensor(in_state, device=device))
    x_RC = x_NWC.gather(1, pick.expand(-1, -1, c))[rows] + out_NQC[rows]
    return torch.as_tensor(network.final_norm(x_RC + layer.ffn(layer.ffn_norm(x_RC))))

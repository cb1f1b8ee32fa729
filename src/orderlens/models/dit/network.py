"""The network of a DDiT: its published tensors, and the forward from token windows to hidden states.

The bias of the output layer becomes a column of the output matrix, and every hidden state ends with a 1
(``models.engine.layer_parts``). The noise embedding stays in float32, as published.

The embedded noise level shifts, scales and gates every layer's norms. The caller defines attention: each
layer passes its queries, keys and values to an ``attend`` callable.

A state with m of n positions masked gets the level σ at which absorbing noise masks that share of positions
on average: 1 − e^(−σ) = m / n, clamped to the levels of the model's schedule. Networks without time
conditioning use σ = 0 at every state; its embedding still enters all their layers.

Shape letters: N windows, W width, T = N·W tokens, V vocabulary, C model width, H heads, D head width, F
feed-forward width, K width of the noise embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.models.dit.config import FEED_FORWARD, FREQUENCIES, ROPE_THETA, DitConfig
from orderlens.models.engine.layer_parts import rotary_tables, rotate, with_bias, with_one
from orderlens.models.engine.pages import PagePool, attend, store_keys
from orderlens.models.engine.transfer import Windows
from orderlens.models.files.checkpoint import Checkpoint

EMBEDDING = "vocab_embed.embedding"


@dataclass(frozen=True, slots=True)
class DitLinear:
    """A matrix [out, in] and its bias [out]."""

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product, in the matrix's dtype."""
        return torch.nn.functional.linear(x.to(self.weight.dtype), self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class DitLayer:
    """One layer; ``modulation`` gives shift, scale and gate of both halves [6 C]."""

    norm1_C: Tensor
    qkv: DitLinear
    out: DitLinear
    norm2_C: Tensor
    up: DitLinear
    down: DitLinear
    modulation: DitLinear


@dataclass(frozen=True, slots=True)
class DitWeights:
    """All tensors, on one device; ``unembed_VX`` is the output matrix with the bias as a column."""

    embedding_VC: Tensor
    noise_in: DitLinear
    noise_out: DitLinear
    layers: tuple[DitLayer, ...]
    final_norm_C: Tensor
    final_modulation: DitLinear
    unembed_VX: Tensor


def expected_shapes(config: DitConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every published tensor, without the prefix."""
    V, C, K, F = config.vocab_size, config.width, config.cond_width, FEED_FORWARD * config.width
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (V, C), "output_layer.norm_final.weight": (C,)}
    shapes |= _linear("sigma_map.mlp.0", K, FREQUENCIES) | _linear("sigma_map.mlp.2", K, K)
    shapes |= _linear("output_layer.linear", V, C) | _linear("output_layer.adaLN_modulation", 2 * C, K)
    for index in range(config.n_layers):
        layer = f"blocks.{index}."
        shapes |= {
            layer + "norm1.weight": (C,),
            layer + "attn_qkv.weight": (3 * C, C),
            layer + "attn_out.weight": (C, C),
            layer + "norm2.weight": (C,),
            **_linear(layer + "mlp.0", F, C),
            **_linear(layer + "mlp.2", C, F),
            **_linear(layer + "adaLN_modulation", 6 * C, K),
        }
    return shapes


def check_tensors(checkpoint: Checkpoint, config: DitConfig) -> None:
    """Refuse tensors that are missing or unknown, or of a wrong shape or dtype; buffers may be missing."""
    buffers: dict[str, tuple[int, ...]] = {
        config.prefix + "rotary_emb.inv_freq": (config.head_width // 2,),
        "sampling_eps_min": (),
        "sampling_eps_max": (),
    }
    expected = {config.prefix + name: shape for name, shape in expected_shapes(config).items()}
    checkpoint.check(expected | buffers, "a DDiT of this shape", buffers)


def load_weights(
    checkpoint: Checkpoint, config: DitConfig, device: torch.device, dtype: torch.dtype
) -> DitWeights:
    """Return the tensors on ``device`` in ``dtype``."""

    def read(name: str, kind: torch.dtype = dtype) -> Tensor:
        return checkpoint.tensor(config.prefix + name).to(device, kind)

    def linear(name: str, kind: torch.dtype = dtype) -> DitLinear:
        return DitLinear(read(name + ".weight", kind), read(name + ".bias", kind))

    def layer(prefix: str) -> DitLayer:
        return DitLayer(
            norm1_C=read(prefix + "norm1.weight"),
            qkv=DitLinear(read(prefix + "attn_qkv.weight")),
            out=DitLinear(read(prefix + "attn_out.weight")),
            norm2_C=read(prefix + "norm2.weight"),
            up=linear(prefix + "mlp.0"),
            down=linear(prefix + "mlp.2"),
            modulation=linear(prefix + "adaLN_modulation"),
        )

    head = linear("output_layer.linear")
    assert head.bias is not None
    return DitWeights(
        embedding_VC=read(EMBEDDING),
        noise_in=linear("sigma_map.mlp.0", torch.float32),
        noise_out=linear("sigma_map.mlp.2", torch.float32),
        layers=tuple(layer(f"blocks.{index}.") for index in range(config.n_layers)),
        final_norm_C=read("output_layer.norm_final.weight"),
        final_modulation=linear("output_layer.adaLN_modulation"),
        unembed_VX=with_bias(head.weight, head.bias),
    )


def _linear(name: str, rows: int, columns: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


PERIOD = 10000.0


def matched_sigma(masked_NW: Tensor, sigmas: tuple[float, float]) -> Tensor:
    """Return each state's noise level [N]: the one that masks the same share of positions on average."""
    share_N = masked_NW.float().mean(dim=1)
    return (-torch.log1p(-share_N)).clamp(*sigmas)


def embed_sigma(sigma_N: Tensor, first: DitLinear, second: DitLinear) -> Tensor:
    """Return the vectors [N, K] that modulate every norm, in float32."""
    half = FREQUENCIES // 2
    steps = torch.arange(half, dtype=torch.float32, device=sigma_N.device)
    angle_NF = sigma_N[:, None].float() * torch.exp(-math.log(PERIOD) * steps / half)
    waves_NF = torch.cat((angle_NF.cos(), angle_NF.sin()), dim=1)
    silu = torch.nn.functional.silu
    return silu(second(silu(first(waves_NF))))


Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer index, q_NHWD, k_NHWD, v_NHWD) -> o_NHWD."""


class DitNetwork:
    """The network: its weights and its shape."""

    def __init__(self, weights: DitWeights, config: DitConfig) -> None:
        self.weights, self.config = weights, config
        self._cos, self._sin = rotary_tables(
            config.head_width, ROPE_THETA, config.max_positions, self.device, self.dtype
        )

    @property
    def device(self) -> torch.device:
        return self.weights.embedding_VC.device

    @property
    def dtype(self) -> torch.dtype:
        return self.weights.embedding_VC.dtype

    @torch.no_grad()
    def forward(self, tokens_NW: Tensor, positions_NW: Tensor, attend: Attend) -> Tensor:
        """Return hidden states for the output matrix [N, W, X], extended by a 1 for its bias."""
        weights = self.weights
        condition_NK = embed_sigma(self._sigma(tokens_NW), weights.noise_in, weights.noise_out).to(self.dtype)
        places = positions_NW.clamp_max(self.config.max_positions - 1)  # padding may exceed the tables
        rotary = (self._cos[places][:, None], self._sin[places][:, None])
        x_NWC = functional.embedding(tokens_NW, weights.embedding_VC)
        for index, layer in enumerate(weights.layers):
            x_NWC = self._layer(x_NWC, condition_NK, rotary, layer, lambda *qkv, i=index: attend(i, *qkv))
        shift, scale = weights.final_modulation(condition_NK)[:, None].chunk(2, dim=2)
        return with_one(norm(x_NWC, weights.final_norm_C) * (1 + scale) + shift)

    def canvas(self, tokens_NW: Tensor) -> Tensor:
        positions_NW = torch.arange(tokens_NW.shape[1], device=self.device).expand(tokens_NW.shape)
        return self.forward(
            tokens_NW, positions_NW, lambda _, q, k, v: functional.scaled_dot_product_attention(q, k, v)
        )

    def _sigma(self, tokens_NW: Tensor) -> Tensor:
        """Return the noise level of every state [N], or one level for all [1]."""
        if self.config.sigmas is None:
            return torch.zeros(1, device=self.device)
        return matched_sigma(tokens_NW == self.config.mask_id, self.config.sigmas)

    def _layer(
        self,
        x_NWC: Tensor,
        condition_NK: Tensor,
        rotary: tuple[Tensor, Tensor],
        layer: DitLayer,
        attend: Callable[..., Tensor],
    ) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = layer.modulation(condition_NK)[:, None].chunk(6, dim=2)
        h_NWC = norm(x_NWC, layer.norm1_C) * (1 + scale1) + shift1
        heads = layer.qkv(h_NWC).view(*x_NWC.shape[:2], 3, self.config.n_heads, -1).permute(2, 0, 3, 1, 4)
        o_NHWD = attend(rotate(heads[0], *rotary), rotate(heads[1], *rotary), heads[2])
        x_NWC = x_NWC + gate1 * layer.out(o_NHWD.transpose(1, 2).flatten(2))
        h_NWC = norm(x_NWC, layer.norm2_C) * (1 + scale2) + shift2
        return x_NWC + gate2 * layer.down(functional.gelu(layer.up(h_NWC), approximate="tanh"))


def norm(x: Tensor, weight_C: Tensor) -> Tensor:
    """Return the layer norm without bias, computed in float32."""
    return functional.layer_norm(x.float(), weight_C.shape).to(x.dtype) * weight_C


class PagedDit:
    """Runs windows that see their slot's cached prefix and themselves."""

    gathers = True

    def __init__(self, network: DitNetwork) -> None:
        self.network = network

    @property
    def device(self) -> torch.device:
        return self.network.device

    @property
    def dtype(self) -> torch.dtype:
        return self.network.dtype

    def splits(self, n_windows: int, longest_start: int) -> int:
        del n_windows, longest_start
        return 1

    def hidden(self, windows: Windows, pool: PagePool) -> Tensor:
        hidden_NWX = self.network.forward(
            windows.tokens,
            windows.positions,
            lambda index, q, k, v: attend(q, k, v, index, windows, pool),
        )
        return hidden_NWX.flatten(0, 1)

    def store(self, windows: Windows, pool: PagePool) -> None:

        def keep(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            store_keys(k, v, index, windows, pool)
            return attend(q, k, v, index, windows, pool)

        self.network.forward(windows.tokens, windows.positions, keep)

"""The small transformer of ``tiny`` and ``smol``: its shape (``config.json``) and its layers.

RMSNorm, RoPE, SwiGLU, tied embeddings. QK-norm (``tiny``) and grouped keys and values (``smol``) are options
of the shape.

The caller defines attention: every layer passes its queries, keys and values to an ``attend`` callable.
Training, the cached decoder and the plain reference differ only in that callable.

Shape letters: B batch, T tokens, H query heads, K key/value heads, D head width, C model width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from orderlens.models.engine.layer_parts import (
    fused_rms_norm,
    is_cpu_inference,
    packed_linear,
    rotary_at,
    rotate,
)
from orderlens.models.files.configfile import CONFIG, MAX_CONTEXT, MAX_LAYERS, ConfigValues

MODEL_TYPE = "orderlens"
Attention: TypeAlias = Literal["block-causal", "full", "permutation", "causal"]


@dataclass(frozen=True, slots=True)
class TransformerConfig:
    """Shape of the network.

    Attributes:
        attention: the attention of its training; causal for autoregressive models, permutation for full
            attention in which only a hidden position itself sees that position.
        n_kv_heads: number of key/value heads, each shared by a group of query heads; 0 for ``n_heads``.
        qk_norm: whether queries and keys are normalised per head before the rotary encoding.
    """

    vocab_size: int = 8192
    n_layers: int = 12
    width: int = 384
    n_heads: int = 6
    ffn_width: int = 1024
    block_size: int = 32
    max_positions: int = 16384 + 2048
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    attention: Attention = "block-causal"
    mask_id: int = 0
    eos_id: int = 1
    n_kv_heads: int = 0
    qk_norm: bool = True

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads."""
        return self.n_kv_heads or self.n_heads

    @property
    def head_width(self) -> int:
        """Width of one attention head."""
        return self.width // self.n_heads


def parse_config(record: Mapping[str, Any], source: str = CONFIG) -> TransformerConfig:
    """Return the checked shape that a ``config.json`` describes.

    Raises:
        ModelLoadError: names the file and the first invalid value.
    """
    values, default = ConfigValues(record, source), TransformerConfig()
    if record.get("model_type") != MODEL_TYPE:
        raise values.error(f"model_type is {record.get('model_type')!r}, expected {MODEL_TYPE!r}")
    vocab_size = values.integer("vocab_size", default.vocab_size, low=2)
    max_positions = values.integer("max_positions", default.max_positions, high=MAX_CONTEXT)
    attention = values.choice("attention", get_args(Attention), default.attention)
    config = TransformerConfig(
        vocab_size=vocab_size,
        n_layers=values.integer("n_layers", default.n_layers, high=MAX_LAYERS),
        width=values.integer("width", default.width),
        n_heads=values.integer("n_heads", default.n_heads),
        ffn_width=values.integer("ffn_width", default.ffn_width),
        block_size=values.integer("block_size", default.block_size, high=max_positions),
        max_positions=max_positions,
        rope_theta=values.number("rope_theta", default.rope_theta),
        norm_eps=values.number("norm_eps", default.norm_eps),
        attention=cast(Attention, attention),
        mask_id=values.token("mask_id", vocab_size, default.mask_id),
        eos_id=values.token("eos_id", vocab_size, default.eos_id),
        n_kv_heads=values.integer("n_kv_heads", default.n_kv_heads, low=0),
        qk_norm=values.flag("qk_norm", default.qk_norm),
    )
    _check(config, values)
    return config


def _check(config: TransformerConfig, values: ConfigValues) -> None:
    """Refuse values that do not fit together."""
    rules = {
        "width must be a multiple of n_heads": config.width % config.n_heads == 0,
        "width / n_heads must be even (rotary encoding)": config.head_width % 2 == 0,
        "n_heads must be a multiple of n_kv_heads": config.n_heads % config.kv_heads == 0,
        "mask_id and eos_id must differ": config.mask_id != config.eos_id,
    }
    for rule, holds in rules.items():
        if not holds:
            raise values.error(rule)


Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer index, q_BHTD, k_BKTD, v_BKTD) -> o_BHTD; see ``attention`` where H and K differ."""


def attention(
    q_BHTD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Return plain attention [B, H, T, D]; query head h reads key/value head h // (H / K).

    If all queries of a sequence see the same keys, a group's queries are concatenated for their shared key
    head, so that nothing is copied; otherwise keys and values are repeated.
    """
    group = q_BHTD.shape[1] // k_BKLD.shape[1]
    if group == 1:
        return scaled_dot_product_attention(q_BHTD, k_BKLD, v_BKLD, attn_mask=mask, is_causal=causal)
    if not causal and (mask is None or mask.shape[-2] == 1):
        batch, kv_heads, _, width = k_BKLD.shape
        grouped = q_BHTD.reshape(batch, kv_heads, -1, width)
        o = scaled_dot_product_attention(grouped, k_BKLD, v_BKLD, attn_mask=mask)
        return o.reshape(q_BHTD.shape)
    k, v = (x.repeat_interleave(group, dim=1) for x in (k_BKLD, v_BKLD))
    return scaled_dot_product_attention(q_BHTD, k, v, attn_mask=mask, is_causal=causal)


def causal_attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Apply causal attention."""
    return attention(q, k, v, causal=True)


class Norm(nn.RMSNorm):
    """RMSNorm; in inference on the CPU with two passes over memory instead of torch's six."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised numbers, same shape as ``x``."""
        return fused_rms_norm(x, self.weight, self.eps or 0.0) if is_cpu_inference(x) else super().forward(x)


class Linear(nn.Linear):
    """A linear layer without bias that can add a residual to its result."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__(width, out_width, bias=False)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Return x @ weightᵀ, plus ``plus`` if it is not None."""
        if plus is None:
            return packed_linear(x, self.weight)
        if not is_cpu_inference(x):
            return plus + packed_linear(x, self.weight)
        return torch.addmm(plus.flatten(0, -2), x.flatten(0, -2), self.weight.T).view(plus.shape)


class StackedLinear(Linear):
    """Several linear maps of one input, computed as one product.

    Attributes:
        sizes: number of rows of the weight for each map, from the top.
    """

    def __init__(self, width: int, sizes: tuple[int, ...]) -> None:
        super().__init__(width, sum(sizes))
        self.sizes = sizes


class SelfAttention(nn.Module):
    """Projections, QK-norm and rotary encoding around a pluggable ``attend``."""

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.n_heads, self.kv_heads, self.head_width = config.n_heads, config.kv_heads, config.head_width
        kv_width = config.kv_heads * config.head_width
        self.qkv = StackedLinear(config.width, (config.width, kv_width, kv_width))
        self.out = Linear(config.width, config.width)
        self.q_norm, self.k_norm = (
            Norm(config.head_width, eps=config.norm_eps) if config.qk_norm else nn.Identity()
            for _ in range(2)
        )

    def forward(
        self, x_BTC: Tensor, cos: Tensor, sin: Tensor, attend: Attend, plus_BTC: Tensor | None = None
    ) -> Tensor:
        """Return the attention output [B, T, C], plus ``plus_BTC`` if it is not None."""
        o_BHTD = attend(self.index, *self.heads(x_BTC, cos, sin))
        return torch.as_tensor(self.out(o_BHTD.transpose(1, 2).flatten(2), plus_BTC))

    def heads(self, x_BTC: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, D], keys and values [B, K, T, D], normalised and rotated."""
        fused_BTND = self.qkv(x_BTC).unflatten(2, (-1, self.head_width))
        n_rotated = self.n_heads + self.kv_heads
        both_BTND = self.norm_heads(fused_BTND[:, :, :n_rotated])
        both_BTND = rotate(both_BTND, cos.transpose(1, 2), sin.transpose(1, 2))
        q, k = both_BTND.transpose(1, 2).split_with_sizes((self.n_heads, self.kv_heads), dim=1)
        return q, k, fused_BTND[:, :, n_rotated:].transpose(1, 2)

    def norm_heads(self, both_BTND: Tensor) -> Tensor:
        """Normalise queries and keys (queries first, then keys)."""
        if not isinstance(self.q_norm, Norm) or not isinstance(self.k_norm, Norm):
            return both_BTND
        if not is_cpu_inference(both_BTND):
            q, k = both_BTND.split_with_sizes((self.n_heads, self.kv_heads), dim=2)
            return torch.cat((self.q_norm(q), self.k_norm(k)), dim=2)
        weights = (self.q_norm.weight.expand(self.n_heads, -1), self.k_norm.weight.expand(self.kv_heads, -1))
        return fused_rms_norm(both_BTND, torch.cat(weights), self.q_norm.eps or 0.0)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_up = StackedLinear(config.width, (config.ffn_width, config.ffn_width))
        self.down = Linear(config.ffn_width, config.width)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Return the transformed activations in the shape of ``x``, plus ``plus`` if it is not None."""
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        gate = functional.silu(gate)
        return torch.as_tensor(self.down(gate * up if torch.is_grad_enabled() else gate.mul_(up), plus))


class Layer(nn.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: TransformerConfig, index: int) -> None:
        super().__init__()
        self.attention_norm = Norm(config.width, eps=config.norm_eps)
        self.attention = SelfAttention(config, index)
        self.ffn_norm = Norm(config.width, eps=config.norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x_BTC: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        """Return the layer's output [B, T, C]."""
        x_BTC = self.attention(self.attention_norm(x_BTC), cos, sin, attend, x_BTC)
        return torch.as_tensor(self.ffn(self.ffn_norm(x_BTC), x_BTC))


class Transformer(nn.Module):
    """Token ids to hidden states; the output matrix is the embedding, transposed."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.n_layers))
        self.final_norm = Norm(config.width, eps=config.norm_eps)

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, attend: Attend) -> Tensor:
        """Return final hidden states [B, T, C], normalised for the output matrix ``embedding.weight``."""
        config = self.config
        cos, sin = rotary_at(positions_BT, config.head_width, config.rope_theta)
        x_BTC = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTC = layer(x_BTC, cos, sin, attend)
        return torch.as_tensor(self.final_norm(x_BTC))


class _NoInitialValues(TorchFunctionMode):
    """Skips the initialisation of module weights."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def meta_network(config: TransformerConfig) -> Transformer:
    """Return a network on the meta device, without weights; it uses no memory and no random numbers.

    Initialisation is skipped because on the meta device torch would import its compiler, which takes seconds.
    """
    with torch.device("meta"), _NoInitialValues():
        return Transformer(config)


def store_column_major(network: nn.Module) -> None:
    """Store the matrices of all linear layers in column-major order; shapes and values do not change.

    MKL's products with few rows are 5 to 15 % faster in this order.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear) and module.weight.is_contiguous():
            module.weight.data = module.weight.data.T.contiguous().T


def revealed_mask(hidden_BT: Tensor) -> Tensor:
    """Return [B, 1, T, T] booleans: every position sees itself and all visible positions."""
    own_TT = torch.eye(hidden_BT.shape[1], dtype=torch.bool, device=hidden_BT.device)
    return ~hidden_BT[:, None, None, :] | own_TT


def block_causal_mask(
    length: int, block_size: int, offset: int = 0, device: torch.device | None = None
) -> Tensor:
    """Return [length, length] booleans: True where the row's position may see the column's.

    Blocks start at ``offset`` (the positions before it form one block). A block sees itself and all earlier
    ones.
    """
    block = torch.div(torch.arange(length, device=device) - offset, block_size, rounding_mode="floor")
    return block[:, None] >= block[None, :]

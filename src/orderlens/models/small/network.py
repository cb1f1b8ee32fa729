"""The small transformer behind ``tiny`` and ``smol``: RMSNorm, RoPE, SwiGLU, tied embeddings.

QK-norm (``tiny``) and grouped keys and values (``smol``) are options of the shape.

The network does not know what it may attend to: every layer hands its queries, keys and values to an
``attend`` callable. Training, the cached decoder and the plain reference differ only in that callable.

Shape letters: B batch, T tokens, H query heads, K key/value heads, D head width, C model width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from orderlens.models.engine.layer_parts import normalised, product, rotary_at, rotate, runs_plain
from orderlens.models.small.config import TransformerConfig

Attend: TypeAlias = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer index, q_BHTD, k_BKTD, v_BKTD) -> o_BHTD; see ``attention`` where H and K differ."""


def attention(
    q_BHTD: Tensor, k_BKLD: Tensor, v_BKLD: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Return plain attention [B, H, T, D]; query head h reads key/value head h // (H / K).

    Where all queries of a sequence see the same keys, a group's queries are laid side by side on their one
    key head, so that nothing is copied; otherwise keys and values are repeated.
    """
    group = q_BHTD.shape[1] // k_BKLD.shape[1]
    if group == 1:
        return scaled_dot_product_attention(q_BHTD, k_BKLD, v_BKLD, attn_mask=mask, is_causal=causal)
    if not causal and (mask is None or mask.shape[-2] == 1):
        batch, kv_heads, _, width = k_BKLD.shape
        side_by_side = q_BHTD.reshape(batch, kv_heads, -1, width)
        o = scaled_dot_product_attention(side_by_side, k_BKLD, v_BKLD, attn_mask=mask)
        return o.reshape(q_BHTD.shape)
    k, v = (x.repeat_interleave(group, dim=1) for x in (k_BKLD, v_BKLD))
    return scaled_dot_product_attention(q_BHTD, k, v, attn_mask=mask, is_causal=causal)


def causal_attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend from left to right."""
    return attention(q, k, v, causal=True)


class Norm(nn.RMSNorm):
    """RMSNorm; in inference on the CPU with two passes over the numbers instead of torch's six."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised numbers, same shape as ``x``."""
        return normalised(x, self.weight, self.eps or 0.0) if runs_plain(x) else super().forward(x)


class Linear(nn.Linear):
    """A linear layer without bias that can add to its result."""

    def __init__(self, width: int, out_width: int) -> None:
        super().__init__(width, out_width, bias=False)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Return x @ weightᵀ, added to ``plus`` where it is given."""
        if plus is None:
            return product(x, self.weight)
        if not runs_plain(x):
            return plus + product(x, self.weight)
        return torch.addmm(plus.flatten(0, -2), x.flatten(0, -2), self.weight.T).view(plus.shape)


class Stacked(Linear):
    """Several linear maps of one input as one product.

    Attributes:
        sizes: rows of the weight that belong to each map, from the top.
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
        self.qkv = Stacked(config.width, (config.width, kv_width, kv_width))
        self.out = Linear(config.width, config.width)
        self.q_norm, self.k_norm = (
            Norm(config.head_width, eps=config.norm_eps) if config.qk_norm else nn.Identity()
            for _ in range(2)
        )

    def forward(
        self, x_BTC: Tensor, cos: Tensor, sin: Tensor, attend: Attend, plus_BTC: Tensor | None = None
    ) -> Tensor:
        """Return the attention output [B, T, C], added to ``plus_BTC`` where it is given."""
        o_BHTD = attend(self.index, *self.heads(x_BTC, cos, sin))
        return torch.as_tensor(self.out(o_BHTD.transpose(1, 2).flatten(2), plus_BTC))

    def heads(self, x_BTC: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries [B, H, T, D], keys and values [B, K, T, D], normalised and turned."""
        fused_BTND = self.qkv(x_BTC).unflatten(2, (-1, self.head_width))
        turning = self.n_heads + self.kv_heads
        both_BTND = self.normalised(fused_BTND[:, :, :turning])
        both_BTND = rotate(both_BTND, cos.transpose(1, 2), sin.transpose(1, 2))
        q, k = both_BTND.transpose(1, 2).split_with_sizes((self.n_heads, self.kv_heads), dim=1)
        return q, k, fused_BTND[:, :, turning:].transpose(1, 2)

    def normalised(self, both_BTND: Tensor) -> Tensor:
        """Return queries and keys, which lie behind them, after their norms."""
        if not isinstance(self.q_norm, Norm) or not isinstance(self.k_norm, Norm):
            return both_BTND
        if not runs_plain(both_BTND):
            q, k = both_BTND.split_with_sizes((self.n_heads, self.kv_heads), dim=2)
            return torch.cat((self.q_norm(q), self.k_norm(k)), dim=2)
        each = (self.q_norm.weight.expand(self.n_heads, -1), self.k_norm.weight.expand(self.kv_heads, -1))
        return normalised(both_BTND, torch.cat(each), self.q_norm.eps or 0.0)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate_up = Stacked(config.width, (config.ffn_width, config.ffn_width))
        self.down = Linear(config.ffn_width, config.width)

    def forward(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Return the transformed activations, same shape as ``x``, added to ``plus`` where it is given."""
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
    """Leaves out what modules do to fill themselves."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def unfilled(config: TransformerConfig) -> Transformer:
    """Return a network of shapes only, to be given its weights: neither memory nor random numbers are used.

    Drawing no numbers on the meta device, torch would import its compiler, which takes seconds.
    """
    with torch.device("meta"), _NoInitialValues():
        return Transformer(config)


def lay_out_for_products(network: nn.Module) -> None:
    """Store the matrices of all linear layers column by column; shapes and values stay.

    MKL's products with few rows are 5 to 15 % faster that way.
    """
    for module in network.modules():
        if isinstance(module, nn.Linear) and module.weight.is_contiguous():
            module.weight.data = module.weight.data.T.contiguous().T


def revealed_mask(hidden_BT: Tensor) -> Tensor:
    """Return [B, 1, T, T] booleans: every position sees itself and all that are not hidden."""
    own_TT = torch.eye(hidden_BT.shape[1], dtype=torch.bool, device=hidden_BT.device)
    return ~hidden_BT[:, None, None, :] | own_TT


def block_causal_mask(
    length: int, block_size: int, offset: int = 0, device: torch.device | None = None
) -> Tensor:
    """Return [length, length] booleans: True where the row's position may see the column's.

    Blocks start at ``offset`` (the part before it is a block of its own) and see themselves and all before.
    """
    block = torch.div(torch.arange(length, device=device) - offset, block_size, rounding_mode="floor")
    return block[:, None] >= block[None, :]

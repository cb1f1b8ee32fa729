"""The shape of a Llama-like network, and the code that families share to read it from ``config.json``.

A value that changes the computation and is not supported is refused by name; keys without influence on
inference (dropout, initialisation) are ignored. Does not depend on tensors, devices or tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from orderlens.errors import ModelLoadError
from orderlens.models.files.configfile import (
    MAX_CONTEXT,
    MAX_LAYERS,
    ConfigValues,
    refuse_unsupported,
    rope_values,
    short_repr,
)
from orderlens.models.protocol import Attention

RouterScores: TypeAlias = Literal["sigmoid", "softmax"]


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Shape of the network; without experts every layer is dense.

    Attributes:
        vocab_size: rows of the embedding and of the output matrix.
        ffn_width: inner width of a dense SwiGLU feed-forward.
        head_width: numbers per head; ``n_heads × head_width`` need not be ``hidden_size``.
        attention: what a position sees.
        qkv_bias: queries, keys and values have biases.
        qk_norm: queries and keys are normalised over a head before rotary encoding.
        tied: the output matrix is the embedding.
        exact_rotary: rotary encoding is computed in float32 for every dtype of the activations.
        rotary: leading dimensions of a head with rotary encoding; None for all.
        rotary_factors: factor on each rotary frequency (YaRN); None for 1.
        n_experts: routed experts of a layer, 0 for a dense network.
        n_dense_layers: number of first layers without experts in a network with experts.
        dense_layers: numbers of further layers without experts.
        n_active: routed experts per token, chosen from ``n_kept_groups`` of ``n_groups`` groups.
        expert_width: inner width of an expert.
        n_shared: experts that every token uses, each ``expert_width`` wide.
        router: function from the router's logits to scores.
        normalised: the scores of a token's experts are divided by their sum.
        routed_scale: factor on the routed experts' outputs.
        expert_bias: whether the checkpoint must contain the router's bias, which selects experts.
        weighted_bias: the bias is also part of the chosen experts' weights.
        expert_capacity: number of experts that the tokens of a block may use; 0 for all. With a capacity, a
            block's tokens are routed together and groups are not used.
    """

    vocab_size: int
    hidden_size: int
    n_layers: int
    ffn_width: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    rope_theta: float
    norm_eps: float
    max_positions: int
    attention: Attention
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    exact_rotary: bool = False
    rotary: int | None = None
    rotary_factors: tuple[float, ...] | None = None
    n_experts: int = 0
    n_dense_layers: int = 0
    dense_layers: tuple[int, ...] = ()
    n_active: int = 0
    expert_width: int = 0
    n_shared: int = 0
    n_groups: int = 1
    n_kept_groups: int = 1
    router: RouterScores = "sigmoid"
    normalised: bool = True
    routed_scale: float = 1.0
    expert_bias: bool = False
    weighted_bias: bool = False
    expert_capacity: int = 0

    @property
    def rotary_width(self) -> int:
        """Leading dimensions of a head with rotary encoding."""
        return self.head_width if self.rotary is None else self.rotary

    @property
    def qkv_width(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_width

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer's feed-forward has experts."""
        return self.n_experts > 0 and layer >= self.n_dense_layers and layer not in self.dense_layers

    @property
    def divides_scores(self) -> bool:
        """Whether the scores of a token's experts are divided by their sum; LLaDA-2 keeps a single one."""
        return self.normalised and (self.n_active > 1 or self.router == "softmax")

    @property
    def has_router_bias(self) -> bool:
        """Whether a router may have a bias."""
        return self.router == "sigmoid" or self.expert_bias

    @property
    def n_sparse_layers(self) -> int:
        """Number of layers with experts."""
        return sum(map(self.has_experts, range(self.n_layers)))

    @property
    def n_parameters(self) -> int:
        width, n_sparse = self.hidden_size, self.n_sparse_layers
        norms = 2 * width + (2 * self.head_width if self.qk_norm else 0)
        biases = self.qkv_width if self.qkv_bias else 0
        attention = width * (self.qkv_width + self.n_heads * self.head_width) + biases + norms
        routers = self.n_experts * (width + (1 if self.has_router_bias else 0))
        sparse = 3 * width * self.expert_width * (self.n_experts + self.n_shared) + routers
        layers = self.n_layers * attention + n_sparse * sparse
        layers += (self.n_layers - n_sparse) * 3 * width * self.ffn_width
        return (1 if self.tied else 2) * self.vocab_size * width + width + layers

    @property
    def kv_values_per_token(self) -> int:
        return 0 if self.attention == "full" else 2 * self.n_layers * self.n_kv_heads * self.head_width


def checked(config: DecoderConfig) -> DecoderConfig:
    """Refuse sizes that do not fit together."""
    if config.n_heads % config.n_kv_heads:
        raise ModelLoadError(
            f"config.json: {config.n_heads} attention heads (num_attention_heads) are not a multiple of "
            f"{config.n_kv_heads} key/value heads (num_key_value_heads)"
        )
    if config.rotary_width % 2 or not 2 <= config.rotary_width <= config.head_width:
        raise ModelLoadError(
            f"config.json: rotary encoding over {config.rotary_width} dimensions of a head is not possible; "
            f"it needs an even number from 2 to {config.head_width}"
        )
    if config.n_experts:
        _check_experts(config)
    return config


def _check_experts(config: DecoderConfig) -> None:
    per_group = config.n_experts // config.n_groups
    rules = {
        "num_experts must be a multiple of n_group": config.n_experts % config.n_groups == 0,
        "each expert group needs at least 2 experts": per_group >= 2,
        "topk_group must not exceed n_group": config.n_kept_groups <= config.n_groups,
        "num_experts_per_tok must fit in topk_group groups": config.n_active
        <= config.n_kept_groups * per_group,
        "expert_capacity must be from num_experts_per_tok to num_experts": not config.expert_capacity
        or config.n_active <= config.expert_capacity <= config.n_experts,
        "first_k_dense_replace must not exceed num_hidden_layers": config.n_dense_layers <= config.n_layers,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise ModelLoadError(f"config.json: {broken[0]}")


_QWEN_ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "mlp_bias": (False,),
}


QWEN_HARMLESS = ("sliding_window", "max_window_layers")
"""Keys of Qwen's ``config.json`` that matter only with ``use_sliding_window``, which is refused."""


def parse_qwen(
    values: Mapping[str, Any],
    attention: Attention,
    *,
    qkv_bias: bool,
    qk_norm: bool,
    rope_theta: float,
    head_width: int | None = None,
    experts: Mapping[str, Any] | None = None,
    scaled: bool = False,
) -> DecoderConfig:
    """Return the shape that a ``config.json`` with Qwen's keys describes.

    Args:
        values: contents of the file.
        attention: what a position sees.
        qkv_bias: whether queries, keys and values have biases; the file does not state it.
        qk_norm: whether queries and keys are normalised.
        rope_theta: base of the rotary angles if the file does not state it.
        head_width: numbers per head if the file does not state it; None for width / heads.
        experts: the shape's values for experts; None for a dense network.
        scaled: the caller reads the values of scaled rotary angles.
    """
    refuse_unsupported(values, _QWEN_ONLY if experts else {**_QWEN_ONLY, "num_experts": ()})
    kinds = values.get("layer_types") or []
    if not isinstance(kinds, list) or any(kind != "full_attention" for kind in kinds):
        raise ModelLoadError(
            f"config.json: layer_types={short_repr(kinds)} is not supported (only a list of full_attention)"
        )
    read, width = ConfigValues(values), ConfigValues(values).integer("hidden_size")
    n_heads = read.integer("num_attention_heads")
    return checked(
        DecoderConfig(
            vocab_size=read.integer("vocab_size"),
            hidden_size=width,
            n_layers=read.integer("num_hidden_layers", high=MAX_LAYERS),
            ffn_width=read.integer("intermediate_size"),
            n_heads=n_heads,
            n_kv_heads=read.integer("num_key_value_heads", n_heads),
            head_width=read.integer("head_dim", head_width or width // n_heads),
            rope_theta=rope_values(values, scaled=scaled).number("rope_theta", rope_theta),
            norm_eps=read.number("rms_norm_eps", 1e-6),
            max_positions=read.integer("max_position_embeddings", 32768, high=MAX_CONTEXT),
            attention=attention,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            tied=read.flag("tie_word_embeddings", False),
            **(experts or {}),
        )
    )

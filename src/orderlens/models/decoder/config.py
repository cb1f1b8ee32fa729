"""The shape of a Llama-like network in our own words, and the parts of reading it that families share.

A value that would change the computation and that this implementation does not carry out is refused by name;
keys without influence on inference (dropout, initialisation) are ignored. Does not depend on tensors, devices
or tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from orderlens.errors import ModelLoadError
from orderlens.models.files.configfile import MAX_CONTEXT, MAX_LAYERS, Values, refuse_others, rope_values
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
        qk_norm: queries and keys are normalised over a head before they are turned.
        tied: the output matrix is the embedding.
        exact_rotary: positions turn in float32 whatever the dtype of the activations.
        rotary: leading dimensions of a head that carry the position; None for all.
        n_experts: routed experts of a layer, 0 for a dense network.
        n_dense_layers: first layers of a network with experts that have none.
        n_active: routed experts per token, chosen inside ``n_kept_groups`` of ``n_groups`` groups.
        expert_width: inner width of an expert.
        n_shared: experts that every token visits, each ``expert_width`` wide.
        router: what turns the router's logits into scores.
        normalised: the scores of a token's experts are divided by their sum.
        routed_scale: factor of the routed experts.
        expert_bias: whether the router's selection bias must be in the checkpoint.
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
    n_experts: int = 0
    n_dense_layers: int = 0
    n_active: int = 0
    expert_width: int = 0
    n_shared: int = 0
    n_groups: int = 1
    n_kept_groups: int = 1
    router: RouterScores = "sigmoid"
    normalised: bool = True
    routed_scale: float = 1.0
    expert_bias: bool = False

    @property
    def rotary_width(self) -> int:
        """Leading dimensions of a head that carry the position."""
        return self.head_width if self.rotary is None else self.rotary

    @property
    def qkv_width(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_width

    def has_experts(self, layer: int) -> bool:
        """Return whether a layer's feed-forward has experts."""
        return self.n_experts > 0 and layer >= self.n_dense_layers

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
        routers = self.n_experts * (width + (1 if self.router == "sigmoid" else 0))
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
            f"config.json: {config.rotary_width} dimensions of a head cannot be turned in pairs "
            f"(an even number, at least 2 and at most {config.head_width})"
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
    "quantization_config": (),
    "num_experts": (),
}


def parse_qwen(
    values: Mapping[str, Any], attention: Attention, *, qkv_bias: bool, qk_norm: bool, rope_theta: float
) -> DecoderConfig:
    """Return the shape that a ``config.json`` with Qwen's keys describes.

    Args:
        values: the file.
        attention: what a position sees.
        qkv_bias: whether queries, keys and values have biases; the file cannot say otherwise.
        qk_norm: whether queries and keys are normalised.
        rope_theta: base of the angles where the file does not say.
    """
    refuse_others(values, _QWEN_ONLY)
    layer_types = values.get("layer_types") or []
    if any(kind != "full_attention" for kind in layer_types):
        raise ModelLoadError("config.json: layer_types other than full_attention are not supported")
    given, width = Values(values), Values(values).integer("hidden_size")
    n_heads = given.integer("num_attention_heads")
    return checked(
        DecoderConfig(
            vocab_size=given.integer("vocab_size"),
            hidden_size=width,
            n_layers=given.integer("num_hidden_layers", high=MAX_LAYERS),
            ffn_width=given.integer("intermediate_size"),
            n_heads=n_heads,
            n_kv_heads=given.integer("num_key_value_heads", n_heads),
            head_width=given.integer("head_dim", width // n_heads),
            rope_theta=rope_values(values).number("rope_theta", rope_theta),
            norm_eps=given.number("rms_norm_eps", 1e-6),
            max_positions=given.integer("max_position_embeddings", 32768, high=MAX_CONTEXT),
            attention=attention,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            tied=given.flag("tie_word_embeddings", False),
        )
    )

"""The LLaDA-2.x configuration: what ``config.json`` says, checked, in our own words.

Covers 2.0 and 2.1, mini and flash: they share one architecture and differ in sizes only. A value that would
change the computation and that this implementation does not carry out is refused by name; keys without
influence on inference (dropout, initialisation) are ignored. Missing keys take the defaults of the published
configuration class, except that biases are absent. Knows nothing of tensors, devices or tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.files.configfile import MAX_CONTEXT, MAX_LAYERS, Values, refuse_others, rope_values

MODEL_TYPE = "llada2_moe"
PUBLISHED_MASK_ID = 156895
PUBLISHED_EOS_ID = 156892
PUBLISHED_BLOCK_SIZE = 32
MAX_EXPERTS = 4096

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_ONLY: Mapping[str, tuple[object, ...]] = {
    "hidden_act": ("silu",),
    "use_bias": (False,),
    "use_qkv_bias": (False,),
    "tie_word_embeddings": (False,),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "norm_topk_prob": (True,),
    "score_function": ("sigmoid",),
    "router_dtype": ("fp32", "float32"),
    "use_rmsnorm": (True,),
    "use_sliding_window": (False,),
    "num_nextn_predict_layers": (0,),
    "quantization_config": (),
}
"""Keys for which only these values are carried out; missing and null are allowed."""


@dataclass(frozen=True, slots=True)
class LLaDA2Config:
    """Shape of the network.

    Attributes:
        dense_width: feed-forward width of the first ``n_dense_layers`` layers (the others hold experts).
        n_active: routed experts per token, chosen inside ``n_kept_groups`` of ``n_groups`` groups.
        n_shared: always-on experts, each ``expert_width`` wide.
        rotary_width: leading dimensions of a head that carry the position.
        expert_bias: whether the router's selection bias must be in the checkpoint.
    """

    vocab_size: int
    hidden_size: int
    n_layers: int
    n_dense_layers: int
    dense_width: int
    expert_width: int
    n_experts: int
    n_active: int
    n_shared: int
    n_groups: int
    n_kept_groups: int
    routed_scale: float
    n_heads: int
    n_kv_heads: int
    head_width: int
    rotary_width: int
    rope_theta: float
    norm_eps: float
    max_positions: int
    use_qk_norm: bool = True
    expert_bias: bool = True

    @property
    def rotary(self) -> tuple[int, float, int]:
        """Turned dimensions of a head, base of the angles and number of positions."""
        return self.rotary_width, self.rope_theta, self.max_positions

    @property
    def qkv_width(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_width

    @property
    def n_parameters(self) -> int:
        """Number of weights, embeddings and output matrix included."""
        width, expert = self.hidden_size, 3 * self.hidden_size * self.expert_width
        heads = self.n_heads * self.head_width
        qk_norms = 2 * self.head_width if self.use_qk_norm else 0
        attention = width * (self.qkv_width + heads) + qk_norms + 2 * width
        sparse = (self.n_experts + self.n_shared) * expert + self.n_experts * (width + 1)
        n_sparse = self.n_layers - self.n_dense_layers
        dense = 3 * width * self.dense_width
        return (
            2 * self.vocab_size * width
            + width
            + self.n_layers * attention
            + self.n_dense_layers * dense
            + n_sparse * sparse
        )

    @property
    def kv_values_per_token(self) -> int:
        """Numbers cached per token over all layers."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_width


MINI = LLaDA2Config(
    vocab_size=157184,
    hidden_size=2048,
    n_layers=20,
    n_dense_layers=1,
    dense_width=5120,
    expert_width=512,
    n_experts=256,
    n_active=8,
    n_shared=1,
    n_groups=8,
    n_kept_groups=4,
    routed_scale=2.5,
    n_heads=16,
    n_kv_heads=4,
    head_width=128,
    rotary_width=64,
    rope_theta=600000.0,
    norm_eps=1e-6,
    max_positions=32768,
)
"""The published mini shape (2.0 and 2.1), for benchmarks that draw random weights."""
FLASH = replace(MINI, hidden_size=4096, n_layers=32, dense_width=9216, expert_width=1024, n_heads=32)
"""The published flash shape."""


def parse_config(values: Mapping[str, Any]) -> LLaDA2Config:
    """Return the checked configuration behind a published ``config.json``."""
    if values.get("model_type") != MODEL_TYPE:
        raise ModelLoadError(
            f"config.json: model_type is {values.get('model_type')!r}, expected {MODEL_TYPE!r}"
        )
    refuse_others(values, _ONLY)
    missing = [key for key in _REQUIRED if values.get(key) is None]
    if missing:
        raise ModelLoadError(f"config.json lacks {', '.join(missing)}")
    given, rope = Values(values), rope_values(values)
    n_dense = given.integer("first_k_dense_replace", 0, low=0)
    width, n_heads = given.integer("hidden_size"), given.integer("num_attention_heads")
    head_width = given.integer("head_dim", width // n_heads)
    return _checked(
        LLaDA2Config(
            vocab_size=given.integer("vocab_size"),
            hidden_size=width,
            n_layers=given.integer("num_hidden_layers", high=MAX_LAYERS),
            n_dense_layers=n_dense,
            dense_width=given.integer("intermediate_size", None if n_dense else 1),
            expert_width=given.integer("moe_intermediate_size"),
            n_experts=given.integer("num_experts", high=MAX_EXPERTS),
            n_active=given.integer("num_experts_per_tok"),
            n_shared=given.integer("num_shared_experts", 0, low=0),
            n_groups=given.integer("n_group", 8),
            n_kept_groups=given.integer("topk_group", 4),
            routed_scale=given.number("routed_scaling_factor", 2.5),
            n_heads=n_heads,
            n_kv_heads=given.integer("num_key_value_heads"),
            head_width=head_width,
            rotary_width=int(head_width * rope.number("partial_rotary_factor", 0.5)),
            rope_theta=rope.number("rope_theta", 10000.0),
            norm_eps=given.number("rms_norm_eps", 1e-5),
            max_positions=given.integer("max_position_embeddings", 16384, high=MAX_CONTEXT),
            use_qk_norm=given.flag("use_qk_norm", True),
            expert_bias=given.flag("moe_router_enable_expert_bias", True),
        )
    )


def _checked(config: LLaDA2Config) -> LLaDA2Config:
    """Refuse sizes that do not fit together."""
    per_group = config.n_experts // config.n_groups
    rules = {
        "num_attention_heads must be a multiple of num_key_value_heads": config.n_heads % config.n_kv_heads
        == 0,
        "num_experts must be a multiple of n_group": config.n_experts % config.n_groups == 0,
        "each expert group needs at least 2 experts": per_group >= 2,
        "topk_group must not exceed n_group": config.n_kept_groups <= config.n_groups,
        "num_experts_per_tok must fit in topk_group groups": config.n_active
        <= config.n_kept_groups * per_group,
        "first_k_dense_replace must not exceed num_hidden_layers": config.n_dense_layers <= config.n_layers,
        "head_dim × partial_rotary_factor must be even and at least 2": config.rotary_width % 2 == 0
        and 2 <= config.rotary_width <= config.head_width,
    }
    broken = [rule for rule, holds in rules.items() if not holds]
    if broken:
        raise ModelLoadError(f"config.json: {broken[0]}")
    return config

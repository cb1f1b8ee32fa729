"""The shape of a Llama-like network in our own words, and the parts of reading it that families share.

A value that would change the computation and that this implementation does not carry out is refused by name;
keys without influence on inference (dropout, initialisation) are ignored. Knows nothing of tensors, devices
or tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orderlens.errors import ModelLoadError
from orderlens.models.files.configfile import MAX_CONTEXT, MAX_LAYERS, Values, refuse_others, rope_values
from orderlens.models.protocol import Attention


@dataclass(frozen=True, slots=True)
class DenseConfig:
    """Shape of the network.

    Attributes:
        vocab_size: rows of the embedding and of the output matrix.
        ffn_width: inner width of the SwiGLU feed-forward.
        head_width: numbers per head; ``n_heads × head_width`` need not be ``hidden_size``.
        attention: what a position sees.
        qkv_bias: queries, keys and values have biases.
        qk_norm: queries and keys are normalised over a head before they are turned.
        tied: the output matrix is the embedding.
        exact_rotary: positions turn in float32 whatever the dtype of the activations.
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

    @property
    def rotary_width(self) -> int:
        """Dimensions of a head that carry the position: all."""
        return self.head_width

    @property
    def qkv_width(self) -> int:
        """Rows of the fused query, key and value projection."""
        return (self.n_heads + 2 * self.n_kv_heads) * self.head_width

    @property
    def n_layer_parameters(self) -> int:
        """Weights of one layer."""
        heads = self.n_heads * self.head_width
        biases = self.qkv_width if self.qkv_bias else 0
        norms = 2 * self.hidden_size + (2 * self.head_width if self.qk_norm else 0)
        matrices = self.hidden_size * (self.qkv_width + heads + 3 * self.ffn_width)
        return matrices + biases + norms

    @property
    def n_parameters(self) -> int:
        """Number of weights, embedding and output matrix included."""
        tables = (1 if self.tied else 2) * self.vocab_size * self.hidden_size
        return tables + self.hidden_size + self.n_layers * self.n_layer_parameters

    @property
    def kv_values_per_token(self) -> int:
        """Numbers cached per token over all layers; full attention caches nothing."""
        return 0 if self.attention == "full" else 2 * self.n_layers * self.n_kv_heads * self.head_width


def checked(config: DenseConfig) -> DenseConfig:
    """Refuse sizes that do not fit together."""
    if config.n_heads % config.n_kv_heads:
        raise ModelLoadError(
            f"config.json: {config.n_heads} attention heads are not a multiple of "
            f"{config.n_kv_heads} key/value heads"
        )
    if config.head_width % 2:
        raise ModelLoadError(
            f"config.json: a head of {config.head_width} dimensions cannot be turned in pairs"
        )
    return config


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
) -> DenseConfig:
    """Return the shape behind a ``config.json`` with Qwen's keys.

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
        DenseConfig(
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

"""Small random LLaDA-MoE and SDAR-MoE checkpoints in their published layouts.

Written without any of the package's model code, so that a test compares two independent readings of the
layout. Needs torch, safetensors and tokenizers when called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.dense import TEMPLATE, write_shards
from support.letters import write_letters

_SHAPE: dict[str, Any] = {
    "vocab_size": 112,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "rope_scaling": None,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
CONFIGS: dict[str, dict[str, Any]] = {
    "lladamoe": {
        **_SHAPE,
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "num_key_value_heads": 4,
        "dense_intermediate_size": 48,
        "expert_intermediate_size": 32,
        "shared_expert_intermediate_size": None,
        "moe_layer_freq": [0, 1, 1],
        "qk_layernorm": True,
        "partial_rotary_factor": 1.0,
        "rope_theta": 50000,
        "rms_norm_eps": 1e-5,
        "clip_qkv": None,
        "norm_topk_prob": True,
        "moe_router_enable_expert_bias": False,
        "moe_router_score_function": "softmax",
        "routed_scaling_factor": 1,
        "router_num_group": None,
        "router_topk_group": None,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.01,
        "use_cache": False,
        "eos_token_id": 98,
        "pad_token_id": 98,
    },
    "sdar_moe": {
        **_SHAPE,
        "architectures": ["SDARMoeForCausalLM"],
        "model_type": "sdar_moe",
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 48,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 3,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "mask_token_id": 99,
        "eos_token_id": 98,
    },
}
"""Family → a small ``config.json`` with the published keys."""
MARKS = {
    "lladamoe": ["<|startoftext|>", "<|endoftext|>", "<|mask|>", "<role>", "<|role_end|>"],
    "sdar_moe": ["<|startoftext|>", "<|endoftext|>", "<|MASK|>", "<|im_start|>", "<|im_end|>"],
}


def is_dense(config: dict[str, Any], layer: int) -> bool:
    """Return whether a layer has no experts."""
    if "moe_layer_freq" in config:
        return not config["moe_layer_freq"][layer]
    return layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"] != 0


def published_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return tensor names and shapes as the published checkpoints have them."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim") or width // heads
    sizes = {"q_proj": heads * head, "k_proj": config["num_key_value_heads"] * head}
    sizes["v_proj"] = sizes["k_proj"]
    inner = config.get("expert_intermediate_size") or config.get("moe_intermediate_size")
    dense = config.get("dense_intermediate_size") or config.get("intermediate_size")
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config["vocab_size"], width),
    }

    def mlp(prefix: str, rows: int) -> None:
        shapes.update({f"{prefix}{kind}_proj.weight": (rows, width) for kind in ("gate", "up")})
        shapes[prefix + "down_proj.weight"] = (width, rows)

    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        shapes |= {f"{layer}self_attn.{name}.weight": (size, width) for name, size in sizes.items()}
        shapes[layer + "self_attn.o_proj.weight"] = (width, sizes["q_proj"])
        shapes |= {f"{layer}{name}layernorm.weight": (width,) for name in ("input_", "post_attention_")}
        if config.get("qk_layernorm", True):
            shapes |= {f"{layer}self_attn.{kind}_norm.weight": (head,) for kind in "qk"}
        if is_dense(config, n):
            mlp(layer + "mlp.", dense)
            continue
        shapes[layer + "mlp.gate.weight"] = (config["num_experts"], width)
        if config.get("moe_router_enable_expert_bias"):
            shapes[layer + "mlp.expert_bias"] = (config["num_experts"],)
        for expert in range(config["num_experts"]):
            mlp(f"{layer}mlp.experts.{expert}.", inner)
    return shapes


def random_tensors(config: dict[str, Any], seed: int, dtype: Any) -> dict[str, Any]:
    """Return weights large enough that leaving any part out changes the output visibly."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in published_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if name.endswith("expert_bias"):
            values = 0.2 * values
        else:
            values = 1 + 0.3 * values if len(shape) == 1 else values * (1.5 / shape[-1] ** 0.5)
        tensors[name] = values.to(dtype)
    return tensors


def write_moe(
    folder: Path,
    *,
    family: str = "lladamoe",
    seed: int = 0,
    dtype: Any = None,
    shards: int = 2,
    tokenizer: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """Write a folder that ``load_model`` reads; return the tensors by published name.

    Args:
        folder: made if it does not exist.
        family: ``lladamoe`` or ``sdar_moe``.
        seed: of the weights.
        dtype: torch dtype of the stored weights, float32 by default.
        shards: number of weight files.
        tokenizer: whether to write a tokenizer and a chat template.
        changes: further values for ``config.json``.
    """
    import torch

    config = {**CONFIGS[family], **changes}
    tensors = random_tensors(config, seed, dtype or torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_shards(folder, tensors, shards)
    if tokenizer:
        end = MARKS[family][-1]
        settings = {"eos_token": "<|endoftext|>", "chat_template": TEMPLATE.replace("<|im_end|>", end)}
        write_letters(folder, after=MARKS[family], settings=settings, plain=[end])
    return tensors

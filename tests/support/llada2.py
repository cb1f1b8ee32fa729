"""Small random LLaDA-2 checkpoints in the published layout.

Written without any of the package's model code, so that a test compares two independent readings of the
layout. Needs torch, safetensors and tokenizers when called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.dense import write_shards
from support.letters import write_letters

CONFIG: dict[str, Any] = {
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "vocab_size": 112,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "num_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "moe_router_enable_expert_bias": True,
    "router_dtype": "fp32",
    "rms_norm_eps": 1e-6,
    "rope_theta": 600000,
    "rope_scaling": None,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "use_bias": False,
    "use_qkv_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "pad_token_id": 98,
    "eos_token_id": 98,
}
SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|mask|>", "<role>", "</role>", "<|role_end|>"]
"""Behind 97 letters: <|endoftext|> is 98, <|mask|> 99, <|role_end|> 102; rows 103…111 are padding."""
TEMPLATE = (
    "{% for m in messages %}<role>{{ 'HUMAN' if m['role'] == 'user' else m['role'] | upper }}</role>"
    "{{ m['content'] }}<|role_end|>{% endfor %}"
    "{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)


def published_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return tensor names and shapes as the published checkpoints have them."""
    width, head = config["hidden_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.word_embeddings.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config["vocab_size"], width),
    }

    def mlp(prefix: str, inner: int) -> None:
        shapes[prefix + "gate_proj.weight"] = (inner, width)
        shapes[prefix + "up_proj.weight"] = (inner, width)
        shapes[prefix + "down_proj.weight"] = (width, inner)

    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        shapes[layer + "input_layernorm.weight"] = (width,)
        shapes[layer + "post_attention_layernorm.weight"] = (width,)
        shapes[layer + "attention.query_key_value.weight"] = ((heads + 2 * kv) * head, width)
        shapes[layer + "attention.query_layernorm.weight"] = (head,)
        shapes[layer + "attention.key_layernorm.weight"] = (head,)
        shapes[layer + "attention.dense.weight"] = (width, heads * head)
        if n < config["first_k_dense_replace"]:
            mlp(layer + "mlp.", config["intermediate_size"])
            continue
        shapes[layer + "mlp.gate.weight"] = (config["num_experts"], width)
        shapes[layer + "mlp.gate.expert_bias"] = (config["num_experts"],)
        for expert in range(config["num_experts"]):
            mlp(f"{layer}mlp.experts.{expert}.", config["moe_intermediate_size"])
        mlp(layer + "mlp.shared_experts.", config["moe_intermediate_size"] * config["num_shared_experts"])
    return shapes


def random_tensors(config: dict[str, Any], seed: int, dtype: Any) -> dict[str, Any]:
    """Return weights large enough that leaving any part out changes the output visibly."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in published_shapes(config).items():
        if name.endswith("norm.weight"):
            values = 1 + 0.3 * torch.randn(shape, generator=generator)
        elif name.endswith("expert_bias"):
            values = 0.3 * torch.randn(shape, generator=generator)
        else:
            values = torch.randn(shape, generator=generator) * (1.0 / shape[-1] ** 0.5)
        tensors[name] = values.to(torch.float32 if name.endswith("expert_bias") else dtype)
    return tensors


def write_tokenizer(folder: Path) -> None:
    """Write a word-per-character tokenizer whose special tokens sit at the end, as in the published one."""
    settings = {
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": {"content": "<|endoftext|>", "__type": "AddedToken"},
        "chat_template": TEMPLATE,
    }
    write_letters(folder, after=SPECIALS, settings=settings, plain=["<|role_end|>"])


def write_llada2(
    folder: Path,
    *,
    seed: int = 0,
    dtype: Any = None,
    shards: int = 3,
    tokenizer: bool = True,
    **changes: Any,
) -> dict[str, Any]:
    """Write a folder that ``load_model`` reads; return the tensors by published name.

    Args:
        folder: made if it does not exist.
        seed: of the weights.
        dtype: torch dtype of the stored weights, float32 by default.
        shards: number of weight files.
        tokenizer: whether to write a tokenizer and a chat template.
        changes: further values for ``config.json``, over those of ``CONFIG``.
    """
    import torch

    config = {**CONFIG, **changes}
    tensors = random_tensors(config, seed, dtype or torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    write_shards(folder, tensors, shards)
    if tokenizer:
        write_tokenizer(folder)
    return tensors

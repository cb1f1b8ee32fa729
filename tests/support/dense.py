"""Small random checkpoints of the dense families in their published layouts.

Written without any of the package's model code, so that a test compares two independent readings of the
layout. Needs torch, safetensors and tokenizers when called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.letters import write_letters

_QWEN: dict[str, Any] = {
    "vocab_size": 112,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 98,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llada": {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "vocab_size": 112,
        "embedding_size": 112,
        "d_model": 32,
        "n_layers": 2,
        "n_heads": 4,
        "n_kv_heads": 4,
        "mlp_hidden_size": 48,
        "mlp_ratio": 4,
        "max_sequence_length": 256,
        "rms_norm_eps": 1e-5,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": 500000.0,
        "activation_type": "silu",
        "block_type": "llama",
        "block_group_size": 1,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "bias_for_layer_norm": False,
        "attention_layer_norm": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "weight_tying": False,
        "alibi": False,
        "scale_logits": False,
        "input_emb_norm": False,
        "mask_token_id": 99,
        "eos_token_id": 98,
        "pad_token_id": 98,
    },
    "Dream": {
        "architectures": ["DreamModel"],
        "model_type": "Dream",
        **_QWEN,
        "mask_token_id": 99,
        "pad_token_id": 98,
        "use_mrope": False,
    },
    "sdar": {
        "architectures": ["SDARForCausalLM"],
        "model_type": "sdar",
        **_QWEN,
        "head_dim": 16,
        "attention_bias": False,
        "block_size": 4,
        "mask_token_id": 99,
    },
    "nemotron_labs_diffusion": {
        "architectures": ["NemotronLabsDiffusionModel"],
        "model_type": "nemotron_labs_diffusion",
        **_QWEN,
        "rope_theta": None,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 128,
            "max_position_embeddings": 256,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        "head_dim": 16,
        "attention_bias": False,
        "mlp_bias": False,
        "sliding_window": None,
        "attn_implementation": "sdpa",
        "dlm_paradigm": "bidirectional",
        "block_size": 8,
        "dlm_loss_weight": None,
        "ar_loss_weight": 1.0,
        "dp_varying_mask_ratio": False,
        "mask_token_id": 99,
    },
    "Fast_dLLM_Qwen": {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        **_QWEN,
        "bd_size": 8,
    },
}
"""``model_type`` → a small ``config.json`` with the published keys."""
MASK_NAMES = {
    "llada": "<|mdm_mask|>",
    "Dream": "<|mask|>",
    "sdar": "<|MASK|>",
    "Fast_dLLM_Qwen": "|<MASK>|",
    "nemotron_labs_diffusion": "<SPECIAL_100>",
}
TURN_ENDS = {"llada": "<|eot_id|>"}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def published_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return tensor names and shapes as the published checkpoints have them."""
    return _llada_shapes(config) if config["model_type"] == "llada" else _qwen_shapes(config)


def _llada_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner = config["d_model"], config["mlp_hidden_size"]
    shared = width // config["n_heads"] * config["n_kv_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.transformer.wte.weight": (config["embedding_size"], width),
        "model.transformer.ln_f.weight": (width,),
    }
    if not config["weight_tying"]:
        shapes["model.transformer.ff_out.weight"] = (config["embedding_size"], width)
    for n in range(config["n_layers"]):
        block = f"model.transformer.blocks.{n}."
        shapes |= {
            block + "attn_norm.weight": (width,),
            block + "ff_norm.weight": (width,),
            block + "q_proj.weight": (width, width),
            block + "k_proj.weight": (shared, width),
            block + "v_proj.weight": (shared, width),
            block + "attn_out.weight": (width, width),
            block + "ff_proj.weight": (inner, width),
            block + "up_proj.weight": (inner, width),
            block + "ff_out.weight": (width, inner),
        }
        if config["include_qkv_bias"]:
            sizes = {"q_proj": width, "k_proj": shared, "v_proj": shared}
            shapes |= {f"{block}{name}.bias": (size,) for name, size in sizes.items()}
    return shapes


def _qwen_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, inner = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or width // config["num_attention_heads"]
    sizes = {
        "q_proj": config["num_attention_heads"] * head,
        "k_proj": config["num_key_value_heads"] * head,
        "v_proj": config["num_key_value_heads"] * head,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], width)
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        shapes |= {
            layer + "input_layernorm.weight": (width,),
            layer + "post_attention_layernorm.weight": (width,),
            layer + "self_attn.o_proj.weight": (width, sizes["q_proj"]),
            layer + "mlp.gate_proj.weight": (inner, width),
            layer + "mlp.up_proj.weight": (inner, width),
            layer + "mlp.down_proj.weight": (width, inner),
        }
        shapes |= {f"{layer}self_attn.{name}.weight": (size, width) for name, size in sizes.items()}
        if config["model_type"] == "sdar":
            shapes |= {f"{layer}self_attn.{kind}_norm.weight": (head,) for kind in "qk"}
        elif config["model_type"] != "nemotron_labs_diffusion":
            shapes |= {f"{layer}self_attn.{name}.bias": (size,) for name, size in sizes.items()}
    if config["model_type"] == "nemotron_labs_diffusion":
        renamed = {"lm_head.weight": "diffusion_head.weight"}
        return {renamed.get(n, n.replace("model.", "encoder.")): shape for n, shape in shapes.items()}
    return shapes


def random_tensors(config: dict[str, Any], seed: int, dtype: Any) -> dict[str, Any]:
    """Return weights large enough that leaving any part out changes the output visibly."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in published_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 1:
            values = 0.3 * values + (0.0 if name.endswith("bias") else 1.0)
        else:
            values = values * (1.5 / shape[-1] ** 0.5)
        tensors[name] = values.to(dtype)
    return tensors


def write_tokenizer(folder: Path, family: str) -> None:
    """Write a word-per-character tokenizer whose special tokens sit at the end, as in the published ones."""
    turn_end = TURN_ENDS.get(family, "<|im_end|>")
    marks = ["<|startoftext|>", "<|endoftext|>", MASK_NAMES[family], "<|im_start|>", turn_end]
    settings = {"eos_token": "<|endoftext|>", "chat_template": TEMPLATE.replace("<|im_end|>", turn_end)}
    write_letters(folder, after=marks, settings=settings, plain=[turn_end])


def write_dense(
    folder: Path,
    *,
    family: str = "llada",
    seed: int = 0,
    dtype: Any = None,
    shards: int = 2,
    tokenizer: bool = True,
    generation: dict[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Write a folder that ``load_model`` reads; return the tensors by published name.

    Args:
        folder: made if it does not exist.
        family: ``model_type`` of the family, a key of ``CONFIGS``.
        seed: of the weights.
        dtype: torch dtype of the stored weights, float32 by default.
        shards: number of weight files.
        tokenizer: whether to write a tokenizer and a chat template.
        generation: contents of ``generation_config.json``; none is written by default.
        changes: further values for ``config.json``.
    """
    import torch

    config = {**CONFIGS[family], **changes}
    tensors = random_tensors(config, seed, dtype or torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    write_shards(folder, tensors, shards)
    if tokenizer:
        write_tokenizer(folder, family)
    return tensors


def write_shards(folder: Path, tensors: Mapping[str, Any], shards: int) -> None:
    """Write tensors into several safetensors files with an index, as published checkpoints come."""
    from safetensors import torch as safetensors_torch

    names, weight_map = sorted(tensors), dict[str, str]()
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        safetensors_torch.save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

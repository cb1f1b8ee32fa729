"""Small random MDLM, BD3-LM and SEDD checkpoints in the published layouts.

Written without any of the package's model code, so that a test compares two independent readings of the
layout. The published checkpoints ship no tokenizer; these do unless told otherwise. Needs torch, safetensors
and tokenizers when called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.letters import LETTERS, write_letters

TOKENS = len(LETTERS) + 1
"""Letters and ``<|endoftext|>``; the mask is the id behind them."""
MDLM: dict[str, Any] = {
    "architectures": ["MDLM"],
    "model_type": "mdlm",
    "vocab_size": TOKENS + 1,
    "model_length": 256,
    "hidden_dim": 32,
    "cond_dim": 12,
    "n_blocks": 2,
    "n_heads": 4,
    "dropout": 0.1,
    "time_conditioning": False,
    "return_dict": False,
    "torch_dtype": "float32",
}
BD3LM: dict[str, Any] = {
    **MDLM,
    "architectures": ["BD3LM"],
    "model_type": "bd3lm",
    "block_size": 8,
    "cross_attn": True,
    "attn_backend": "flex",
    "var_min": True,
    "sampling_eps_min": 1e-3,
    "sampling_eps_max": 0.999,
}
SEDD: dict[str, Any] = {
    "tokens": TOKENS,
    "graph": {"type": "absorb", "file": "data", "report_all": False},
    "noise": {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20},
    "model": {
        "name": "small",
        "type": "ddit",
        "hidden_size": 32,
        "cond_dim": 12,
        "length": 256,
        "n_blocks": 2,
        "n_heads": 4,
        "scale_by_sigma": True,
        "dropout": 0.1,
    },
    "sampling": {"predictor": "euler", "steps": 128, "noise_removal": True},
    "training": {"batch_size": 512, "ema": 0.9999},
}


def write_mdlm(folder: Path, *, seed: int = 0, tokenizer: bool = True, **changes: Any) -> dict[str, Any]:
    """Write a folder that ``load_model`` reads; return the tensors by published name.

    Args:
        folder: made if it does not exist.
        seed: of the weights.
        tokenizer: whether to write a tokenizer, which the published checkpoints do not.
        changes: further values for ``config.json``.
    """
    config = {**MDLM, **changes}
    tensors = _tensors(config["vocab_size"], _shape(config, "hidden_dim"), seed, "backbone.")
    return _write(folder, config, tensors, tokenizer)


def write_bd3lm(folder: Path, *, seed: int = 0, tokenizer: bool = True, **changes: Any) -> dict[str, Any]:
    """Write a BD3-LM folder; arguments as for ``write_mdlm``."""
    import torch

    config = {**BD3LM, **changes}
    tensors = _tensors(config["vocab_size"], _shape(config, "hidden_dim"), seed, "backbone.")
    tensors |= {name: torch.tensor(config[name]) for name in ("sampling_eps_min", "sampling_eps_max")}
    return _write(folder, config, tensors, tokenizer)


def write_sedd(
    folder: Path, *, seed: int = 0, tokenizer: bool = True, graph: str = "absorb", **changes: Any
) -> dict[str, Any]:
    """Write a SEDD folder; ``changes`` are for the ``model`` part, ``graph`` is the kind of noise."""
    config = {**SEDD, "model": {**SEDD["model"], **changes}, "graph": {**SEDD["graph"], "type": graph}}
    tensors = _tensors(config["tokens"] + 1, _shape(config["model"], "hidden_size"), seed, "")
    return _write(folder, config, tensors, tokenizer)


def _shape(config: dict[str, Any], width: str) -> tuple[int, int, int, int]:
    return config[width], config["cond_dim"], config["n_blocks"], config["n_heads"]


def _tensors(vocab: int, shape: tuple[int, int, int, int], seed: int, prefix: str) -> dict[str, Any]:
    """Return weights large enough that leaving any part out changes the output visibly."""
    import torch

    width, cond, blocks, heads = shape
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (vocab, width),
        "sigma_map.mlp.0": (cond, 256),
        "sigma_map.mlp.2": (cond, cond),
        "output_layer.norm_final.weight": (width,),
        "output_layer.linear": (vocab, width),
        "output_layer.adaLN_modulation": (2 * width, cond),
    }
    for block in range(blocks):
        shapes |= {
            f"blocks.{block}.norm1.weight": (width,),
            f"blocks.{block}.attn_qkv.weight": (3 * width, width),
            f"blocks.{block}.attn_out.weight": (width, width),
            f"blocks.{block}.norm2.weight": (width,),
            f"blocks.{block}.mlp.0": (4 * width, width),
            f"blocks.{block}.mlp.2": (width, 4 * width),
            f"blocks.{block}.adaLN_modulation": (6 * width, cond),
        }
    generator = torch.Generator().manual_seed(seed)
    steps = torch.arange(0, width // heads, 2).float()
    found = {"rotary_emb.inv_freq": 1.0 / 10000 ** (steps * heads / width)}
    for name, size in shapes.items():
        values = torch.randn(size, generator=generator)
        if len(size) == 1:
            found[name] = 1 + 0.3 * values
        elif name.endswith((".weight", "embedding")):
            found[name] = values / size[1] ** 0.5
        else:
            found[f"{name}.weight"] = values * 1.5 / size[1] ** 0.5
            found[f"{name}.bias"] = 0.5 * torch.randn(size[:1], generator=generator)
    return {prefix + name: values.contiguous() for name, values in found.items()}


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Any], tokenizer: bool) -> dict[str, Any]:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    if tokenizer:
        write_letters(folder, after=["<|endoftext|>"], settings={"eos_token": "<|endoftext|>"})
    return tensors

"""The Qwen bodies of transformers, given our masks and shifts, as a second independent implementation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.models.loading import load_model

transformers = pytest.importorskip("transformers")
SHAPE: dict[str, Any] = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 1e6,
    "attn_implementation": "eager",
}
EXPERTS = {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
NAMED = {"num_experts": 8, "num_local_experts": None}  # the class writes another name
MASK = 59


def write(folder: Path, model: Any, **changes: Any) -> None:
    from safetensors.torch import save_file

    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    tensors = {
        part: value
        for name, whole in model.state_dict().items()
        if name not in tied
        for part, value in _one_by_one(name, whole)
    }
    save_file(tensors, folder / "model.safetensors")
    values = {**model.config.to_dict(), "architectures": None, "mask_token_id": MASK, "eos_token_id": 58}
    (folder / "config.json").write_text(json.dumps({**values, **changes}))


def _one_by_one(name: str, whole: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Experts that the class stacks, under the published names of single experts."""
    stem, stacked, kind = name.partition(".experts.")
    if not stacked or kind not in ("gate_up_proj", "down_proj"):
        return [(name, whole)]
    parts = (
        {"down_proj": whole}
        if kind == "down_proj"
        else dict(zip(("gate_proj", "up_proj"), whole.chunk(2, dim=1), strict=True))
    )
    return [
        (f"{stem}.experts.{expert}.{part}.weight", value[expert].clone())
        for part, value in parts.items()
        for expert in range(len(value))
    ]


@pytest.mark.parametrize(
    ("family", "body", "more", "changes", "block"),
    [
        ("Dream", "Qwen2", {}, {}, None),
        ("Fast_dLLM_Qwen", "Qwen2", {"tie_word_embeddings": True}, {"bd_size": 8}, 8),
        ("sdar", "Qwen3", {"head_dim": 16}, {"block_size": 4}, 4),
        ("sdar_moe", "Qwen3Moe", {**EXPERTS, "norm_topk_prob": True}, {**NAMED, "block_size": 4}, 4),
        ("sdar_moe", "Qwen3Moe", {**EXPERTS, "mlp_only_layers": [0]}, {**NAMED, "block_size": 7}, 7),
    ],
)
def test_log_probs(
    tmp_path: Path, family: str, body: str, more: dict[str, Any], changes: dict[str, Any], block: int | None
) -> None:
    config = getattr(transformers, f"{body}Config")(**SHAPE, **more)
    theirs = getattr(transformers, f"{body}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in theirs.parameters():
        mean = 1.0 if parameter.ndim == 1 else 0.0
        torch.nn.init.normal_(parameter, mean, 0.2, generator=generator)
    write(tmp_path, theirs, model_type=family, **changes)
    ids = torch.randint(0, 58, (1, 21), generator=generator)
    ids[0, ::3] = MASK
    number = torch.arange(21) // (block or 21)
    hidden = number[:, None] < number[None, :]
    bias = torch.zeros(21, 21).masked_fill(hidden, torch.finfo(torch.float32).min)
    with torch.no_grad():
        logits = theirs(input_ids=ids, attention_mask=bias[None, None]).logits[0].double()
    if not family.startswith("sdar"):
        logits = torch.cat((logits[:1], logits[:-1]))
    expected = logits[:, :MASK].log_softmax(-1).numpy()
    found = load_model(str(tmp_path), device="cpu").log_probs(ids[0].tolist())
    assert np.abs(found[:, :MASK] - expected).max() < 2e-5

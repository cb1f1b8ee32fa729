from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orderlens.errors import ModelLoadError
from orderlens.models.families.llada2 import MINI, parse_config
from orderlens.models.files.configfile import read_json

MINI_JSON: dict[str, Any] = {
    "model_type": "llada2_moe",
    "vocab_size": 157184,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 20,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_shared_experts": 1,
    "moe_intermediate_size": 512,
    "first_k_dense_replace": 1,
    "n_group": 8,
    "topk_group": 4,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-06,
    "rope_theta": 600000,
    "partial_rotary_factor": 0.5,
    "max_position_embeddings": 32768,
    "hidden_act": "silu",
    "use_bias": False,
    "use_qkv_bias": False,
    "tie_word_embeddings": False,
    "norm_topk_prob": True,
    "score_function": "sigmoid",
    "rope_scaling": None,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
}


def test_mini_is_read_as_published() -> None:
    assert parse_config(MINI_JSON) == MINI
    assert round(MINI.n_parameters / 1e9, 2) == 16.26
    assert MINI.kv_values_per_token * 2 == 40 * 1024


def test_flash_differs_in_sizes_only() -> None:
    flash = {
        **MINI_JSON,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
    }
    config = parse_config(flash)
    assert (config.n_layers, config.hidden_size, config.n_heads, config.expert_width) == (32, 4096, 32, 1024)
    assert 100e9 < config.n_parameters < 105e9


def test_qk_norm_is_on_when_the_key_is_missing() -> None:
    assert parse_config(MINI_JSON).qk_norm
    assert not parse_config({**MINI_JSON, "use_qk_norm": False}).qk_norm


def test_newer_files_nest_the_rope_values() -> None:
    values = {
        key: value for key, value in MINI_JSON.items() if key not in ("rope_theta", "partial_rotary_factor")
    }
    nested = {"rope_type": "default", "rope_theta": 600000, "partial_rotary_factor": 0.5}
    assert parse_config({**values, "rope_parameters": nested}) == MINI


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_act", "gelu"),
        ("use_bias", True),
        ("use_qkv_bias", True),
        ("tie_word_embeddings", True),
        ("norm_head", True),
        ("norm_topk_prob", False),
        ("score_function", "softmax"),
        ("router_dtype", "bf16"),
        ("use_sliding_window", True),
        ("num_nextn_predict_layers", 1),
        ("quantization_config", {"quant_method": "fp8"}),
        ("model_type", "llada"),
        ("hidden_size", 2048.5),
        ("num_hidden_layers", 0),
        ("rope_theta", -1),
        ("rms_norm_eps", "small"),
        ("use_qk_norm", "yes"),
    ],
)
def test_unsupported_values_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ModelLoadError, match=key) as caught:
        parse_config({**MINI_JSON, key: value})
    assert "\n" not in str(caught.value)


def test_rope_scaling_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="yarn"):
        parse_config({**MINI_JSON, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    with pytest.raises(ModelLoadError, match="rope_scaling"):
        parse_config({**MINI_JSON, "rope_scaling": "linear"})


@pytest.mark.parametrize("key", ["vocab_size", "num_experts", "moe_intermediate_size", "intermediate_size"])
def test_missing_sizes_are_named(key: str) -> None:
    with pytest.raises(ModelLoadError, match=key):
        parse_config({name: value for name, value in MINI_JSON.items() if name != key})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"n_group": 7}, "n_group"),
        ({"n_group": 256}, "at least 2"),
        ({"topk_group": 9}, "topk_group"),
        ({"num_experts_per_tok": 200}, "num_experts_per_tok"),
        ({"partial_rotary_factor": 0.508}, "even"),
        ({"first_k_dense_replace": 21}, "first_k_dense_replace"),
    ],
)
def test_sizes_must_fit_together(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        parse_config({**MINI_JSON, **changes})


def test_unreadable_json_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="missing"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="JSON"):
        read_json(tmp_path / "config.json")
    (tmp_path / "config.json").write_text(json.dumps([1]))
    with pytest.raises(ModelLoadError, match="object"):
        read_json(tmp_path / "config.json")

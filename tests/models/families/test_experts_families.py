"""LLaDA-MoE, SDAR-MoE and LLaDA-2.2: routers, layers, tokens and blocks that differ from LLaDA-2.1."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import plain_moe
import pytest
import torch

import orderlens as ol
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.decoder.model import DecoderModel
from orderlens.models.families import llada2, llada_moe, sdar
from orderlens.models.family_index import find_family
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample
from support import write_llada2, write_moe
from support.moe import CONFIGS

ODD = {"hidden_size": 60, "num_attention_heads": 6, "num_key_value_heads": 3}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("lladamoe", {}),
    ("lladamoe", {"moe_router_enable_expert_bias": True, "moe_layer_freq": [1, 0, 1]}),
    ("lladamoe", {**ODD, "partial_rotary_factor": 0.4, "qk_layernorm": False}),
    ("sdar_moe", {}),
    ("sdar_moe", {"norm_topk_prob": False, "decoder_sparse_step": 2, "block_size": 8}),
    ("sdar_moe", {"num_experts_per_tok": 1}),
    ("sdar_moe", {**ODD, "head_dim": 14, "mlp_only_layers": [], "block_length": 16, "rope_theta": 777.0}),
]
LLADA22 = {"expert_capacity": 5, "block_size": 8, "n_group": None, "topk_group": None, "rope_theta": 3e6}


def tokens_of(model: Any, length: int = 40) -> list[int]:
    tokens = np.random.default_rng(3).integers(0, 90, length)
    tokens[::3] = model.mask_id
    return [int(token) for token in tokens]


@pytest.mark.parametrize(("family", "changes"), CASES)
def test_the_published_definition(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    tensors = write_moe(tmp_path, family=family, **changes)
    assert find_family(tmp_path) == family
    model = load_model(str(tmp_path), device="cpu")
    tokens, config = tokens_of(model), CONFIGS[family] | changes
    block = None if family == "lladamoe" else model.block_size
    rows = plain_moe.logits(tensors, config, tokens, block)
    rows[:, [model.mask_id, *range(model.roles.valid_vocab, model.vocab_size)]] = -torch.inf
    expected, found = rows.log_softmax(-1).numpy(), model.log_probs(tokens)
    kept = np.isfinite(found)
    assert np.abs(found[kept] - expected[kept]).max() < 5e-5


def test_sizes_are_the_published_ones() -> None:
    assert round(llada_moe.MOE_7B.n_parameters / 1e9, 2) == 7.36
    assert round(sdar.MOE_30B.n_parameters / 1e9, 1) == 30.5
    values = CONFIGS["lladamoe"]
    assert llada_moe.parse_config(values).dense_layers == (0,)
    assert sdar.parse_moe_config(CONFIGS["sdar_moe"]).dense_layers == (1,)


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("lladamoe", {"moe_layer_freq": [1]}, "moe_layer_freq"),
        ("lladamoe", {"moe_layer_freq": "all"}, "moe_layer_freq"),
        ("lladamoe", {"shared_expert_intermediate_size": 32}, "shared_expert_intermediate_size=32"),
        ("lladamoe", {"moe_router_score_function": "sigmoid"}, "moe_router_score_function='sigmoid'"),
        ("lladamoe", {"routed_scaling_factor": 2.5}, "routed_scaling_factor=2.5"),
        ("lladamoe", {"router_num_group": 8}, "router_num_group=8"),
        ("lladamoe", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("lladamoe", {"partial_rotary_factor": 1e308}, "partial_rotary_factor=1e.308 .* of at most 1"),
        ("lladamoe", {"attention_bias": True}, "attention_bias=True"),
        ("lladamoe", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("lladamoe", {"architectures": None}, "LLaDA-MoE, another network than LLaDA-8B"),
        ("sdar_moe", {"mlp_only_layers": "0"}, "mlp_only_layers"),
        ("sdar_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
        ("sdar_moe", {"use_regular_causal": True}, "use_regular_causal=True"),
        ("sdar_moe", {"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size=8"),
    ],
)
def test_another_network_is_refused(tmp_path: Path, family: str, changes: dict[str, Any], words: str) -> None:
    write_moe(tmp_path, family=family)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelLoadError, match=words):
        load_model(str(tmp_path), device="cpu")


def test_the_mask_of_llada_moe_comes_from_the_tokenizer(tmp_path: Path) -> None:
    write_moe(tmp_path)
    assert load_model(str(tmp_path), device="cpu").mask_id == 99
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").unlink()
    with pytest.raises(ModelLoadError, match="mask id 156895 is outside the vocabulary"):
        load_model(str(tmp_path), device="cpu")


@pytest.mark.parametrize("family", ["sdar", "sdar_moe"])
def test_the_block_length_in_a_name(tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str) -> None:
    dialect = sdar.DIALECT if family == "sdar" else sdar.MOE_DIALECT
    with caplog.at_level(logging.WARNING):
        assert dialect.read_block_size({}, 999, "hf:JetLM/SDAR-8B-Chat") == 4
        assert dialect.read_block_size({"block_size": 16}, 999, "models/SDAR-8B-Chat-b16") == 16
        assert not caplog.records
        assert dialect.read_block_size({}, 999, "hf:JetLM/SDAR-30B-A3B-Chat-b32@main") == 32
        assert "blocks of 32, from the name" in caplog.text
        assert dialect.read_block_size({"block_size": 4}, 999, "SDAR-8B-Chat-b64") == 4
        assert "blocks of 4, from config.json; the name states 64" in caplog.text
        assert dialect.read_block_size({}, 999, "hf:JetLM/SDAR-8B-Chat-b16@refs/pr/2") == 16
        assert dialect.read_block_size({}, 999, "cache/models--JetLM--SDAR-8B-Chat-b16/snapshots/0a/") == 16
        for other in ("runs-b2/SDAR-8B-Chat", "hf:org-b1/SDAR-8B-Chat@x-b8"):
            assert dialect.read_block_size({}, 999, other) == 4
    folder = tmp_path / "SDAR-b8"
    write_moe(folder, family="sdar_moe")
    assert load_model(str(folder), device="cpu").block_size == 8


def restated(model: DecoderModel, tokens: list[int]) -> None:
    """Compare the choice of experts in one block with the rule, written down again."""
    from orderlens.models.decoder.torch_ops import choose_experts

    generator = torch.Generator().manual_seed(1)
    config, n = model.config, 2 * 8
    logits, bias = torch.randn(n, 16, generator=generator), 0.3 * torch.randn(16, generator=generator)
    valid = torch.ones(2, 8, dtype=torch.bool)
    valid[1, 5:] = False
    ids, weights = choose_experts(logits, bias, config, valid)
    sigmoid = logits.sigmoid()
    for block in range(2):
        rows = [token for token in range(8 * block, 8 * block + 8) if valid.flatten()[token]]
        largest = [(max(float(sigmoid[t, e] + bias[e]) for t in rows), -e) for e in range(16)]
        kept = {-e for _, e in sorted(largest, reverse=True)[: config.expert_capacity]}
        for token in rows:
            chosen = sorted(kept, key=lambda e, t=token: -float(sigmoid[t, e] + bias[e]))[: config.n_active]
            assert set(ids[token].tolist()) == set(chosen)
            total = float(sigmoid[token, chosen].sum())
            for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
                assert weight == pytest.approx(2.5 * float(sigmoid[token, expert]) / total, rel=1e-5)


def test_experts_of_llada22_are_chosen_by_block(tmp_path: Path) -> None:
    write_llada2(tmp_path, **LLADA22)
    model = load_model(str(tmp_path), device="cpu")
    assert isinstance(model, DecoderModel)
    assert (model.block_size, model.config.expert_capacity) == (8, 5)
    tokens = tokens_of(model, 24)
    restated(model, tokens)
    write_llada2(tmp_path / "older", **{**LLADA22, "expert_capacity": None, "n_group": 1, "topk_group": 1})
    older = load_model(str(tmp_path / "older"), device="cpu")
    difference = np.abs(np.exp(model.log_probs(tokens)) - np.exp(older.log_probs(tokens))).max(axis=1)
    assert np.median(difference) > 0.01  # what a reader that knows only 2.1 would get
    whole = load_model(str(write_all(tmp_path / "all")), device="cpu")
    assert np.allclose(whole.log_probs(tokens)[:, :98], older.log_probs(tokens)[:, :98], atol=1e-5)


def write_all(folder: Path) -> Path:
    """A capacity of all experts limits nothing."""
    write_llada2(folder, **{**LLADA22, "expert_capacity": 16})
    return folder


def test_delete_and_split_are_not_revealed(tmp_path: Path) -> None:
    write_llada2(tmp_path, **LLADA22, delete_token_id=100, split_token_id=7)
    model = load_model(str(tmp_path), device="cpu")
    assert isinstance(model, DecoderModel)
    assert model.roles.excluded_ids == {100, 7}
    assert {100, 7} <= model.special_ids
    rows = model.log_probs(tokens_of(model, 16))
    assert (rows[:, [100, 7, model.mask_id]] == -np.inf).all()
    assert np.abs(np.log(np.exp(rows).sum(axis=1))).max() < 1e-5
    sample = EncodedSample("x", np.arange(8), np.array([], np.int64))
    settings = GenerationSettings(max_new_tokens=48, stop_at_eos=False, temperature=3.0)
    columns = generate_batch(model, [sample], parse_policies("random:1"), settings).columns
    assert not set(columns["token_id"].tolist()) & {100, 7, model.mask_id}


@pytest.mark.parametrize("token", [100, 7, 105])
def test_a_target_that_no_order_can_reveal_is_refused(tmp_path: Path, token: int) -> None:
    """DELETE, SPLIT and padding of the vocabulary; in a prompt they are given and change nothing."""
    write_llada2(tmp_path, **LLADA22, delete_token_id=100, split_token_id=7)
    model = load_model(str(tmp_path), device="cpu")
    with pytest.raises(UserInputError, match=f"target token id {token} is one that no order may reveal"):
        ol.score(model, [ol.Sample("a", [1, 2], [5, token, 6])], orders=["forced-ar"])
    rows = ol.score(model, [ol.Sample("a", [1, token], [5, 6])], orders=["forced-ar"]).reveals().to_pandas()
    assert rows["logq"].between(-50, 0).all()


def test_published_ids_of_delete_and_split(tmp_path: Path) -> None:
    from orderlens.models.files.roles import find_roles

    roles = find_roles(tmp_path, {}, 157184, None, llada2.EDITING_ROLES)
    assert roles.excluded_ids == {156930, 156931}
    assert not find_roles(tmp_path, {}, 157184, None, llada2.ROLES).excluded_ids
    stated = find_roles(tmp_path, {"delete_token_id": 5}, 157184, None, llada2.ROLES)
    assert stated.excluded_ids == {5}


@pytest.mark.parametrize("capacity", [3, 17, -1, "all"])
def test_an_impossible_capacity_is_refused(tmp_path: Path, capacity: Any) -> None:
    write_llada2(tmp_path, **{**LLADA22, "expert_capacity": capacity})
    with pytest.raises(ModelLoadError, match="expert_capacity"):
        load_model(str(tmp_path), device="cpu")

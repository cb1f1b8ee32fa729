"""What a folder says: token roles, block sizes, chat; what is refused, in one line that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.cli.main import main
from orderlens.decode.score import score_batch
from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.abilities import chat_template
from orderlens.models.checkpoint_info import published
from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.families import dream, fast_dllm, llada, sdar
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.texts.samples import EncodedSample
from support import write_dense
from support.dense import CONFIGS

KINDS = {
    "llada": ("full", "prompt", 32),
    "Dream": ("full", "prompt", 32),
    "sdar": ("block-causal", "zero", 4),
    "Fast_dLLM_Qwen": ("block-causal", "zero", 8),
}


@pytest.mark.parametrize("family", KINDS)
def test_roles_come_from_the_checkpoint(tmp_path: Path, family: str) -> None:
    write_dense(tmp_path, family=family)
    model: Any = load_model(str(tmp_path), device="cpu")
    assert (model.attention, model.anchor, model.block_size) == KINDS[family]
    assert (model.mask_id, model.eos_ids) == (
        99,
        {98},
    )  # Fast-dLLM's config names no mask: the tokenizer does
    assert model.special_ids == {97, 100, 101}  # the end of a turn too, which the tokenizer does not flag
    assert (model.vocab_size, model.roles.valid_vocab, model.max_positions) == (112, 102, 256)
    chat = chat_template(model)
    assert chat is not None
    assert model.tokenizer.encode(chat.render([{"role": "user", "content": "hi"}]))[0] == 100
    assert family.split("_", maxsplit=1)[0].lower() in repr(model).lower().replace("-", "_")


def test_ids_of_a_generation_configuration(tmp_path: Path) -> None:
    """It may hold the mask, and it adds the end of a turn to what ends a text."""
    write_dense(
        tmp_path,
        family="Dream",
        mask_token_id=None,
        tokenizer=False,
        generation={"mask_token_id": 95, "eos_token_id": [98, 101]},
    )
    model = load_model(str(tmp_path), device="cpu")
    assert (model.mask_id, model.eos_ids, model.special_ids) == (95, {98, 101}, frozenset())


def test_published_ids_are_the_last_resort(tmp_path: Path) -> None:
    write_dense(tmp_path, family="llada", tokenizer=False, mask_token_id=None)
    with pytest.raises(ModelLoadError, match=r"mask id 126336 is outside .* \(mask_token_id\)"):
        load_model(str(tmp_path), device="cpu")


def test_a_model_without_an_end(tmp_path: Path) -> None:
    """No file states an EOS, and the published id is not in the vocabulary: there is no EOS."""
    write_dense(tmp_path, family="sdar", tokenizer=False, eos_token_id=None)
    model = load_model(str(tmp_path), device="cpu")
    assert model.eos_ids == frozenset()
    sample = EncodedSample("x", np.array([1, 2]), np.array([3, 4, 5]))
    columns = score_batch(model, [sample], parse_policies("forced-ar,entropy"))
    assert np.isfinite(columns["logq"]).all()


def test_a_context_shorter_than_the_usual_block(tmp_path: Path) -> None:
    write_dense(tmp_path, family="llada", max_sequence_length=24)
    model = load_model(str(tmp_path), device="cpu")
    assert (model.block_size, model.max_positions) == (24, 24)


@pytest.mark.parametrize(("key", "size"), [("block_size", 16), ("block_length", 8)])
def test_block_size_of_the_configuration(tmp_path: Path, key: str, size: int) -> None:
    write_dense(tmp_path, family="sdar", **{"block_size": None, key: size})
    assert load_model(str(tmp_path), device="cpu").block_size == size
    write_dense(tmp_path, family="sdar", block_size=16, block_length=8)
    with pytest.raises(ModelLoadError, match="block_size and block_length state different blocks"):
        load_model(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        ("llada", {"block_type": "sequential"}, "block_type='sequential' is not supported"),
        ("llada", {"alibi": True}, "alibi=True is not supported"),
        ("llada", {"layer_norm_type": None, "rope": None}, "lacks layer_norm_type, rope; without it"),
        ("llada", {"num_experts": 64}, "LLaDA-MoE"),
        ("llada", {"d_model": 30}, "d_model=30 is not a multiple of n_heads=4"),
        ("llada", {"d_model": 12}, "rotary encoding over 3 dimensions of a head is not possible"),
        ("llada", {"n_kv_heads": 3}, "4 attention heads .* not a multiple of 3"),
        ("Dream", {"use_sliding_window": True}, "use_sliding_window=True is not supported"),
        (
            "Dream",
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            "rope type 'yarn' is not supported",
        ),
        ("Dream", {"rope_scaling": "linear"}, "rope_scaling='linear' is not supported"),
        ("Dream", {"hidden_size": None}, "lacks hidden_size"),
        ("Dream", {"block_size": 32}, "block_size=32 is not supported$"),
        ("sdar", {"attention_bias": True}, "attention_bias=True is not supported"),
        (
            "Fast_dLLM_Qwen",
            {"layer_types": ["sliding_attention"]},
            "layer_types=.'sliding.* is not supported",
        ),
        ("Dream", {"layer_types": 5}, "layer_types=5 is not supported"),
        ("Fast_dLLM_Qwen", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_configurations_that_are_not_carried_out(family: str, changes: dict[str, Any], words: str) -> None:
    dialects = {
        "llada": llada.DIALECT,
        "Dream": dream.DIALECT,
        "sdar": sdar.DIALECT,
        "Fast_dLLM_Qwen": fast_dllm.DIALECT,
    }
    with pytest.raises(ModelLoadError, match=words) as caught:
        dialects[family].parse({**CONFIGS[family], **changes})
    assert str(caught.value).count("\n") == 0


def test_tensors_are_accounted_for(tmp_path: Path) -> None:
    tensors = write_dense(tmp_path, family="sdar", shards=1)
    from safetensors.torch import save_file

    (file,) = tmp_path.glob("*.safetensors")
    more = {**tensors, "model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}
    save_file(more, file)
    with pytest.raises(ModelLoadError, match=r"q_proj\.bias, which an SDAR model does not have"):
        load_model(str(tmp_path), device="cpu")
    less = {name: tensor for name, tensor in tensors.items() if "k_norm" not in name}
    save_file(less, file)
    with pytest.raises(ModelLoadError, match=r"self_attn\.k_norm\.weight"):
        load_model(str(tmp_path), device="cpu")


def test_too_long_and_unspellable(make_small: Any) -> None:
    model = make_small("llada").model
    with pytest.raises(UserInputError, match="257 tokens exceed the model's 256 positions"):
        model.log_probs([1] * 257)
    with pytest.raises(UserInputError, match=r"this model has no tokenizer"):
        model.tokenizer.encode("text")
    with pytest.raises(UserInputError, match="block_size=300"):
        model.with_block_size(300)


@pytest.mark.parametrize("family", KINDS)
def test_doctor_counts_the_weights(tmp_path: Path, family: str, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = write_dense(tmp_path, family=family)
    assert main(["doctor", "--model", str(tmp_path), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)["model"]
    assert about["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert (about["family"], about["dtype"], about["problem"]) == (family, "float32", None)
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    assert main(["doctor", "--model", str(tmp_path)]) == 2
    assert "problem: " in capsys.readouterr().out


def test_models_lists_every_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    rows = {row["id"]: row["summary"] for row in json.loads(capsys.readouterr().out)}
    assert "LLaDA-8B" in rows["llada"]
    assert "Dream-7B" in rows["Dream"]
    assert "blocks of 4" in rows["sdar"]
    assert "Fast-dLLM v2" in rows["Fast_dLLM_Qwen"]


@pytest.mark.parametrize(
    ("repo", "parameters"),
    [
        ("GSAI-ML/LLaDA-8B-Instruct", 8.016),
        ("GSAI-ML/LLaDA-1.5", 8.016),
        ("Dream-org/Dream-v0-Base-7B", 7.616),
    ],
)
def test_published_shapes(repo: str, parameters: float) -> None:
    found = published(repo)
    assert found is not None
    assert isinstance(found.config, DecoderConfig)
    assert found.config.n_parameters / 1e9 == pytest.approx(parameters, abs=0.001)
    assert found.config.kv_values_per_token == 0


def test_a_copy_in_another_precision(make_small: Any) -> None:
    model = make_small("sdar", tie_word_embeddings=True).model
    other = model.with_dtype("bfloat16")
    assert other.weights.unembed_VC is other.weights.embedding_VC
    assert other.weights.layers[0].qkv_bias_O is None
    assert {other.weights.dtype, other.weights.layers[1].q_norm_D.dtype} == {torch.bfloat16}
    assert other.digest != model.digest

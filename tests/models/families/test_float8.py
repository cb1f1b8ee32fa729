"""Weights in 8 bits: converted while loading, stored so in a checkpoint, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import orderlens as ol
from orderlens.decode.generate import GenerationSettings, generate_batch
from orderlens.decode.measure import noise_table
from orderlens.decode.reference import reference_generate, reference_score
from orderlens.decode.score import score_batch
from orderlens.errors import ModelLoadError, RunError, UserInputError
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.checkpoint_info import describe_checkpoint
from orderlens.models.decoder.float8 import FLOAT8, row_scales, to_float8
from orderlens.models.decoder.loader import weight_bytes
from orderlens.models.decoder.weights import MappedExperts
from orderlens.models.families.llada2 import FLASH, MINI, load_llada2
from orderlens.models.loading import load_model
from orderlens.rules import parse_policies
from orderlens.runs.compute import open_model
from orderlens.runs.spec import RunSpec, describe_model
from orderlens.texts.samples import EncodedSample
from support import write_dense, write_llada2
from support.dense import write_shards

Make = Callable[..., tuple[Path, dict[str, Any]]]
BLOCK = 32
QUANTISED = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "modules_to_not_convert": ["lm_head", "mlp.gate"],
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}
SIZES = {"hidden_size": 64, "moe_intermediate_size": 48, "num_shared_experts": 2}
"""An expert's 48 columns are one block and a half."""


def write_float8(folder: Path, keep: Collection[str] = (), **changes: Any) -> dict[str, Any]:
    """Write a checkpoint as published in fp8; return the numbers that it stands for.

    Args:
        folder: the checkpoint's folder.
        keep: parts of names of tensors that are not in fp8.
        changes: further values of config.json.
    """
    tensors = write_llada2(folder, **{**SIZES, **changes}, quantization_config=QUANTISED)
    stored, meant = {}, {}
    for name, tensor in tensors.items():
        stored[name] = meant[name] = tensor
        if any(part in name for part in keep):
            continue
        if (tensor.ndim == 2 and "proj" in name) or "attention.dense" in name:
            stored[name], stored[name + "_scale_inv"], meant[name] = quantised(tensor)
    for shard in folder.glob("*.safetensors"):
        shard.unlink()
    write_shards(folder, stored, 3)
    return meant


def quantised(tensor: Any) -> tuple[Any, Any, Any]:
    """Return float8 values, a scale per block, and their products, block by block."""
    rows, columns = (-(-size // BLOCK) for size in tensor.shape)
    values, scales, meant = (
        torch.empty(tensor.shape, dtype=FLOAT8),
        torch.empty(rows, columns),
        tensor.clone(),
    )
    for row in range(rows):
        for column in range(columns):
            at = (slice(row * BLOCK, (row + 1) * BLOCK), slice(column * BLOCK, (column + 1) * BLOCK))
            scales[row, column] = tensor[at].abs().max() / 448
            values[at] = (tensor[at] / scales[row, column]).to(FLOAT8)
            meant[at] = values[at].float() * scales[row, column]
    return values, scales, meant


def test_conversion_keeps_the_largest_number_of_each_row() -> None:
    weight = torch.randn(6, 40) * torch.tensor([1e-6, 1.0, 30.0, 1e3, 0.02, 0.0])[:, None]
    matrix = to_float8(weight)
    assert (matrix.values_OC.dtype, matrix.scale_OS.shape) == (FLOAT8, (6, 1))  # type: ignore[union-attr]
    back = matrix.plain()
    assert torch.allclose(back.abs().amax(1), weight.abs().amax(1), rtol=1e-6)
    assert float((back - weight).norm() / weight.norm()) < 0.04  # 4 significant bits
    assert not back[5].any()


def test_block_scales_become_row_scales() -> None:
    scales = torch.arange(6.0).view(2, 3)
    found = row_scales(scales, 40, 80, (32, 32), 16)
    expected = torch.stack([scales[row // 32, torch.arange(0, 80, 16) // 32] for row in range(40)])
    assert torch.equal(found, expected)


def test_sizes_of_the_published_shapes() -> None:
    sizes = [weight_bytes(shape, torch.bfloat16, float8=True) / 1e9 for shape in (MINI, FLASH)]
    assert sizes == pytest.approx([17.2, 105.7], abs=0.05)
    assert weight_bytes(MINI, torch.bfloat16) == 2 * MINI.n_parameters


@pytest.mark.parametrize("weights", [None, "fp8"])
def test_the_counted_size_is_that_of_the_tensors(tmp_path: Path, weights: str | None) -> None:
    """Stored scales count too: one per 128 columns is 3 % of the experts."""
    write_float8(tmp_path, ["down_proj"] if weights else [])
    model = load_llada2(tmp_path, device="cpu", experts="device", weights=weights)
    block = model.weights.layers[1].feed_forward
    experts = block.experts  # type: ignore[union-attr]
    parts = (getattr(experts, field.name) for field in fields(experts))
    found = 2 * sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))  # two layers
    plain = 3 * (16 + 2) * SIZES["hidden_size"] * SIZES["moe_intermediate_size"] * 2
    config, scales = model.config, (BLOCK, BLOCK)
    saved = weight_bytes(config, torch.bfloat16) - weight_bytes(config, torch.bfloat16, True, scales)
    assert found == 2 * plain - saved


@pytest.fixture(scope="module")
def converted(checkpoint: Any) -> Any:
    return load_llada2(checkpoint[0], device="cpu", weights="fp8")


def test_experts_are_converted_and_the_rest_is_not(checkpoint: Any, converted: Any) -> None:
    tensors = checkpoint[1]
    block = converted.weights.layers[1].feed_forward
    assert isinstance(block.experts, StackedExperts)
    assert block.experts.gate_up_EFC.dtype == block.experts.down_ECF.dtype == FLOAT8
    for expert in (0, 7):
        for part, found in zip(("gate", "up", "down"), block.experts.matrices(expert), strict=True):
            wanted = tensors[f"model.layers.1.mlp.experts.{expert}.{part}_proj.weight"]
            assert torch.equal(found, to_float8(wanted).plain())
            assert float((found - wanted).norm() / wanted.norm()) < 0.04
    assert torch.equal(block.router_EC, tensors["model.layers.1.mlp.gate.weight"])
    assert torch.equal(converted.weights.layers[1].out_CO, tensors["model.layers.1.attention.dense.weight"])
    assert torch.equal(converted.weights.unembed_VC, tensors["lm_head.weight"])


def test_decoding_equals_the_readable_reference(converted: Any) -> None:
    rng = np.random.default_rng(0)
    sample = EncodedSample("a", rng.integers(1, 90, 5), rng.integers(1, 90, 9))
    policy = parse_policies(["max-prob"])[0]
    found = score_batch(converted, [sample], [policy])
    expected = reference_score(converted, sample, policy)
    assert np.allclose(found["logq"], [event.logq for event in expected], atol=1e-4)
    settings = GenerationSettings(12, stop_at_eos=False)
    made = generate_batch(converted, [sample], [policy], settings).columns
    texts = reference_generate(converted, sample, policy, 12, stop_at_eos=False)
    assert made["token_id"].tolist() == [event.token for event in texts]


def test_another_dtype_keeps_the_float8_weights(converted: Any) -> None:
    half = converted.with_dtype("bfloat16")
    before, after = (model.weights.layers[1].feed_forward.experts for model in (converted, half))
    assert after is before
    assert (half.dtype, half.weight_format) == (torch.bfloat16, "fp8")
    assert half.digest != converted.digest
    rows = [model.log_probs([5, 99, 7])[:, :90] for model in (half, converted)]
    assert np.abs(rows[0] - rows[1]).max() < 0.5


def test_other_weights_are_another_model(checkpoint: Any, model: Any, converted: Any) -> None:
    assert converted.digest != model.digest
    assert "weights" not in describe_model(model)
    assert describe_model(converted)["weights"] == "fp8"
    again = load_model(str(checkpoint[0]), device="cpu", weights="fp8")
    assert again.digest == converted.digest


@pytest.mark.parametrize("place", ["device", "host"])
def test_a_checkpoint_in_float8_loads_as_it_is(tmp_path: Path, place: Any) -> None:
    meant = write_float8(tmp_path)
    model = load_llada2(tmp_path, device="cpu", experts=place)
    experts = model.weights.layers[1].feed_forward.experts  # type: ignore[union-attr]
    assert isinstance(experts, StackedExperts if place == "device" else MappedExperts)
    assert (model.weight_format, model.dtype) == ("fp8", torch.float32)
    prefix = "model.layers.1.mlp."
    names = [prefix + f"experts.{expert}." for expert in range(16)]
    for expert, name in enumerate(names):
        for part, found in zip(("gate", "up", "down"), experts.matrices(expert), strict=True):
            assert torch.allclose(found, meant[f"{name}{part}_proj.weight"], rtol=1e-6)
    shared = [experts.matrices(expert) for expert in (16, 17)]
    assert torch.allclose(
        torch.cat([part[2] for part in shared], 1), meant[prefix + "shared_experts.down_proj.weight"]
    )
    assert torch.allclose(
        torch.cat([part[1] for part in shared]), meant[prefix + "shared_experts.up_proj.weight"]
    )
    assert torch.allclose(model.weights.layers[0].out_CO, meant["model.layers.0.attention.dense.weight"])


def test_a_checkpoint_in_float8_computes_what_its_numbers_say(tmp_path: Path) -> None:
    meant = write_float8(tmp_path / "eight")
    plain = tmp_path / "plain"
    write_llada2(plain, **SIZES)
    for shard in plain.glob("*.safetensors"):
        shard.unlink()
    write_shards(plain, meant, 3)
    tokens = [5, 99, 7, 99, 12]
    wanted = load_llada2(plain, device="cpu").log_probs(tokens)[:, :90]
    for place in ("device", "host"):
        model = load_llada2(tmp_path / "eight", device="cpu", experts=place, weights="fp8")  # type: ignore[arg-type]
        assert np.allclose(model.log_probs(tokens)[:, :90], wanted, atol=1e-4)
        assert model.digest == load_llada2(tmp_path / "eight", device="cpu").digest
    found = describe_checkpoint(str(tmp_path / "eight"))
    assert found is not None
    assert (found.problem, found.dtype, found.float8) == (None, torch.float32, True)


@pytest.mark.parametrize("keep", ["shared_experts", "layers.1.mlp", "experts.0.gate_proj", "down_proj"])
def test_experts_that_are_partly_in_float8(tmp_path: Path, keep: str) -> None:
    """They are not rounded unless ``--weights fp8`` asks for it, on every device."""
    meant = write_float8(tmp_path, [keep])
    stored = [load_llada2(tmp_path, device="cpu", experts=place) for place in ("device", "host")]  # type: ignore[arg-type]
    converted = load_llada2(tmp_path, device="cpu", weights="fp8")
    assert [model.weight_format for model in (*stored, converted)] == [None, None, "fp8"]
    found = describe_checkpoint(str(tmp_path))
    assert found is not None
    assert not found.float8  # so that doctor counts what is loaded
    assert converted.digest != stored[0].digest == stored[1].digest
    assert converted.with_stored_weights() is not None
    prefix = "model.layers.1.mlp.experts.3."
    for part, name in enumerate(("gate", "up", "down")):
        wanted = meant[f"{prefix}{name}_proj.weight"]
        exact, mapped, rounded = (
            model.weights.layers[1].feed_forward.experts.matrices(3)[part]  # type: ignore[union-attr]
            for model in (*stored, converted)
        )
        assert torch.allclose(exact, wanted, rtol=1e-6)
        assert torch.allclose(mapped, wanted, rtol=1e-6)
        assert float((rounded - wanted).norm() / wanted.norm()) < 0.04


def test_keys_about_what_the_tensors_show_are_accepted(tmp_path: Path) -> None:
    write_float8(tmp_path)
    rewrite_config(tmp_path, quantization_config={**QUANTISED, "scale_fmt": "ue8m0", "ignored_layers": ["a"]})
    assert load_llada2(tmp_path, device="cpu").weight_format == "fp8"
    rewrite_config(tmp_path, quantization_config={**QUANTISED, "act_order": True})
    with pytest.raises(ModelLoadError, match=r"quantization_config\.act_order=True is not supported"):
        load_llada2(tmp_path, device="cpu")


def rewrite_config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **changes}))


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    write_float8(tmp_path)
    rewrite_config(tmp_path, quantization_config={**QUANTISED, "weight_block_size": [64, 64]})
    with pytest.raises(ModelLoadError, match=r"_scale_inv has shape \[\d, \d\]"):
        load_llada2(tmp_path, device="cpu")
    rewrite_config(tmp_path, quantization_config=None)
    with pytest.raises(ModelLoadError, match=r"holds tensors? .*_scale_inv|stored as F8_E4M3"):
        load_llada2(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "compressed-tensors"),
        ({"group_size": 64, "bits": 4}, "mlx"),
        ({"quant_method": "fp8"}, "fp8 with weight_block_size=None"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "fp8 with weight_block_size"),
        ({"quant_method": "fp8", "weight_block_size": [128, 40]}, "fp8 with weight_block_size"),
        ({**QUANTISED, "activation_scheme": "static"}, "fp8 with activation_scheme='static'"),
        ({**QUANTISED, "fmt": "e5m2"}, "fp8 with fmt='e5m2'"),
        ("int4", "'int4'"),
    ],
)
def test_other_quantisations_are_refused_by_name(tmp_path: Path, stated: Any, name: str) -> None:
    write_llada2(tmp_path, quantization_config=stated)
    with pytest.raises(ModelLoadError, match=f"quantization_config {name}.*--weights fp8"):
        load_llada2(tmp_path, device="cpu")


def test_mlx_states_it_under_another_key(tmp_path: Path) -> None:
    write_llada2(tmp_path, quantization={"group_size": 64, "bits": 4})
    with pytest.raises(ModelLoadError, match="mlx"):
        load_llada2(tmp_path, device="cpu")


def test_models_without_experts_refuse(tmp_path: Path, checkpoint: Any, model: Any) -> None:
    write_dense(tmp_path, family="llada")
    with pytest.raises(UserInputError, match="has no experts"):
        load_model(str(tmp_path), device="cpu", weights="fp8")
    for name in ("hmm", "tiny"):
        with pytest.raises(UserInputError, match=f"weights 'fp8': model '{name}"):
            load_model(name, weights="fp8")
    with pytest.raises(UserInputError, match="does not support them"):
        load_model(model, weights="fp8")
    with pytest.raises(UserInputError, match="weights 'int4' is unknown; allowed is fp8"):
        load_model(str(checkpoint[0]), device="cpu", weights="int4")
    with pytest.raises(UserInputError, match="experts='host' reads experts as they are stored"):
        load_llada2(checkpoint[0], device="cpu", weights="fp8", experts="host")


def test_the_noise_floor_contains_the_rounding(model: Any, converted: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    samples = [EncodedSample(name, rng.integers(1, 90, 5), rng.integers(1, 90, 9)) for name in "ab"]
    orders = parse_policies(["forced-ar", "random"])
    found = noise_table(converted, samples, orders, score_batch(converted, samples, orders)).to_pandas()
    undone = found[found.perturbation == "stored-weights"]
    plain = score_batch(model, samples, orders)
    sums = [
        plain["logq"][(plain["sample"] == s) & (plain["order"] == o)].sum() for o in (0, 1) for s in (0, 1)
    ]
    assert np.allclose(undone.log_prob_perturbed, sums, atol=1e-4)
    assert (abs(undone.log_prob_perturbed - undone.log_prob) > 1e-3).all()
    write_float8(tmp_path)
    for unrounded in (model, load_llada2(tmp_path, device="cpu")):
        assert unrounded.with_stored_weights() is None


def test_stored_weights_stay_on_the_host_if_the_device_is_too_small(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Any
) -> None:
    def refuse(wanted: str, *_: Any, **__: Any) -> str:
        if wanted != "host":
            raise ModelLoadError("too large")
        return "host"

    converted = load_llada2(checkpoint[0], device="cpu", weights="fp8")
    monkeypatch.setattr("orderlens.models.decoder.model.expert_place", refuse)
    stored = converted.with_stored_weights()
    assert stored is not None
    assert isinstance(stored.weights.layers[1].feed_forward.experts, MappedExperts)  # type: ignore[union-attr]


def test_runs_of_other_weights_are_never_mixed(checkpoint: Any, tmp_path: Path) -> None:
    name, texts, out = str(checkpoint[0]), [ol.Sample("a", "one two", " three")], tmp_path / "run"
    options: dict[str, Any] = {"orders": ["forced-ar"], "device": "cpu", "out": out}
    run = ol.score(name, texts, weights="fp8", **options)
    spec = RunSpec.from_json(json.loads((out / "spec.json").read_text())["spec"])
    assert spec.model["weights"] == "fp8"
    assert describe_model(open_model(spec, device="cpu")) == dict(spec.model)  # as a worker opens it
    assert len(run.reveals()) == len(ol.score(name, texts, weights="fp8", **options).reveals())
    for extend in (False, True):
        with pytest.raises(RunError, match=r"model\.weights: the run has 'fp8', requested no value"):
            ol.score(name, texts, extend=extend, **options)

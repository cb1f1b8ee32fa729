from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_llada2 import published_tensors
from safetensors import torch as safetensors_torch

from orderlens.errors import ModelLoadError
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.loader import expected_shapes, load_weights
from orderlens.models.decoder.weights import MappedExperts
from orderlens.models.families.llada2 import LAYOUT, MINI, load_llada2, parse_config
from orderlens.models.files.checkpoint import Checkpoint, weights_digest
from orderlens.models.files.configfile import read_json

Make = Callable[..., tuple[Path, dict[str, Any]]]
SHARD = "model-00002-of-00003.safetensors"


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None], shard: str = SHARD) -> None:
    """Edit the tensors of one shard in place (a fresh file: the old one may be mapped)."""
    tensors = {name: tensor.clone() for name, tensor in safetensors_torch.load_file(folder / shard).items()}
    change(tensors)
    (folder / shard).unlink()
    safetensors_torch.save_file(tensors, folder / shard)


@pytest.mark.parametrize("place", ["device", "host"])
def test_every_tensor_arrives_where_it_belongs(checkpoint: tuple[Path, dict[str, Any]], place: Any) -> None:
    folder, tensors = checkpoint
    config = parse_config(read_json(folder / "config.json"))
    weights = load_weights(LAYOUT, Checkpoint(folder), config, torch.device("cpu"), torch.float32, place)
    named = published_tensors(weights, config)
    assert named.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(named[name], tensor), name
    kind = StackedExperts if place == "device" else MappedExperts
    assert isinstance(weights.layers[1].feed_forward.experts, kind)


def test_mapped_experts_are_views_of_the_file(checkpoint: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = checkpoint
    reader = Checkpoint(folder)
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    assert reader.tensor(name).data_ptr() == reader.tensor(name).data_ptr()
    experts = load_llada2(folder, device="cpu").weights.layers[1].feed_forward.experts
    assert isinstance(experts, MappedExperts)
    address = experts.matrices(3)[1].data_ptr()
    maps = Path("/proc/self/maps")
    if maps.exists():  # Linux can tell which file an address belongs to
        lines = [line.split() for line in maps.read_text().splitlines() if ".safetensors" in line]
        spans = [tuple(int(edge, 16) for edge in line[0].split("-")) for line in lines]
        assert any(low <= address < high for low, high in spans)


def test_two_shared_experts_are_the_sum_of_two(make_checkpoint: Make) -> None:
    folder, tensors = make_checkpoint(num_shared_experts=2)
    config = parse_config(read_json(folder / "config.json"))
    for place in ("device", "host"):
        weights = load_weights(LAYOUT, Checkpoint(folder), config, torch.device("cpu"), torch.float32, place)
        experts = weights.layers[2].feed_forward.experts
        assert len(experts) == 18
        name = "model.layers.2.mlp.shared_experts.down_proj.weight"
        assert torch.equal(experts.matrices(17)[2], tensors[name][:, 32:])
        assert torch.equal(published_tensors(weights, config)[name], tensors[name])


def test_the_published_layout_has_the_published_number_of_weights() -> None:
    shapes = expected_shapes(LAYOUT, MINI)
    assert len(shapes) == 3 + 20 * 6 + 3 + 19 * (2 + 3 * 256 + 3)
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == MINI.n_parameters


def test_dtype_conversion_and_stored_precision(make_checkpoint: Make) -> None:
    folder, tensors = make_checkpoint(dtype=torch.bfloat16)
    model = load_llada2(folder, device="cpu")
    assert model.weights.dtype == torch.bfloat16
    block = model.weights.layers[1].feed_forward
    assert block.bias_E.dtype == torch.float32  # the selection bias keeps its precision
    assert torch.equal(block.bias_E, tensors["model.layers.1.mlp.gate.expert_bias"])
    wide = load_llada2(folder, device="cpu", dtype="float32")
    assert wide.weights.unembed_VC.dtype == torch.float32
    assert torch.equal(wide.weights.unembed_VC, tensors["lm_head.weight"].float())


def test_one_file_without_index_works(make_checkpoint: Make, tmp_path: Path) -> None:
    folder, tensors = make_checkpoint(shards=1)
    (folder / "model.safetensors.index.json").unlink()
    assert Checkpoint(folder).tensor("lm_head.weight").shape == tensors["lm_head.weight"].shape


def test_missing_shard_is_named(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint()
    (folder / SHARD).unlink()
    with pytest.raises(ModelLoadError, match=SHARD) as caught:
        load_llada2(folder, device="cpu")
    assert "\n" not in str(caught.value)


def test_truncated_shard_is_named(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint()
    content = (folder / SHARD).read_bytes()
    (folder / SHARD).unlink()
    for cut in (len(content) - 100, 20, 3):
        (folder / SHARD).write_bytes(content[:cut])
        with pytest.raises(ModelLoadError, match=SHARD) as caught:
            load_llada2(folder, device="cpu")
        assert "truncated" in str(caught.value)


def test_unknown_tensor_is_named(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint()
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.attention.dense.bias": torch.zeros(32)}))
    with pytest.raises(ModelLoadError, match=r"attention\.dense\.bias"):
        load_llada2(folder, device="cpu")


def test_missing_tensor_is_named(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint(shards=1)
    (folder / "model.safetensors.index.json").unlink()
    name = "model.layers.2.mlp.experts.5.down_proj.weight"
    rewrite(folder, lambda tensors: tensors.pop(name), "model-00001-of-00001.safetensors")
    with pytest.raises(ModelLoadError, match=r"experts\.5\.down_proj"):
        load_llada2(folder, device="cpu")


def test_index_that_promises_more_than_the_shards_hold(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint()
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["model.extra.weight"] = SHARD
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=r"model\.extra\.weight"):
        load_llada2(folder, device="cpu")
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="weight_map"):
        load_llada2(folder, device="cpu")


def test_wrong_shape_and_wrong_dtype_are_named(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint(shards=1)
    shard = "model-00001-of-00001.safetensors"
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(31)}), shard)
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has shape \[31\]"):
        load_llada2(folder, device="cpu")
    rewrite(
        folder, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}), shard
    )
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight is stored as I8"):
        load_llada2(folder, device="cpu")


def test_missing_bias_is_allowed_only_when_the_config_says_so(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint(shards=1, moe_router_enable_expert_bias=False)
    (folder / "model.safetensors.index.json").unlink()
    shard = "model-00001-of-00001.safetensors"

    def drop(tensors: dict[str, Any]) -> None:
        for name in [name for name in tensors if name.endswith("expert_bias")]:
            tensors.pop(name)

    rewrite(folder, drop, shard)
    assert not load_llada2(folder, device="cpu").weights.layers[1].feed_forward.bias_E.any()
    config = read_json(folder / "config.json")
    (folder / "config.json").write_text(json.dumps({**config, "moe_router_enable_expert_bias": True}))
    with pytest.raises(ModelLoadError, match="expert_bias"):
        load_llada2(folder, device="cpu")


def test_a_folder_without_weights_says_so(tmp_path: Path, make_checkpoint: Make) -> None:
    with pytest.raises(ModelLoadError, match="not a folder"):
        Checkpoint(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelLoadError, match="no safetensors"):
        Checkpoint(tmp_path)


def test_digest_sees_every_weight(make_checkpoint: Make) -> None:
    folder, _ = make_checkpoint()
    shards = Checkpoint(folder).shards
    before = weights_digest(shards)
    assert before == weights_digest(shards)
    rewrite(folder, lambda tensors: next(iter(tensors.values())).view(-1)[0].add_(1e-3))
    assert weights_digest(shards) != before


def test_digest_of_a_large_hub_file_is_its_blob_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orderlens.models.files.checkpoint._FULL_DIGEST_BYTES", 10)
    digests = []
    for name in ("aaaa", "bbbb"):
        (tmp_path / name / "blobs").mkdir(parents=True)
        (tmp_path / name / "blobs" / name).write_bytes(bytes(100))
        link = tmp_path / name / "model.safetensors"
        link.symlink_to(tmp_path / name / "blobs" / name)
        digests.append(weights_digest([link]))
    assert digests[0] != digests[1]

"""Checkpoint folders: every tensor accounted for, every fault named, digests that notice changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from orderlens.errors import ModelLoadError  # noqa: E402
from orderlens.models.files import checkpoint as module  # noqa: E402
from orderlens.models.files.checkpoint import INDEX_NAME, Checkpoint, find_shards, weights_digest  # noqa: E402

SHAPES = {"a": (2, 3), "b": (4,)}


def write(folder: Path, name: str, **tensors: torch.Tensor) -> Path:
    folder.mkdir(exist_ok=True)
    safetensors_torch.save_file(tensors, folder / name)
    return folder / name


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "one.safetensors", a=torch.arange(6.0).view(2, 3))
    write(tmp_path, "two.safetensors", b=torch.ones(4, dtype=torch.bfloat16))
    return tmp_path


def index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


def test_tensors_of_all_shards_are_found_by_name(folder: Path) -> None:
    found = Checkpoint(folder)
    found.check(SHAPES, "a model")
    assert found.tensor("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert (found.dtype_of("a"), found.dtype_of("b")) == (torch.float32, torch.bfloat16)
    assert ("a" in found, "c" in found) == (True, False)
    assert found.n_values == 10
    assert found.main_dtype == torch.float32


def test_most_numbers_decide_the_main_dtype(tmp_path: Path) -> None:
    write(tmp_path, "x.safetensors", a=torch.ones(3), b=torch.ones(9, dtype=torch.float16), c=torch.ones(4))
    assert Checkpoint(tmp_path).main_dtype == torch.float16


@pytest.mark.parametrize(
    ("expected", "optional", "message"),
    [
        (SHAPES | {"c": (1,)}, (), "lacks tensor c"),
        (SHAPES | {"c": (1,), "d": (1,)}, (), "lacks tensors c, d"),
        (SHAPES | {"c": (1,)}, ("c",), None),
        ({"a": (2, 3)}, (), "holds tensor b, which a model does not have"),
        (SHAPES | dict.fromkeys("cdefgh", (1,)), (), "lacks tensors c, d, e, f and 2 more"),
        ({"a": (2, 3), "c": (1,)}, (), "lacks tensor c and holds tensor b, which a model does not have"),
        (SHAPES | {"a": (3, 2)}, (), r"tensor a has shape \[2, 3\]; config.json wants \[3, 2\]"),
    ],
)
def test_tensors_that_are_missing_unknown_or_of_another_shape(
    folder: Path, expected: dict[str, tuple[int, ...]], optional: tuple[str, ...], message: str | None
) -> None:
    found = Checkpoint(folder)
    if message is None:
        found.check(expected, "a model", optional)
        return
    with pytest.raises(ModelLoadError, match=message):
        found.check(expected, "a model", optional)


def test_a_dtype_that_nobody_reads_is_named(tmp_path: Path) -> None:
    write(tmp_path, "x.safetensors", a=torch.ones(2, dtype=torch.int64))
    with pytest.raises(ModelLoadError, match="tensor a is stored as I64; supported are BF16, F16, F32"):
        Checkpoint(tmp_path).check({"a": (2,)}, "a model")


def test_packed_weights_are_named_though_config_does_not_state_them(tmp_path: Path) -> None:
    write(tmp_path, "x.safetensors", **{"a.qweight": torch.ones(2), "a.qzeros": torch.ones(2)})
    with pytest.raises(ModelLoadError, match=r"lacks tensor a\.weight .* GPTQ and AWQ are not supported"):
        Checkpoint(tmp_path).check({"a.weight": (2,)}, "a model")


def test_an_index_says_which_files_count(folder: Path) -> None:
    index(folder, {"a": "one.safetensors"})
    shards, names = find_shards(folder)
    assert ([path.name for path in shards], names) == (["one.safetensors"], ["a"])
    assert "b" not in Checkpoint(folder)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "z": "one.safetensors"}, "the index names tensor z, which is in no shard"),
        ({"a": "three.safetensors"}, "shard three.safetensors missing; download the checkpoint again"),
        ({"a": "x", "b": "y"}, "shards x, y missing"),
        ({}, "has no weight_map"),
        ([], "has no weight_map"),
        (None, "has no weight_map"),
        ({"a": 3}, "has no weight_map"),
        ({"a": ["one.safetensors"]}, "has no weight_map"),
    ],
)
def test_an_index_that_cannot_be(folder: Path, weight_map: Any, message: str) -> None:
    index(folder, weight_map)
    with pytest.raises(ModelLoadError, match=message):
        Checkpoint(folder)


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    write(folder, "three.safetensors", a=torch.zeros(2, 3))
    with pytest.raises(ModelLoadError, match="repeats tensor a of another weight file"):
        Checkpoint(folder)
    index(folder, {"a": "one.safetensors", "b": "two.safetensors"})
    assert Checkpoint(folder).tensor("a").tolist() == [[0, 1, 2], [3, 4, 5]]
    write(folder, "two.safetensors", a=torch.zeros(2, 3), b=torch.ones(4))
    with pytest.raises(ModelLoadError, match=r"two\.safetensors repeats tensor a of another weight file"):
        Checkpoint(folder)


def test_an_index_names_files_of_its_folder_only(folder: Path) -> None:
    inner = folder / "model"
    write(inner, "two.safetensors", b=torch.ones(4))
    for place in ("../one.safetensors", str(folder / "one.safetensors")):
        index(inner, {"a": place, "b": "two.safetensors"})
        with pytest.raises(ModelLoadError, match=r"names file .*one\.safetensors; shards must be files of"):
            Checkpoint(inner)


def test_folders_without_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no weights; download the safetensors files"):
        Checkpoint(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelLoadError, match=r"holds no safetensors files, and pickled weights are not read"):
        Checkpoint(tmp_path)
    (tmp_path / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelLoadError, match=r"holds no safetensors files, and GGUF files are not read"):
        Checkpoint(tmp_path)
    with pytest.raises(ModelLoadError, match="is not a folder"):
        Checkpoint(tmp_path / "pytorch_model.bin")
    (tmp_path / "x.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(ModelLoadError, match=r"x.safetensors is truncated or not a safetensors file"):
        Checkpoint(tmp_path)


def test_a_digest_notices_content_names_and_order(folder: Path) -> None:
    one, two = sorted(folder.glob("*.safetensors"))
    before = weights_digest([one, two])
    assert weights_digest([one, two]) == before
    assert weights_digest([two, one]) != before
    assert weights_digest([one]) != before
    data = bytearray(one.read_bytes())
    data[-1] ^= 1
    one.write_bytes(bytes(data))
    assert weights_digest([one, two]) != before
    one.rename(folder / "zero.safetensors")
    assert weights_digest([folder / "zero.safetensors", two]) not in (before, weights_digest([two]))


def test_large_files_are_sampled_and_the_hub_cache_is_trusted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_FULL_DIGEST_BYTES", 100)
    monkeypatch.setattr(module, "_SAMPLE_STRIDE", 64)
    monkeypatch.setattr(module, "_SAMPLE_BYTES", 16)
    path = tmp_path / "x.safetensors"
    data = bytearray(256)
    path.write_bytes(bytes(data))
    before = weights_digest([path])
    data[20] = 1  # between two samples
    path.write_bytes(bytes(data))
    assert weights_digest([path]) == before
    data[64] = 1  # in the second sample
    path.write_bytes(bytes(data))
    assert weights_digest([path]) != before
    blob = tmp_path / "blobs" / "0123abcd"
    blob.parent.mkdir()
    blob.write_bytes(bytes(256))
    link = tmp_path / "y.safetensors"
    link.symlink_to(blob)
    trusted = weights_digest([link])
    blob.write_bytes(b"\x01" * 256)  # the name is the content's own hash; the file is not read
    assert weights_digest([link]) == trusted

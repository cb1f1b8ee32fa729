"""Weight files of every family that are cut off, or that lack or add tensors, are refused first."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from contracts.test_every_model import CHECKPOINTS
from orderlens.errors import ModelLoadError
from orderlens.models.loading import load_model

torch = pytest.importorskip("torch")
READ_BY_TRANSFORMERS = {"bert", "roberta", "modernbert", "xlnet"}


@pytest.fixture(scope="module", params=CHECKPOINTS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    family, write, options = CHECKPOINTS[request.param]
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    write(folder, **options)
    return family, folder


@pytest.fixture
def copied(written: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """A copy to damage; whatever multiplies matrices fails the test."""
    family, folder = written
    shutil.copytree(folder, tmp_path / "model")

    def computed(*_: Any, **__: Any) -> None:
        raise AssertionError("a forward ran")

    for name in ("linear", "embedding", "scaled_dot_product_attention"):
        monkeypatch.setattr(torch.nn.functional, name, computed)
    return family, tmp_path / "model"


def last_shard(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[-1]


@pytest.mark.parametrize("cut", [1, 300, 0.5, 0.0])
def test_a_shard_that_is_cut_off(copied: tuple[str, Path], cut: float) -> None:
    path = last_shard(copied[1])
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * cut) if cut < 1 else -int(cut)])
    with pytest.raises(ModelLoadError, match=path.name):
        load_model(str(copied[1]), device="cpu")


def edit(folder: Path, change: Any) -> str:
    """Rewrite the last shard (and its index, if there is one); return the first tensor's name."""
    from safetensors.torch import load_file, save_file

    path = last_shard(folder)
    tensors = load_file(path)
    first = min(name for name in tensors if not name.endswith(".scale"))
    change(tensors, first)
    save_file(tensors, path, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").unlink(missing_ok=True)
    return first


def test_a_missing_tensor_is_named(copied: tuple[str, Path]) -> None:
    family, folder = copied
    if family in READ_BY_TRANSFORMERS:
        pytest.skip("a tied tensor may be missing; test_encoders drops needed ones")

    def drop(tensors: dict[str, Any], name: str) -> None:
        del tensors[name]

    name = edit(folder, drop)
    with pytest.raises(ModelLoadError) as error:
        load_model(str(folder), device="cpu")
    assert name in str(error.value)


def test_an_extra_tensor_is_named(copied: tuple[str, Path]) -> None:
    family, folder = copied
    if family in READ_BY_TRANSFORMERS:
        pytest.skip("published files hold heads that are not used")

    def add(tensors: dict[str, Any], name: str) -> None:
        tensors["an.extra.tensor"] = tensors[name].clone()

    edit(folder, add)
    with pytest.raises(ModelLoadError, match=r"an\.extra\.tensor"):
        load_model(str(folder), device="cpu")

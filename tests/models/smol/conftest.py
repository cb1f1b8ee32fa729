"""A small base file in the published layout, and a random adapter for it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from small_gguf import small_metadata, small_tensors, write_gguf


@pytest.fixture(scope="session")
def written_tensors() -> dict[str, tuple[np.ndarray, int]]:
    return small_tensors(np.random.default_rng(0))


@pytest.fixture(scope="session")
def small_base(tmp_path_factory, written_tensors) -> Path:
    path = tmp_path_factory.mktemp("base") / "small.gguf"
    write_gguf(path, small_metadata(), written_tensors)
    return path


@pytest.fixture
def small_adapter(tmp_path, small_base) -> Path:
    torch = pytest.importorskip("torch")
    from adapter_files import save_adapter

    from orderlens.models.smol import adapter, llama

    file = llama.GgufFile(small_base)
    network = llama.read_network(file, llama.read_shape(file.metadata, "block-causal", mask_id=16))
    generator = torch.Generator().manual_seed(1)
    shapes = adapter.wanted_shapes(network.config, 4, adapter.norm_names(network))
    state = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    save_adapter(tmp_path / "adapter", state, adapter.AdapterSettings(rank=4, scale=0.5), {"step": 7})
    return tmp_path / "adapter"

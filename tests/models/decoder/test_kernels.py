"""The forward on our kernels against plain torch: on a CUDA GPU, elsewhere in Triton's interpreter."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.models.decoder.config import DecoderConfig
from orderlens.models.decoder.network import DecoderNetwork
from orderlens.models.decoder.torch_ops import TorchOps
from orderlens.models.decoder.weights import random_weights
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.transfer import Windows, pack
from support import kernel_place

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the interpreter warns of −inf − −inf
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]
INTERPRETED, DEVICE, DTYPE = kernel_place()  # kernels are imported by nothing else without a GPU
ROUGH = 1e-5 if INTERPRETED else 3e-2


EXPERTS = {"hidden_size": 64, "n_experts": 8, "n_active": 2, "expert_width": 32, "qk_norm": True}


def shape(**changes: Any) -> DecoderConfig:
    values: dict[str, Any] = {
        "vocab_size": 40,
        "hidden_size": 48,
        "n_layers": 1,
        "ffn_width": 80,
        "n_heads": 2,
        "n_kv_heads": 1,
        "head_width": 32,
        "rope_theta": 1e4,
        "norm_eps": 1e-6,
        "max_positions": 128,
        "attention": "full",
    }
    return DecoderConfig(**{**values, **changes})


def relative_error(found: Any, expected: Any) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def networks(config: DecoderConfig) -> tuple[DecoderNetwork, DecoderNetwork]:
    from orderlens.models.decoder.triton_ops import TritonOps

    weights = random_weights(config, DEVICE, DTYPE, std=0.2)
    return tuple(DecoderNetwork(weights, config, ops(config, DEVICE, DTYPE)) for ops in (TritonOps, TorchOps))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("changes", "size"),
    [({"n_kv_heads": 2, "exact_rotary": True}, (1, 37)), ({"qkv_bias": True}, (3, 5))],  # two tiles; canvases
)
def test_whole_canvases(changes: dict[str, Any], size: tuple[int, int]) -> None:
    fast, plain = networks(shape(**changes))
    tokens = torch.randint(0, 40, size, generator=torch.Generator().manual_seed(1)).int().to(DEVICE)
    assert relative_error(fast.canvas(tokens), plain.canvas(tokens)) < ROUGH


@pytest.mark.parametrize(
    "changes",
    [
        {"qk_norm": True, "qkv_bias": True},
        {"n_heads": 3, "exact_rotary": True},  # smol's groups
        {**EXPERTS, "router": "softmax", "normalised": False, "weighted_bias": True, "expert_bias": True},
        {**EXPERTS, "router": "softmax", "dense_layers": (0,), "n_layers": 2},
        {**EXPERTS, "expert_capacity": 3, "n_shared": 1, "routed_scale": 2.5},
    ],
)
def test_windows_over_a_cache(changes: dict[str, Any]) -> None:
    config = shape(attention="block-causal", **changes)
    found = []
    for network in networks(config):
        pool = PagePool(config, DEVICE, DTYPE, 8, 4)
        slot = pool.open()
        pool.reserve([(slot, 8)])
        rng = np.random.default_rng(2)
        first = pack(np.full(2, slot.row), np.array([0, 4]), np.full(2, 4), rng.integers(0, 40, (2, 4)))
        pool.flush()
        network.store(Windows(torch.from_numpy(first).to(DEVICE), 4), pool)
        last = pack(np.full(2, slot.row), np.array([8, 4]), np.full(2, 4), rng.integers(0, 40, (2, 4)))
        found.append(network.hidden(Windows(torch.from_numpy(last).to(DEVICE), 8), pool))
    assert relative_error(*found) < ROUGH


def test_swiglu() -> None:
    from orderlens.kernels.rowwise import swiglu
    from orderlens.models.engine.layer_parts import swiglu as plain

    gate_up = torch.randn(3, 2 * 1100, generator=torch.Generator().manual_seed(3)).to(DEVICE, DTYPE)
    assert relative_error(swiglu(gate_up), plain(gate_up)) < ROUGH

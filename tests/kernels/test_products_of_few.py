"""Products of few rows, and the kernels that add their parts: on a CUDA GPU, elsewhere interpreted."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from orderlens.models.decoder.network import ExpertNetwork
from orderlens.models.decoder.weights import random_weights
from orderlens.models.engine.pages import PagePool
from orderlens.models.engine.window import Windows, pack
from orderlens.models.families.llada2 import MINI
from support import kernel_place

INTERPRETED, DEVICE, DTYPE = kernel_place()
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
]
SPLITS = 4
SMALL = replace(
    MINI,
    vocab_size=64,
    hidden_size=64,
    n_layers=2,
    ffn_width=64,
    expert_width=32,
    n_experts=8,
    n_active=2,
    n_groups=2,
    n_kept_groups=1,
    n_heads=2,
    n_kv_heads=1,
    head_width=32,
    rotary=16,
    max_positions=64,
)


def relative_error(found: Any, expected: Any) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def randn(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, DTYPE)


def parts(*shape: int, seed: int) -> tuple[Any, Any]:
    """Return parts [S, …] and their sum in the same order, rounded to float16.

    Not to bfloat16, which the interpreter cuts off.
    """
    values = torch.randn(SPLITS, *shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    total = values[0].clone()
    for part in values[1:]:
        total += part
    return values, total.half()


@pytest.mark.parametrize("rows", [1, 5, 32, 64])
@pytest.mark.parametrize("cut", [(64, 64, 64), (32, 128, 32), (64, 256, 256)])
def test_parts_add_up_to_the_product(rows: int, cut: tuple[int, int, int]) -> None:
    from orderlens.kernels.few import Cut, applies, product_parts

    x, matrix = randn(rows, 256, seed=1), randn(192, 256, seed=2)
    found = product_parts(x, matrix, Cut(*cut, stages=2))
    assert found.shape == (256 // cut[1], rows, 192)
    assert found.dtype == torch.float32
    assert relative_error(found.sum(0), x.double() @ matrix.double().T) < 1e-5
    assert applies(x, matrix)
    assert not applies(x, matrix.double())
    assert not applies(randn(65, 256), matrix)


def test_a_rows_numbers_do_not_depend_on_the_others() -> None:
    from orderlens.kernels.few import product_parts

    x, matrix = randn(64, 128, seed=1), randn(64, 128, seed=2)
    error = relative_error(product_parts(x[:7], matrix), product_parts(x, matrix)[:, :7])
    assert error < (1e-6 if INTERPRETED else 1e-30)


def test_the_norm_adds_and_rounds_parts() -> None:
    from orderlens.kernels.rowwise import add_rms_norm

    x, weight = randn(5, 96).half(), randn(96, seed=2).half()
    delta, rounded = parts(5, 96, seed=3)
    for found, expected in zip(
        add_rms_norm(x, delta, weight, 1e-6), add_rms_norm(x, rounded, weight, 1e-6), strict=True
    ):
        assert torch.equal(found, expected)


def test_swiglu_adds_and_rounds_parts() -> None:
    from orderlens.kernels.rowwise import swiglu

    gate_up, rounded = parts(5, 96, seed=3)
    assert torch.equal(swiglu(gate_up, rounded.dtype), swiglu(rounded))


def test_the_router_adds_parts() -> None:
    from orderlens.kernels.experts.route import choose_experts

    logits, _ = parts(9, SMALL.n_experts, seed=3)
    whole = ((logits[0] + logits[1]) + logits[2]) + logits[3]
    bias = torch.randn(SMALL.n_experts, generator=torch.Generator().manual_seed(4)).to(DEVICE) * 0.2
    (ids, weights, visits), (ids_once, weights_once, visits_once) = (
        choose_experts(values, bias, SMALL) for values in (logits, whole)
    )
    assert torch.equal(ids, ids_once)
    assert torch.equal(weights, weights_once)
    assert torch.equal(visits.marks_NR, visits_once.marks_NR)


@pytest.mark.parametrize("store", [False, True])
def test_heads_add_and_round_parts_and_write_values(store: bool) -> None:
    from orderlens.kernels.queries_keys import prepare_heads
    from orderlens.models.decoder.torch_ops import tables_of

    layer = random_weights(SMALL, DEVICE, torch.float16, seed=1, std=0.15).layers[1]
    tables = tables_of(SMALL, DEVICE, torch.float16)
    projection, rounded = parts(10, SMALL.qkv_width, seed=5)
    written = torch.full_like(rounded, torch.nan)
    found = []
    for fused, cut in ((rounded, None), (written, projection)):
        pool, windows = filled(torch.float16)
        qk = prepare_heads(fused, layer, tables, windows, pool, 1, SMALL, store, cut)
        first = (SMALL.n_heads + SMALL.n_kv_heads) * SMALL.head_width
        found.append([qk, fused[:, first:], pool.keys[1], pool.values[1]])
    for plain, added in zip(*found, strict=True):
        assert torch.equal(plain, added)
    assert bool(found[0][2].any()) == store


def filled(dtype: torch.dtype) -> tuple[PagePool, Windows]:
    """Return a pool with two sequences, and a window of five tokens for each."""
    pool = PagePool(SMALL, DEVICE, dtype)
    slots = [pool.open() for _ in range(2)]
    pool.reserve([(slot, 45) for slot in slots])
    pool.flush()
    rows = np.array([slot.row for slot in slots])
    tokens = np.random.default_rng(0).integers(0, SMALL.vocab_size, (2, 5))
    packed = pack(rows, np.array([0, 33]), np.array([5, 4]), tokens)
    return pool, Windows(torch.from_numpy(packed).to(DEVICE), 33)


def test_a_forward_with_own_products_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the portable operations, with every product of the layers counted."""
    from orderlens.kernels.few import product_parts
    from orderlens.models.decoder import triton_ops
    from orderlens.models.decoder.torch_ops import TorchOps

    calls: list[int] = []

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return product_parts(*arguments)

    monkeypatch.setattr(triton_ops, "product_parts", counted)
    weights = random_weights(SMALL, DEVICE, DTYPE, seed=1, std=0.15)
    hidden = []
    for kind in (TorchOps, triton_ops.TritonOps):
        pool, windows = filled(DTYPE)
        network = ExpertNetwork(weights, SMALL, kind(SMALL, DEVICE, DTYPE))
        hidden.append(network.hidden(windows, pool))
    assert relative_error(hidden[1], hidden[0]) < (1e-4 if INTERPRETED else 0.1)
    assert len(calls) == 7  # two layers: one has a feed-forward of two, the other a router

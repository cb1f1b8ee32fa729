"""Float8 experts on float8 units: tokens as pairs, and both products in one launch, against float64."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.nn import functional

from orderlens.kernels.gpu import gpu_of
from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.float8 import Float8Stack, Matrix, to_float8
from orderlens.models.decoder.torch_ops import sort_by_expert
from support import kernel_place

INTERPRETED, DEVICE, DTYPE = kernel_place()
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is not installed (the dev extra has it on Linux)"
)
needs_hopper = pytest.mark.skipif(
    INTERPRETED or not gpu_of(DEVICE).specialises, reason="needs a Hopper and a known version of Gluon"
)
E, F, C = 8, 256, 512


def pairs_of(x: Any) -> Any:
    """Return a tensor as pairs, in plain torch."""
    from orderlens.kernels.pairs import Pairs

    scale = 2.0 ** torch.ceil(torch.log2(x.float().abs().amax(1, keepdim=True) / 448).clamp_min(-100))
    high = (x.float() / scale).to(torch.float8_e4m3fn)
    low = (x.float() / scale - high.float()).to(torch.float8_e4m3fn)
    return Pairs(torch.stack((high, low)), scale)


def numbers_of(pairs: Any) -> Any:
    return pairs.parts_2NK.float().sum(0) * pairs.scale_NG


def test_pairs_hold_the_bits_of_bfloat16() -> None:
    x = torch.randn(64, 512, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    x[0] = 0
    x[1] *= 1e-20
    x[2] *= 1e20
    error = (numbers_of(pairs_of(x)) - x.float()).abs()
    assert (error <= x.float().abs().amax(1, keepdim=True) * 2.0**-10 / 224).all()
    large = x.float().abs() > x.float().abs().amax(1, keepdim=True) / 896
    assert (error[large] == 0).all()


@needs_triton
def test_the_norm_fills_pairs() -> None:
    from orderlens.kernels.pairs import Pairs
    from orderlens.kernels.rowwise import add_rms_norm

    generator = torch.Generator().manual_seed(1)
    x, delta, weight = (torch.randn(*shape, generator=generator) for shape in ((5, 96), (5, 96), (96,)))
    x, delta, weight = (part.to(DEVICE, DTYPE) for part in (x, delta, weight))
    pairs = Pairs.empty(5, 96, 1, DEVICE)
    total, normed = add_rms_norm(x, delta, weight, 1e-6, pairs)
    plain_total, plain = add_rms_norm(x, delta, weight, 1e-6)
    assert torch.equal(normed, plain)
    assert torch.equal(total, plain_total)
    expected = pairs_of(plain)
    assert torch.equal(pairs.scale_NG, expected.scale_NG)
    assert torch.equal(numbers_of(pairs), numbers_of(expected))


def random_experts(columns_per_scale: int | None) -> StackedExperts:
    """Return random float8 experts; scales of groups of columns differ by up to a factor of two."""
    generator = torch.Generator().manual_seed(2)
    block = None if columns_per_scale is None else (32, columns_per_scale)
    stack = Float8Stack(E, F, C, DEVICE, block)

    def matrix(rows: int, columns: int) -> Matrix:
        found = to_float8(torch.randn(rows, columns, generator=generator) / columns**0.5)
        assert found.scale_OS is not None
        if columns_per_scale is None:
            return found
        factor = 1 + torch.rand(rows, columns // columns_per_scale, generator=generator)
        return Matrix(found.values_OC, found.scale_OS * factor)

    for expert in range(E):
        stack.fill(expert, matrix(F, C), matrix(F, C), matrix(C, F))
    return stack.experts


def slow_rows(x: Any, experts: StackedExperts, ids: Any) -> Any:
    """Return every assignment's output [A, C] in float64, one expert at a time."""
    order, counts = sort_by_expert(ids, len(experts))
    out = torch.zeros(ids.numel(), C, dtype=torch.float64, device=DEVICE)
    for expert, chosen in enumerate(order.split(counts.tolist())):
        gate, up, down = (part.double() for part in experts.matrices(expert))
        rows = x.double()[chosen // ids.shape[1]]
        out[chosen] = (functional.silu(rows @ gate.T) * (rows @ up.T)) @ down.T
    return out


@needs_hopper
@pytest.mark.parametrize("columns_per_scale", [None, 128])
@pytest.mark.parametrize("rows", [16, 32, 64])
@pytest.mark.parametrize("tokens", [1, 40, 700])
def test_both_products_in_one_launch(columns_per_scale: int | None, rows: int, tokens: int) -> None:
    from orderlens.kernels.experts.float8_hopper import multiply_plan
    from orderlens.kernels.experts.tiling import Visits, plan_visits

    experts, generator = random_experts(columns_per_scale), torch.Generator().manual_seed(3)
    assert experts.ordered
    x = torch.randn(tokens, C, generator=generator).to(DEVICE, torch.bfloat16)
    ids = torch.stack([torch.randperm(E - 1, generator=generator)[:2] for _ in range(tokens)])
    ids[: tokens // 2, 0], ids[: tokens // 2, 1] = 0, 3  # two with more than a tile; one is idle
    ids, pairs = ids.to(DEVICE), pairs_of(x)
    expected, found = slow_rows(x, experts, ids), []
    for dtype in (torch.float32, torch.bfloat16, torch.bfloat16, torch.bfloat16):
        plan = plan_visits(ids.int(), Visits.of(ids, E), E, rows)
        found.append(multiply_plan(pairs, experts, plan, dtype).double())
    assert (found[0] - expected).norm() < 2e-3 * expected.norm()
    assert (found[1] - expected).norm() < 4e-3 * expected.norm()
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[1], found[3])


@needs_hopper
def test_a_stack_on_float8_units_has_its_columns_in_order() -> None:
    experts = random_experts(None)
    weight = torch.randn(F, C, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    stack = Float8Stack(1, F, C, DEVICE, None)
    stack.fill(0, Matrix(weight), Matrix(weight), Matrix(weight.T.contiguous()))
    gate, up, _ = stack.experts.matrices(0)
    assert torch.equal(gate, to_float8(weight).plain())
    assert torch.equal(gate, up)
    assert experts.ordered
    assert not Float8Stack(1, F, 128, DEVICE, None).experts.ordered  # no multiple of two tiles
    assert not Float8Stack(1, F, C, DEVICE, (64, 64)).experts.ordered

from __future__ import annotations

from typing import Any

import pytest
import torch

from orderlens.kernels.shapes import StackedExperts
from orderlens.models.decoder.float8 import Matrix
from orderlens.models.decoder.torch_ops import grouped_product, loop_over_experts, sort_by_expert
from orderlens.models.decoder.weights import MappedExperts

E, F, C, T, K = 7, 32, 64, 11, 3


@pytest.fixture(scope="module")
def problem() -> tuple[Any, Any, Any, StackedExperts]:
    generator = torch.Generator().manual_seed(1)
    experts = StackedExperts(
        torch.randn(E, 2 * F, C, generator=generator) / 8, torch.randn(E, C, F, generator=generator) / 6
    )
    x = torch.randn(T, C, generator=generator)
    ids = torch.stack(
        [torch.randperm(E - 1, generator=generator)[:K] for _ in range(T)]
    )  # expert 6 stays idle
    weights = torch.rand(T, K, generator=generator)
    return x, ids, weights, experts


def directly(x: Any, ids: Any, weights: Any, experts: StackedExperts) -> Any:
    """Token by token, expert by expert, in float64."""
    rows = []
    for token in range(len(x)):
        total = torch.zeros(x.shape[1], dtype=torch.float64)
        for expert, weight in zip(ids[token].tolist(), weights[token].tolist(), strict=True):
            gate, up, down = (part.double() for part in experts.matrices(expert))
            gated = gate @ x[token].double()
            total += weight * (down @ (gated * torch.sigmoid(gated) * (up @ x[token].double())))
        rows.append(total)
    return torch.stack(rows)


def test_the_loop_equals_the_definition(problem: Any) -> None:
    assert torch.allclose(loop_over_experts(*problem).double(), directly(*problem), atol=1e-5)


def test_mapped_experts_in_another_dtype(problem: Any) -> None:
    x, ids, weights, experts = problem
    halves = MappedExperts(tuple(tuple(Matrix(p.bfloat16()) for p in experts.matrices(e)) for e in range(E)))
    rounded = StackedExperts(experts.gate_up_EFC.bfloat16().float(), experts.down_ECF.bfloat16().float())
    found = loop_over_experts(x, ids, weights, halves)
    assert torch.allclose(found.double(), directly(x, ids, weights, rounded), atol=1e-5)


def test_sorting_is_stable_and_counts(problem: Any) -> None:
    ids = problem[1]
    order, counts = sort_by_expert(ids, E)
    flat = ids.flatten()
    assert flat[order].tolist() == sorted(flat.tolist())
    assert counts.tolist() == [int((flat == expert).sum()) for expert in range(E)]
    for expert in range(E):
        places = order[flat[order] == expert].tolist()
        assert places == sorted(places)


def test_grouped_product_equals_the_definition(problem: Any) -> None:
    x, ids, weights, experts = problem
    half = StackedExperts(experts.gate_up_EFC.bfloat16(), experts.down_ECF.bfloat16())
    try:
        found = grouped_product(x.bfloat16(), ids, weights, half)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(f"this torch has no grouped matrix product on the CPU: {error}")
    expected = directly(x.bfloat16().float(), ids, weights, half)
    assert (found.double() - expected).norm() / expected.norm() < 0.01

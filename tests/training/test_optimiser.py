"""Muon and AdamW against singular values, and against updates written out matrix by matrix."""

from __future__ import annotations

import copy
import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from orderlens.errors import UserInputError  # noqa: E402
from orderlens.models.small.network import Transformer, TransformerConfig  # noqa: E402
from orderlens.training.optimiser import (  # noqa: E402
    NEWTON_SCHULZ,
    Muon,
    Optimiser,
    OptimiserSettings,
    orthogonalise,
)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def by_singular_values(matrix: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """The same map, applied to each singular value: s → a s + b s³ + c s⁵."""
    u, s, vh = torch.linalg.svd(matrix / (matrix.norm() + 1e-7), full_matrices=False)
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u @ torch.diag(s) @ vh


@pytest.mark.parametrize("shape", [(3, 3), (3, 7), (1, 5)])
@pytest.mark.parametrize("steps", [1, 5])
def test_orthogonalising_moves_singular_values_and_nothing_else(shape: tuple[int, int], steps: int) -> None:
    matrices = normal(4, *shape, seed=sum(shape))
    found = orthogonalise(matrices, steps)
    for matrix, result in zip(matrices, found, strict=True):
        assert torch.allclose(result, by_singular_values(matrix, steps), atol=1e-9)


def test_five_steps_bring_the_singular_values_near_one() -> None:
    values = torch.linalg.svdvals(orthogonalise(normal(20, 4, 9, seed=1)))
    assert float(values.min()) > 0.6
    assert float(values.max()) < 1.3


def test_the_size_of_a_gradient_does_not_matter_and_nothing_is_divided_by_zero() -> None:
    matrix = normal(1, 3, 5)
    assert torch.allclose(orthogonalise(matrix), orthogonalise(1e4 * matrix), atol=1e-6)
    assert torch.equal(orthogonalise(torch.zeros(1, 3, 5)), torch.zeros(1, 3, 5))


SETTINGS = OptimiserSettings(matrix_lr=0.02, vector_lr=0.01, momentum=0.9, weight_decay=0.3, clip=1e9)
SHAPES = {"qkv": (6, 4), "grouped": (9, 4), "out": (5, 4), "gate_up": (6, 2), "down": (2, 5)}
PARTS = {"qkv": (2, 2, 2), "grouped": (5, 2, 2), "out": (5,), "gate_up": (3, 3), "down": (2,)}
STACKED = {f"layers.0.{name}.weight": sizes for name, sizes in PARTS.items()}


def named_matrices() -> list[tuple[str, nn.Parameter]]:
    return [
        (f"layers.0.{name}.weight", nn.Parameter(normal(*shape, seed=place)))
        for place, (name, shape) in enumerate(SHAPES.items())
    ]


def by_hand(
    weight: torch.Tensor, gradients: list[torch.Tensor], sizes: tuple[int, ...], lr: float
) -> torch.Tensor:
    """Nesterov momentum, each stacked matrix apart, wide side up, then decay and step."""
    weight, momentum = weight.clone(), torch.zeros_like(weight)
    columns = weight.shape[1]
    for gradient in gradients:
        momentum = 0.9 * momentum + 0.1 * gradient
        ahead = 0.1 * gradient + 0.9 * momentum
        weight = weight * (1 - lr * 0.3)
        for mine, rows in zip(ahead.split(sizes), weight.split(sizes), strict=True):
            turned = len(mine) > columns
            update = by_singular_values(mine.T).T if turned else by_singular_values(mine)
            rows -= lr * 0.2 * math.sqrt(max(len(mine), columns)) * update
    return weight


def test_matrices_that_are_stored_stacked_are_updated_one_by_one() -> None:
    named = named_matrices()
    before = {name: parameter.detach().clone() for name, parameter in named}
    muon = Muon(named, SETTINGS, STACKED)
    gradients = {name: [normal(*p.shape, seed=7 + step) for step in range(3)] for name, p in named}
    for step in range(3):
        for name, parameter in named:
            parameter.grad = gradients[name][step]
        muon.step(0.05)
    for name, parameter in named:
        want = by_hand(before[name], gradients[name], PARTS[name.split(".")[2]], 0.05)
        assert torch.allclose(parameter, want, atol=1e-8), name


def test_momenta_are_saved_by_name() -> None:
    named = named_matrices()
    muon = Muon(named, SETTINGS)
    for _, parameter in named:
        parameter.grad = torch.ones_like(parameter)
    muon.step(0.05)
    state = {name: value.clone() for name, value in muon.state_dict().items()}
    assert all(torch.allclose(value, torch.full_like(value, 0.1)) for value in state.values())
    again = Muon(list(reversed(named)), SETTINGS)
    again.load_state_dict(state)
    assert {name: value.shape for name, value in again.state_dict().items()} == {
        name: parameter.shape for name, parameter in named
    }


def test_queries_keys_and_values_of_grouped_heads_are_three_matrices_of_their_own_sizes() -> None:
    config = TransformerConfig(
        vocab_size=5, n_layers=1, width=8, n_heads=4, n_kv_heads=1, ffn_width=6, block_size=4, max_positions=8
    )
    model = Transformer(config).double()
    before = model.layers[0].attention.qkv.weight.detach().clone()
    give_gradients(model, 3)
    gradient = model.layers[0].attention.qkv.weight.grad.clone()
    Optimiser(model, SETTINGS).step(0.5)
    want = by_hand(before, [gradient], (8, 2, 2), 0.5 * SETTINGS.matrix_lr)
    assert torch.allclose(model.layers[0].attention.qkv.weight, want, atol=1e-8)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 3, bias=False)
        self.norm = nn.LayerNorm(3, bias=False)


def made(seed: int = 0) -> Small:
    model = Small().double()
    for place, parameter in enumerate(model.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=seed + place))
    return model


def give_gradients(model: nn.Module, seed: int) -> float:
    """Set random gradients; return their norm over all parameters."""
    for place, parameter in enumerate(model.parameters()):
        parameter.grad = normal(*parameter.shape, seed=seed + place)
    return math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))  # type: ignore[union-attr]


def test_embeddings_and_norms_take_adams_first_step_without_decay() -> None:
    model = made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = Optimiser(model, SETTINGS)
    norm = give_gradients(model, 3)
    signs = {name: p.grad.sign() for name, p in model.named_parameters()}  # type: ignore[union-attr]
    assert float(optimiser.step(0.5)) == pytest.approx(norm)
    for name in ("embedding.weight", "norm.weight"):
        moved = model.state_dict()[name] - before[name]
        assert torch.allclose(moved, -0.5 * 0.01 * signs[name], atol=1e-7)
    moved = model.out.weight - before["out.weight"] * (1 - 0.02 * 0.5 * 0.3)
    assert torch.linalg.svdvals(moved).max() < 0.02 * 0.5 * 0.2 * 2 * 1.3
    assert torch.linalg.svdvals(moved).min() > 0.02 * 0.5 * 0.2 * 2 * 0.6


def test_clipping_is_over_everything_together_and_the_norm_is_the_one_before() -> None:
    settings = OptimiserSettings(clip=0.5)
    model = made()
    optimiser = Optimiser(model, settings)
    norm = give_gradients(model, 3)
    assert float(optimiser.step(1.0)) == pytest.approx(norm)
    left = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))  # type: ignore[union-attr]
    assert left == pytest.approx(0.5, rel=1e-4)


def test_a_factor_of_zero_moves_nothing_but_remembers() -> None:
    model = made()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = Optimiser(model, SETTINGS)
    give_gradients(model, 3)
    optimiser.step(0.0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert float(optimiser.state_dict()["muon"]["out.weight"].abs().sum()) > 0


def test_a_saved_state_goes_on_alike() -> None:
    one, other = made(), made()
    first, second = Optimiser(one, SETTINGS), Optimiser(other, SETTINGS)
    for step in range(2):
        give_gradients(one, step)
        first.step(1.0)
    other.load_state_dict(one.state_dict())
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for model, optimiser in ((one, first), (other, second)):
        give_gradients(model, 9)
        optimiser.step(0.7)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_a_model_without_matrices_is_refused() -> None:
    with pytest.raises(UserInputError, match="no weight matrices to train"):
        Optimiser(nn.LayerNorm(4), SETTINGS)
    with pytest.raises(UserInputError, match="no weight matrices to train"):
        Optimiser(nn.ModuleDict({"embedding": nn.Embedding(3, 2)}), SETTINGS)

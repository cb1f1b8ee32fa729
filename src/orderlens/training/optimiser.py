"""Muon for the weight matrices, AdamW for embeddings and norms, on float32 master weights.

Muon replaces a matrix's momentum by the nearest orthogonal matrix, found with a few Newton–Schulz steps.
Matrices of one shape are orthogonalised in one batched product; fused projections (q, k, v; gate, up) count
as separate matrices. Both optimisers share the gradient clipping and the learning-rate factor.
``torch.optim.Muon`` uses bfloat16 on every device and one matrix at a time: on a CPU its updates differ by 1
% and take 20 times as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from orderlens.errors import UserInputError
from orderlens.models.small.network import StackedLinear


@dataclass(frozen=True, slots=True)
class LearningRateSchedule:
    """Linear warm-up, a plateau, then linear decay to zero at the end of the budget.

    Attributes:
        steps: number of steps, or None for a limit in time.
        max_minutes: wall time of the whole run, earlier parts of a resumed run included, or None.
        warmup_steps: steps of linear warm-up.
        hold: share of the budget after which the decay starts.
    """

    steps: int | None = None
    max_minutes: float | None = None
    warmup_steps: int = 100
    hold: float = 0.2

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.max_minutes is None):
            raise UserInputError("give the length of training either in steps or in minutes, not both")
        length = self.max_minutes if self.steps is None else self.steps
        if length is None or length <= 0:
            raise UserInputError(f"the length of training must be positive, not {length}")

    def progress(self, step: int, elapsed_s: float) -> float:
        """Return the share of the budget that is spent; training ends at 1."""
        if self.steps is not None:
            return step / self.steps
        assert self.max_minutes is not None
        return elapsed_s / (60.0 * self.max_minutes)

    def factor(self, step: int, elapsed_s: float) -> float:
        """Return the learning-rate factor in [0, 1] for this (0-based) step."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        left = 1.0 - self.progress(step, elapsed_s)
        return warm * min(1.0, max(0.0, left) / (1.0 - self.hold))


NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Quintic coefficients that push all singular values to about 1 within five steps."""


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """Peak learning rates and other settings. Muon's updates are scaled to the size of AdamW's."""

    matrix_lr: float = 5e-3
    vector_lr: float = 3e-3
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    clip: float = 1.0


def orthogonalise(matrices_NRC: Tensor, steps: int = 5) -> Tensor:
    """Return matrices with the same singular vectors and singular values near 1; best with rows ≤ columns."""
    a, b, c = NEWTON_SCHULZ
    x = matrices_NRC / (matrices_NRC.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(b * gram, gram, gram, alpha=c) @ x
    return torch.as_tensor(x.to(matrices_NRC.dtype))


@dataclass(frozen=True, slots=True)
class _Matrix:
    """One matrix: all or some rows of a parameter. ``transposed``: it has more rows than columns."""

    parameter: nn.Parameter
    momentum: Tensor
    rows: slice
    transposed: bool

    def direction(self, keep: float) -> Tensor:
        """Add the gradient to the momentum; return the Nesterov direction, transposed to rows ≤ columns."""
        assert self.parameter.grad is not None
        gradient, momentum = self.parameter.grad[self.rows], self.momentum[self.rows]
        momentum.lerp_(gradient, 1 - keep)
        nesterov = gradient.lerp(momentum, keep)
        return nesterov.mT if self.transposed else nesterov

    def move(self, update: Tensor, decay: float, size: float) -> None:
        """Apply weight decay and the update."""
        weight = self.parameter[self.rows]
        weight.mul_(1 - decay)
        weight.add_(update.mT if self.transposed else update, alpha=-size)


class Muon:
    """The optimiser of the weight matrices."""

    def __init__(
        self,
        named: list[tuple[str, nn.Parameter]],
        settings: OptimiserSettings,
        stacked: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Prepare the momenta.

        Args:
            named: the weight matrices.
            settings: momentum and decay.
            stacked: parameter name → rows of each matrix, for parameters that stack several matrices.
        """
        self._settings = settings
        self._names = [name for name, _ in named]
        self._momentum = [torch.zeros_like(parameter) for _, parameter in named]
        self._groups: dict[tuple[int, int], list[_Matrix]] = defaultdict(list)
        for (name, parameter), momentum in zip(named, self._momentum, strict=True):
            sizes = (stacked or {}).get(name, (len(parameter),))
            for end, rows in zip(accumulate(sizes), sizes, strict=True):
                columns = parameter.shape[1]
                piece = _Matrix(parameter, momentum, slice(end - rows, end), rows > columns)
                self._groups[min(rows, columns), max(rows, columns)].append(piece)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Update every matrix from its gradient."""
        for (_, longest), pieces in self._groups.items():
            keep, decay = self._settings.momentum, self._settings.weight_decay
            updates = orthogonalise(torch.stack([piece.direction(keep) for piece in pieces]))
            for piece, update in zip(pieces, updates, strict=True):
                piece.move(update, lr * decay, lr * 0.2 * longest**0.5)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the momenta by parameter name."""
        return dict(zip(self._names, self._momentum, strict=True))

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the momenta."""
        for name, momentum in zip(self._names, self._momentum, strict=True):
            momentum.copy_(state[name])


class Optimiser:
    """Muon and AdamW for one model; ``step`` reads the parameters' gradients and does not clear them."""

    def __init__(self, model: nn.Module, settings: OptimiserSettings) -> None:
        named = list(model.named_parameters())
        matrices = [item for item in named if item[1].ndim == 2 and "embedding" not in item[0]]
        others = [p for name, p in named if not any(name == other for other, _ in matrices)]
        if not matrices:
            raise UserInputError("the model has no weight matrices to train")
        self.settings = settings
        self._parameters = [p for _, p in named]
        stacked = {
            f"{name}.weight": m.sizes for name, m in model.named_modules() if isinstance(m, StackedLinear)
        }
        self._muon = Muon(matrices, settings, stacked)
        self._adam = torch.optim.AdamW(
            others, lr=settings.vector_lr, betas=settings.betas, weight_decay=0.0, fused=others[0].is_cuda
        )

    def step(self, factor: float) -> Tensor:
        """Clip, update with learning rates scaled by ``factor``; return the gradient norm (no host sync)."""
        norm = nn.utils.clip_grad_norm_(self._parameters, self.settings.clip)
        self._muon.step(self.settings.matrix_lr * factor)
        for group in self._adam.param_groups:
            group["lr"] = self.settings.vector_lr * factor
        self._adam.step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both optimisers."""
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of both optimisers."""
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])

"""Trains low-rank updates of a frozen transformer through its merged weights.

The passes run on a working network whose matrices are base + scale · up @ down. So they cost no more than the
plain network, and decoding uses exactly these matrices. After a backward pass the full gradient of each
matrix is converted to gradients of its two factors; matrices of one shape are processed in one batch. Norm
weights and the mask's embedding are trained directly. Factors and their optimiser are float32.

Shape letters: N matrices of one shape, R rows, C columns, K rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from orderlens.common.rng import keyed_generator
from orderlens.models.small.network import Layer, Transformer
from orderlens.models.smol.adapter import (
    DOWN,
    MASK,
    UP,
    AdaptedMatrix,
    AdapterSettings,
    adapted_matrices,
    norm_names,
)
from orderlens.training.objective import AnyOrderLoss, AttentionBackend, token_loss


@dataclass(frozen=True, slots=True)
class LowRankRates:
    """Peak learning rates of the factors, the norm weights and the mask's embedding; settings of AdamW."""

    factors: float = 1.5e-3
    norms: float = 2e-4
    mask: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0


@dataclass(frozen=True, slots=True)
class _Group:
    """All matrices of one shape: their places in the network, the frozen base, and the two factors."""

    places: list[AdaptedMatrix]
    base_NRC: Tensor
    up_NRK: nn.Parameter
    down_NKC: nn.Parameter


class MaskedStreams(AnyOrderLoss):
    """The any-order loss per token, with a trainable mask embedding; layers may be compiled separately."""

    def __init__(
        self, model: Transformer, length: int, device: torch.device, backend: AttentionBackend
    ) -> None:
        super().__init__(model, length, device, backend)
        embedding = model.embedding.weight
        self.mask_C = nn.Parameter(embedding.detach().float().mean(0).to(embedding.dtype))

        self._end: Callable[[Tensor, Tensor, Tensor], Tensor] = self._predict

    def compile_parts(self) -> None:
        """Compile the layers separately: they share one graph, which compiles faster."""
        if hasattr(torch._dynamo.config, "fail_on_recompile_limit_hit"):
            torch._dynamo.config.fail_on_recompile_limit_hit = True  # fail instead of running slowly
        *body, _ = self.model.layers
        for layer in self.model.layers:
            cast(Layer, layer).attention.index = 0  # different indices would give each layer a separate graph
        for layer in body:
            layer.compile(dynamic=False)
        self._end = torch.compile(self._predict, dynamic=False)

    def forward(self, tokens_BT: Tensor, first_BT: Tensor) -> Tensor:  # type: ignore[override]
        """Return the loss of every token [B·T] in nats, from the copy that hides it."""
        x_BSC = self._streams(tokens_BT, first_BT)
        for layer in list(self.model.layers)[:-1]:
            x_BSC = layer(x_BSC, self.cos, self.sin, self.attend)
        return self._end(x_BSC, tokens_BT, first_BT)

    def _predict(self, x_BSC: Tensor, tokens_BT: Tensor, first_BT: Tensor) -> Tensor:
        last_BTC = self._last(cast(Layer, self.model.layers[-1]), x_BSC, first_BT)
        return token_loss(self.model.final_norm(last_BTC), self.model.embedding.weight, tokens_BT)

    def _streams(self, tokens_BT: Tensor, first_BT: Tensor) -> Tensor:
        shown_BTC = self.model.embedding(tokens_BT)
        first = torch.where(first_BT[..., None], self.mask_C, shown_BTC)
        second = torch.where(first_BT[..., None], shown_BTC, self.mask_C)
        return torch.cat((first, second, shown_BTC), dim=1)


class LowRank:
    """The trainable parts of an adapter of ``base`` (float32), and the network that runs the passes."""

    def __init__(
        self,
        base: Transformer,
        loss: MaskedStreams,
        settings: AdapterSettings,
        rates: LowRankRates,
        seed: int,
    ) -> None:
        self.settings, self._rates, self._loss = settings, rates, loss
        self._weights = dict(loss.model.named_parameters())
        for name, weight in self._weights.items():
            weight.requires_grad_(name != "embedding.weight")
        frozen = {name: tensor.to(loss.mask_C.device) for name, tensor in base.state_dict().items()}
        self._groups = self._factors(base, frozen, seed)
        self._norms = {name: nn.Parameter(frozen[name].float().clone()) for name in norm_names(base)}
        self._mask = nn.Parameter(loss.mask_C.detach().float().clone())
        factors = [tensor for group in self._groups for tensor in (group.up_NRK, group.down_NKC)]
        self._parameters = [*factors, *self._norms.values(), self._mask]
        self._optimiser = torch.optim.AdamW(
            [
                {"params": factors, "peak": rates.factors},
                {"params": list(self._norms.values()), "peak": rates.norms},
                {"params": [self._mask], "peak": rates.mask},
            ],
            lr=rates.factors, betas=rates.betas, weight_decay=0.0, fused=self._mask.is_cuda,
        )  # fmt: skip

    def _factors(self, base: Transformer, frozen: Mapping[str, Tensor], seed: int) -> list[_Group]:
        by_shape: dict[tuple[int, int], list[AdaptedMatrix]] = defaultdict(list)
        for piece in adapted_matrices(base.config):
            by_shape[piece.last - piece.first, frozen[piece.weight].shape[1]].append(piece)
        generator = torch.Generator().manual_seed(int(keyed_generator(seed, "factors").integers(2**62)))
        groups = []
        for (rows, columns), places in by_shape.items():
            base_NRC = torch.stack([frozen[p.weight][p.first : p.last].float() for p in places])
            bound = columns**-0.5
            down = (
                torch.rand(len(places), self.settings.rank, columns, generator=generator) * 2 * bound - bound
            )
            up = base_NRC.new_zeros(len(places), rows, self.settings.rank)
            groups.append(_Group(places, base_NRC, nn.Parameter(up), nn.Parameter(down.to(up.device))))
        return groups

    def _rows(self, place: AdaptedMatrix) -> Tensor:
        return self._weights[place.weight][place.first : place.last]

    def step(self, factor: float) -> Tensor:
        """Take one optimiser step from the working network's gradients; return the gradient norm."""
        self._pull()
        norm = nn.utils.clip_grad_norm_(self._parameters, self._rates.clip)
        for group in self._optimiser.param_groups:
            group["lr"] = group["peak"] * factor
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)
        self.push()
        return norm

    @torch.no_grad()
    def _pull(self) -> None:
        scale = self.settings.scale
        for group in self._groups:
            gradient_NRC = torch.stack([self._gradient(place) for place in group.places]).float()
            group.up_NRK.grad = scale * gradient_NRC @ group.down_NKC.mT
            group.down_NKC.grad = scale * group.up_NRK.mT @ gradient_NRC
        for name, norm in self._norms.items():
            norm.grad = _gradient_of(self._weights[name]).float()
        self._mask.grad = _gradient_of(self._loss.mask_C).float()
        self.drop_gradients()

    def drop_gradients(self) -> None:
        """Clear the working network's gradients."""
        for weight in (*self._weights.values(), self._loss.mask_C):
            weight.grad = None

    def _gradient(self, place: AdaptedMatrix) -> Tensor:
        return _gradient_of(self._weights[place.weight])[place.first : place.last]

    @torch.no_grad()
    def push(self) -> None:
        """Write base, factors, norms and the mask's embedding into the working network."""
        for group in self._groups:
            merged_NRC = torch.baddbmm(
                group.base_NRC, group.up_NRK, group.down_NKC, alpha=self.settings.scale
            )
            torch._foreach_copy_([self._rows(place) for place in group.places], list(merged_NRC.unbind()))
        torch._foreach_copy_([self._weights[name] for name in self._norms], list(self._norms.values()))
        self._loss.mask_C.copy_(self._mask)

    def state(self) -> dict[str, Tensor]:
        """Return the adapter's tensors by name, for ``save_adapter``."""
        state = {MASK: self._mask.detach()}
        for group in self._groups:
            for place, up, down in zip(group.places, group.up_NRK, group.down_NKC, strict=True):
                state[place.name + UP], state[place.name + DOWN] = up.detach(), down.detach()
        return state | {name: norm.detach() for name, norm in self._norms.items()}

    def checkpoint(self) -> dict[str, object]:
        """Return everything a resumed run needs, as plain data and tensors."""
        return {
            "parameters": [parameter.detach() for parameter in self._parameters],
            "optimiser": self._optimiser.state_dict(),
        }

    @torch.no_grad()
    def restore(self, state: dict[str, object]) -> None:
        """Continue from ``checkpoint``."""
        saved = state["parameters"]
        assert isinstance(saved, list)
        for parameter, values in zip(self._parameters, saved, strict=True):
            parameter.copy_(values)
        self._optimiser.load_state_dict(state["optimiser"])  # type: ignore[arg-type]
        self.push()


def _gradient_of(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad

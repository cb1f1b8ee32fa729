"""Drawing a token when the vocabulary was only seen panel by panel. Plain torch, on any device.

The draw inverts the distribution function over ascending ids at one uniform number, as the chunked head does:
first among the panels by their total weights, then inside the one panel that holds it. Sums are float64.

Shape letters: P panels, R rows, K ids in a panel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PanelChoice:
    """The panel that holds each row's draw; all [R], float64 but for the panel.

    Attributes:
        panel: its index.
        before: total weight of the panels before it.
        goal: the cumulative weight at which the draw lies.
        total: total weight of the row.
        top: the row's largest logit, from which weights are measured.
    """

    panel: Tensor
    before: Tensor
    goal: Tensor
    total: Tensor
    top: Tensor


def choose_panel(top_PR: Tensor, mass_PR: Tensor, temperature: float, uniform_R: Tensor) -> PanelChoice:
    """Choose the panel in which the cumulative weight passes uniform × total.

    Args:
        top_PR: largest logit of each panel, −inf where nothing can be revealed.
        mass_PR: sum of exp((logit − top) / temperature) over the panel, 0 there.
        temperature: positive.
        uniform_R: one number in [0, 1) per row, float64.
    """
    top_R = top_PR.amax(dim=0).double()
    weight_PR = mass_PR.double() * torch.exp((top_PR.double() - top_R) / temperature)
    cumulative_PR = weight_PR.cumsum(dim=0)
    total_R = cumulative_PR[-1]
    goal_R = uniform_R * total_R
    panel_R = torch.minimum((cumulative_PR <= goal_R).sum(dim=0), _last_positive(weight_PR.T))
    before_R = torch.nn.functional.pad(cumulative_PR, (0, 0, 1, 0)).gather(0, panel_R[None])[0]
    return PanelChoice(panel_R, before_R, goal_R, total_R, top_R)


def choose_inside(
    logits_RK: Tensor, choice: PanelChoice, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Find each row's draw among the logits of its chosen panel (−inf where nothing can be revealed).

    Returns:
        The draw's offset in the panel, how far its logit lies below the row's largest, and its
        log-probability at the temperature; all [R], the last two float64.
    """
    below_RK = logits_RK.double() - choice.top[:, None]
    weight_RK = torch.exp(below_RK / temperature)
    passed_RK = choice.before[:, None] + weight_RK.cumsum(dim=1) <= choice.goal[:, None]
    offset_R = torch.minimum(passed_RK.sum(dim=1), _last_positive(weight_RK))
    below_R = below_RK.gather(1, offset_R[:, None])[:, 0]
    return offset_R, below_R, below_R / temperature - choice.total.log()


def _last_positive(weight_RX: Tensor) -> Tensor:
    """Return the last index with a positive weight: rounding may carry the goal past it."""
    return weight_RX.shape[1] - 1 - (weight_RX > 0).flip(1).int().argmax(dim=1)

"""Validation: the any-order bound, and log P/n of fixed texts under fixed orders.

Simple batched code for windows of token ids, to check a training run. It shares no code with the cached
decoder, and tests compare the two. Orders are forced, reverse and random inside blocks.

Shape letters: B batch, T window, S streams × T.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from orderlens.common.rng import keyed_generator
from orderlens.errors import UserInputError
from orderlens.models.evaluators.small import causal_log_probs
from orderlens.models.small.network import Transformer, revealed_mask
from orderlens.training.objective import (
    AnyOrderLoss,
    PermutationLoss,
    block_causal_rule,
    dense_attend,
    dense_mask,
    sample_masks,
    sample_permutations,
    step_generator,
)

ORDERS = ("forced-ar", "reverse-ar", "random")


@torch.no_grad()
def any_order_bound(model: Transformer, windows_BT: Tensor, draws: int = 4, seed: int = 0) -> float:
    """Return the any-order bound in nats per token, averaged over ``draws`` sets of masks."""
    batch, length = windows_BT.shape
    group = model.config.block_size if model.config.attention == "block-causal" else length
    if model.config.attention == "permutation":
        return _permutation_bound(model, windows_BT, draws, seed)
    loss = AnyOrderLoss(model, length, windows_BT.device, "dense")
    total = 0.0
    for draw in range(draws):
        masks = sample_masks(batch, length, group, step_generator(seed, draw, windows_BT.device))
        logp_BT = _log_probs(model, loss.hidden(windows_BT, masks.first), windows_BT)
        total -= float((logp_BT * masks.weight).sum())
    return total / draws


def _permutation_bound(model: Transformer, windows_BT: Tensor, draws: int, seed: int) -> float:
    """Return the same bound; every draw gives all conditionals along one order per window."""
    loss, (batch, length) = PermutationLoss(model), windows_BT.shape
    total = 0.0
    for draw in range(draws):
        order = sample_permutations(batch, length, step_generator(seed, draw, windows_BT.device))
        logp_BT = _log_probs(model, loss.hidden(windows_BT, order.rank), windows_BT)
        total -= float((logp_BT * order.weight).sum())
    return total / draws


def reveal_ranks(batch: int, length: int, prefix: int, block_size: int, order: str, seed: int = 0) -> Tensor:
    """Return [B, T]: the step inside its block at which each position is revealed, −1 for the prompt."""
    ranks_BT = torch.full((batch, length), -1)
    for row in range(batch):
        rng = keyed_generator(seed, "order", row)
        for start in range(prefix - prefix % block_size, length, block_size):
            first, end = max(start, prefix), min(start + block_size, length)
            ranks_BT[row, first:end] = torch.as_tensor(
                _places(order, end - first, rng.permutation(end - first))
            )
    return ranks_BT


def _places(order: str, count: int, shuffled: object) -> object:
    if order not in ORDERS:
        raise UserInputError(f"unknown order '{order}' (allowed here: {', '.join(ORDERS)})")
    return {"forced-ar": range(count), "reverse-ar": range(count - 1, -1, -1), "random": shuffled}[order]


@torch.no_grad()
def order_log_probs(model: Transformer, windows_BT: Tensor, ranks_BT: Tensor) -> Tensor:
    """Return each target token's log-probability at the step that reveals it, [B, T]; 0 for the prompt.

    Block-causal models decode all blocks in parallel, one pass per step inside the block. Models with full
    attention take one pass per token, with later blocks hidden.
    """
    if model.config.attention != "block-causal":
        ranks_BT = _across_blocks(ranks_BT, model.config.block_size)
    result = torch.zeros(windows_BT.shape, device=windows_BT.device)
    for step in range(int(ranks_BT.max()) + 1):
        noisy_BT = windows_BT.masked_fill(ranks_BT >= step, model.config.mask_id)
        now = ranks_BT == step
        result[now] = _target_log_probs(model, noisy_BT, windows_BT)[now]
    return result


def _across_blocks(ranks_BT: Tensor, block_size: int) -> Tensor:
    """Convert steps inside blocks to steps of the whole trace, blocks left to right."""
    block = torch.arange(ranks_BT.shape[1], device=ranks_BT.device) // block_size
    key = torch.where(ranks_BT < 0, -1, block * block_size + ranks_BT)
    order = key.argsort(dim=1, stable=True).argsort(dim=1)
    return torch.where(ranks_BT < 0, -1, order - (ranks_BT < 0).sum(1, keepdim=True))


def _target_log_probs(model: Transformer, noisy_BT: Tensor, clean_BT: Tensor) -> Tensor:
    return _log_probs(model, _noisy_states(model, noisy_BT, clean_BT), clean_BT)


def _log_probs(model: Transformer, hidden: Tensor, targets_BT: Tensor) -> Tensor:
    """Return log p(target) [B, T] over all tokens except the mask id."""
    logits_BTV = functional.linear(hidden, model.embedding.weight).float()
    logits_BTV[..., model.config.mask_id] = -torch.inf
    return logits_BTV.log_softmax(-1).gather(-1, targets_BT[..., None]).squeeze(-1)


def _noisy_states(model: Transformer, noisy_BT: Tensor, clean_BT: Tensor) -> Tensor:
    length, device = noisy_BT.shape[1], noisy_BT.device
    positions = torch.arange(length, device=device)[None]
    if model.config.attention == "full":
        return torch.as_tensor(
            model(noisy_BT, positions, dense_attend(torch.ones(length, length, device=device).bool()))
        )
    if model.config.attention == "permutation":
        mask = revealed_mask(noisy_BT == model.config.mask_id)
        return torch.as_tensor(model(noisy_BT, positions, dense_attend(mask)))
    rule = block_causal_rule(length, model.config.block_size, noisy=1)
    attend = dense_attend(dense_mask(rule, 2 * length, device))
    states = model(torch.cat((noisy_BT, clean_BT), 1), positions.repeat(1, 2), attend)
    return torch.as_tensor(states[:, :length])


def mean_log_prob(
    model: Transformer, windows_BT: Tensor, prefix: int, order: str, seed: int = 0, batch: int = 32
) -> Tensor:
    """Return log P/n of each window's tokens after ``prefix``, [B], in nats per token."""
    size, length = windows_BT.shape
    if model.config.attention == "causal":
        chunks = [_causal(model, part)[:, prefix:] for part in torch.split(windows_BT, batch)]
    else:
        ranks = reveal_ranks(size, length, prefix, model.config.block_size, order, seed)
        parts = zip(
            torch.split(windows_BT, batch), torch.split(ranks.to(windows_BT.device), batch), strict=True
        )
        chunks = [order_log_probs(model, windows, steps) for windows, steps in parts]
    return torch.cat(chunks).double().sum(1) / (length - prefix)


@torch.no_grad()
def _causal(model: Transformer, windows_BT: Tensor) -> Tensor:
    inputs = functional.pad(windows_BT[:, :-1], (1, 0), value=model.config.eos_id)
    return causal_log_probs(model, inputs, windows_BT)

"""How many tokens are hidden, and which.

Per block the number of hidden tokens is uniform. Masks come in complementary pairs: what the first noisy
copy hides the second shows, so every token of a window is predicted exactly once per step and the number of
predicted rows is constant. With m uniform on 0…n for the first copy, n − m is uniform on 0…n too; a copy
that hides nothing contributes nothing, and the sizes of those that do are uniform on 1…n.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from orderlens.common.rng import keyed_generator


@dataclass(frozen=True, slots=True)
class MaskPair:
    """A complementary pair of masks for a batch of windows.

    Attributes:
        first: booleans [B, T], True where the first copy hides the token; the second copy hides the others.
        weight: floats [B, T], each token's weight; the weighted sum of losses estimates the any-order bound
            in nats per token.
    """

    first: Tensor
    weight: Tensor


def sample_masks(batch: int, length: int, block_size: int, generator: torch.Generator) -> MaskPair:
    """Draw the masks of one step on the generator's device."""
    device, blocks = generator.device, length // block_size
    score = torch.rand(batch, blocks, block_size, generator=generator, device=device)
    size = torch.randint(0, block_size + 1, (batch, blocks, 1), generator=generator, device=device)
    first = score.argsort(-1).argsort(-1) < size
    return MaskPair(first.view(batch, length), pair_weights(first, size).view(batch, length))


@dataclass(frozen=True, slots=True)
class Permutation:
    """Orders of a batch of windows, of which the first tokens are given.

    Attributes:
        rank: integers [B, T]: when a token is revealed, −1 for those that are given.
        weight: floats [B, T], 0 for given tokens; the weighted sum of losses estimates the any-order bound in
            nats per token.
    """

    rank: Tensor
    weight: Tensor


def sample_permutations(batch: int, length: int, generator: torch.Generator) -> Permutation:
    """Draw an order per window and how many of its tokens are given, uniform on 0…n − 1.

    A token that is predicted with v others visible is predicted in (v + 1) / n of all draws, so a weight of
    1 / (v + 1) counts every number of visible tokens alike.
    """
    device = generator.device
    place = torch.rand(batch, length, generator=generator, device=device).argsort(-1).argsort(-1)
    given = torch.randint(0, length, (batch, 1), generator=generator, device=device)
    predicted = place >= given
    rank = torch.where(predicted, place - given, -1)
    return Permutation(rank, predicted.float() / (batch * (place + 1)))


def pair_weights(first_BNK: Tensor, size_BN1: Tensor) -> Tensor:
    """Average each copy over the tokens it hides, and the copies over their expected number, 2n/(n+1)."""
    batch, blocks, block_size = first_BNK.shape
    copies = batch * blocks * 2 * block_size / (block_size + 1)
    hidden = torch.where(first_BNK, size_BN1, block_size - size_BN1)
    return 1.0 / (hidden.float() * copies)


def step_generator(seed: int, step: int, device: torch.device) -> torch.Generator:
    """Return the mask generator of one step: a function of seed and step alone."""
    key = int(keyed_generator(seed, "masks", step).integers(2**62))
    return torch.Generator(device=device).manual_seed(key)

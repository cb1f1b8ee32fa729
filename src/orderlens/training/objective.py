"""The training losses, their random masks, and attention masks. Each loss maps windows to nats per token.

An attention mask is a rule with two backends: FlexAttention and plain masked attention. The order-agnostic
losses concatenate several *streams* of the same window, ``length`` positions each. Two streams are noisy (a
token hidden in one is visible in the other). For block-causal training a third, clean stream follows: a noisy
block sees itself and the clean blocks before it; the clean stream is block-causal. For full attention there
is no clean stream, and each noisy stream sees only itself.

Per block the number of hidden tokens is uniform. Masks come in complementary pairs: the second noisy copy
shows the tokens that the first hides. So every token of a window is predicted exactly once per step, and the
number of predicted rows is constant. With m uniform on 0…n for the first copy, n − m is uniform on 0…n too. A
copy that hides nothing contributes nothing; the sizes of the others are uniform on 1…n.

``AnyOrderLoss`` is the any-order bound: per block a uniform number of hidden tokens, averaged over the hidden
ones. ``PermutationLoss`` is the same bound along sampled orders, with two streams. ``CausalLoss`` is the
usual next-token loss with EOS before the window. In all of them row i predicts position i. Does not depend on
optimisers, devices or files.

Shape letters: B batch, T window, S streams × T, C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from orderlens.common.rng import keyed_generator
from orderlens.models.engine.layer_parts import rotary_at
from orderlens.models.small.network import Attend, Layer, Transformer, attention, causal_attend

Rule: TypeAlias = Callable[[Any, Any, Any, Any], Tensor]
"""(batch, head, query index, key index) -> may see; FlexAttention's mask function."""
AttentionBackend: TypeAlias = Literal["flex", "dense"]

NOISY_STREAMS = 2


def block_causal_rule(length: int, block_size: int, noisy: int = NOISY_STREAMS) -> Rule:
    """Return the rule for ``noisy`` noisy streams followed by one clean stream."""

    def rule(_batch: Any, _head: Any, query: Any, key: Any) -> Tensor:
        q_stream, k_stream = query // length, key // length
        q_block, k_block = (query % length) // block_size, (key % length) // block_size
        q_clean, k_clean = q_stream == noisy, k_stream == noisy
        own = (q_stream == k_stream) & (q_block == k_block)
        seen: Tensor = own | (k_clean & (q_block > k_block)) | (q_clean & k_clean & (q_block >= k_block))
        return seen

    return rule


def full_rule(length: int) -> Rule:
    """Return the rule for noisy streams that each see only themselves, completely."""

    def rule(_batch: Any, _head: Any, query: Any, key: Any) -> Tensor:
        seen: Tensor = (query // length) == (key // length)
        return seen

    return rule


def permutation_mask(rank_BT: Tensor) -> Tensor:
    """Return the mask [B, 1, 2 T, 2 T] of a query stream followed by a content stream; True: the row sees it.

    A query sees itself and the content of tokens revealed before it. Content sees itself and the content
    revealed before it; prompt tokens (rank −1) see each other. A query is visible only to itself.
    """
    rank = rank_BT[:, :, None]
    earlier = rank_BT[:, None, :] < rank
    not_later = rank_BT[:, None, :] <= rank
    own = torch.eye(rank_BT.shape[1], dtype=torch.bool, device=rank_BT.device).expand_as(earlier)
    queries = torch.cat((own, earlier), dim=2)
    content = torch.cat((torch.zeros_like(own), not_later), dim=2)
    return torch.cat((queries, content), dim=1)[:, None]


def dense_mask(rule: Rule, size: int, device: torch.device | None = None) -> Tensor:
    """Return the rule as booleans [size, size]."""
    index = torch.arange(size, device=device)
    return rule(0, 0, index[:, None], index[None, :])


def dense_attend(mask_TT: Tensor) -> Attend:
    """Return plain attention under a boolean mask."""

    def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, mask_TT)

    return attend


def flex_attend(rule: Rule, size: int, device: torch.device) -> Attend:
    """Return FlexAttention with a block-sparse mask; fast only inside ``torch.compile`` on CUDA."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    block_mask = create_block_mask(rule, None, None, size, size, device=str(device))

    def attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        group = q.shape[1] // k.shape[1]  # repeat keys: the kernel's own grouping needs powers of two
        k, v = (x.repeat_interleave(group, dim=1) if group > 1 else x for x in (k, v))
        o_BHTD = flex_attention(q, k, v, block_mask=block_mask)
        assert isinstance(o_BHTD, Tensor)
        return o_BHTD

    return attend


def stream_attend(rule: Rule, size: int, device: torch.device, backend: AttentionBackend) -> Attend:
    """Return attention under ``rule``, computed by the backend."""
    if backend == "flex":
        return flex_attend(rule, size, device)
    return dense_attend(dense_mask(rule, size, device))


class AnyOrderLoss(nn.Module):
    """Order-agnostic loss of a window under a complementary pair of masks (see ``MaskPair``)."""

    def __init__(
        self, model: Transformer, length: int, device: torch.device, backend: AttentionBackend
    ) -> None:
        super().__init__()
        config = model.config
        self.model = model
        self.clean = config.attention == "block-causal"
        streams = NOISY_STREAMS + int(self.clean)
        rule = block_causal_rule(length, config.block_size) if self.clean else full_rule(length)
        self.attend = stream_attend(rule, streams * length, device, backend)
        positions = torch.arange(length, device=device).repeat(streams)[None]
        self.cos, self.sin = rotary_at(positions, config.head_width, config.rope_theta)

    def forward(self, tokens_BT: Tensor, first_BT: Tensor, weight_BT: Tensor) -> Tensor:
        """Return the weighted loss; ``first`` and ``weight`` are those of a ``MaskPair``."""
        hidden_BTC = self.hidden(tokens_BT, first_BT)
        loss = token_loss(hidden_BTC, self.model.embedding.weight, tokens_BT)
        return (loss * weight_BT.flatten()).sum()

    def hidden(self, tokens_BT: Tensor, first_BT: Tensor) -> Tensor:
        """Return the final state [B, T, C] of every token, from the copy in which it is hidden."""
        x_BSC = self._streams(tokens_BT, first_BT)
        *body, last = self.model.layers
        assert isinstance(last, Layer)
        for layer in body:
            x_BSC = layer(x_BSC, self.cos, self.sin, self.attend)
        return torch.as_tensor(self.model.final_norm(self._last(last, x_BSC, first_BT)))

    def _streams(self, tokens_BT: Tensor, first_BT: Tensor) -> Tensor:
        embedding = self.model.embedding
        shown_BTC = embedding(tokens_BT)
        mask_C = embedding.weight[self.model.config.mask_id]
        first = torch.where(first_BT[..., None], mask_C, shown_BTC)
        second = torch.where(first_BT[..., None], shown_BTC, mask_C)
        return torch.cat((first, second, shown_BTC) if self.clean else (first, second), dim=1)

    def _last(self, layer: Layer, x_BSC: Tensor, first_BT: Tensor) -> Tensor:
        """Run the last layer; after its attention only the predicted rows are computed."""
        attention = layer.attention
        q, k, v = attention.heads(layer.attention_norm(x_BSC), self.cos, self.sin)
        o_BSC = self.attend(attention.index, q, k, v).transpose(1, 2).flatten(2)
        x_BTC = pick_hidden(x_BSC, first_BT) + attention.out(pick_hidden(o_BSC, first_BT))
        return torch.as_tensor(layer.ffn(layer.ffn_norm(x_BTC), x_BTC))


def pick_hidden(x_BSC: Tensor, first_BT: Tensor) -> Tensor:
    """Return each token's row from the noisy stream that hides it, [B, T, C]."""
    length = first_BT.shape[1]
    return torch.where(first_BT[..., None], x_BSC[:, :length], x_BSC[:, length : 2 * length])


class PermutationLoss(nn.Module):
    """Order-agnostic loss along one order per window (XLNet's two streams, on our network).

    A query depends on its position but not on its token; content depends on its token. One pass gives all
    conditionals along the order.
    """

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, rank_BT: Tensor, weight_BT: Tensor) -> Tensor:
        """Return the weighted loss; ``rank`` and ``weight`` are those of a ``Permutation``."""
        loss = token_loss(self.hidden(tokens_BT, rank_BT), self.model.embedding.weight, tokens_BT)
        return (loss * weight_BT.flatten()).sum()

    def hidden(self, tokens_BT: Tensor, rank_BT: Tensor) -> Tensor:
        """Return the final state [B, T, C] of every token's query."""
        length = tokens_BT.shape[1]
        queries_BT = torch.full_like(tokens_BT, self.model.config.mask_id)
        positions = torch.arange(length, device=tokens_BT.device).repeat(2)[None]
        attend = dense_attend(permutation_mask(rank_BT))
        hidden_BSC = self.model(torch.cat((queries_BT, tokens_BT), dim=1), positions, attend)
        return torch.as_tensor(hidden_BSC[:, :length])


class CausalLoss(nn.Module):
    """Next-token loss; an EOS is put before the window, so that all of its tokens are predicted."""

    def __init__(self, model: Transformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor) -> Tensor:
        """Return the mean loss per token."""
        shifted_BT = functional.pad(tokens_BT[:, :-1], (1, 0), value=self.model.config.eos_id)
        positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        hidden_BTC = self.model(shifted_BT, positions, causal_attend)
        return token_loss(hidden_BTC, self.model.embedding.weight, tokens_BT).mean()


def token_loss(hidden_BTC: Tensor, unembed_VC: Tensor, targets_BT: Tensor) -> Tensor:
    """Return the cross-entropy [B·T] of each target; the softmax is taken in float32."""
    logits_RV = functional.linear(hidden_BTC.flatten(0, 1), unembed_VC)
    return functional.cross_entropy(logits_RV.float(), targets_BT.flatten(), reduction="none")


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
    """Orders of a batch of windows; the first tokens of each order are visible from the start.

    Attributes:
        rank: integers [B, T]: the step at which a token is revealed, −1 for tokens visible from the start.
        weight: floats [B, T], 0 for tokens visible from the start; the weighted sum of losses estimates the
            any-order bound in nats per token.
    """

    rank: Tensor
    weight: Tensor


def sample_permutations(batch: int, length: int, generator: torch.Generator) -> Permutation:
    """Draw an order per window and the number of tokens visible from the start, uniform on 0…n − 1.

    A token with v others visible is predicted in (v + 1) / n of all draws, so a weight of 1 / (v + 1) counts
    every number of visible tokens equally.
    """
    device = generator.device
    place = torch.rand(batch, length, generator=generator, device=device).argsort(-1).argsort(-1)
    n_visible = torch.randint(0, length, (batch, 1), generator=generator, device=device)
    predicted = place >= n_visible
    rank = torch.where(predicted, place - n_visible, -1)
    return Permutation(rank, predicted.float() / (batch * (place + 1)))


def pair_weights(first_BNK: Tensor, size_BN1: Tensor) -> Tensor:
    """Return weights: the mean over each copy's hidden tokens, and over the 2n/(n+1) copies expected."""
    batch, blocks, block_size = first_BNK.shape
    copies = batch * blocks * 2 * block_size / (block_size + 1)
    hidden = torch.where(first_BNK, size_BN1, block_size - size_BN1)
    return 1.0 / (hidden.float() * copies)


def step_generator(seed: int, step: int, device: torch.device) -> torch.Generator:
    """Return the mask generator of one step; it depends only on seed and step."""
    key = int(keyed_generator(seed, "masks", step).integers(2**62))
    return torch.Generator(device=device).manual_seed(key)

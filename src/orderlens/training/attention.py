"""Attention masks of training, each a rule with two backends: FlexAttention and plain masked attention.

The order-agnostic losses concatenate several *streams* of the same window, ``length`` positions each. Two
streams are noisy (a token hidden in one is visible in the other). For block-causal training a third, clean
stream follows: a noisy block sees itself and the clean blocks before it; the clean stream is block-causal.
For full attention there is no clean stream, and each noisy stream sees only itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from orderlens.models.small.network import Attend, attention

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

"""Left-to-right continuation with the original model: batched, cached, short prompts padded on the left.

Used for distillation and for the autoregressive baseline. Finished rows are removed from the batch once a
quarter of it is finished. Does not depend on text.

Shape letters: B rows, L cached positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from orderlens.errors import UserInputError
from orderlens.models.small.network import Transformer, attention


class _Cache:
    """Keys and values [layer][B, K, L, D] of the unfinished rows; left padding is masked."""

    def __init__(self, network: Transformer, pads_B: Tensor, length: int) -> None:
        config, weight = network.config, network.embedding.weight
        shape = (len(pads_B), config.kv_heads, length, config.head_width)
        self._keys = [weight.new_empty(shape) for _ in range(config.n_layers)]
        self._values = [weight.new_empty(shape) for _ in range(config.n_layers)]
        self.length, self._pads_B = 0, pads_B
        self._mask: Tensor | None = None
        self._padded = bool((pads_B > 0).any())

    def open_window(self, width: int) -> Tensor:
        """Prepare ``width`` new columns; return their positions [B, width]."""
        places = torch.arange(self.length + width, device=self._pads_B.device)
        new = places[self.length :]
        self._mask = None
        if self._padded:
            seen_BWL = (places >= self._pads_B[:, None])[:, None] & (places <= new[:, None])
            self._mask = (seen_BWL | (places == new[:, None]))[:, None]  # padding sees itself: no empty rows
        return (new - self._pads_B[:, None]).clamp(min=0)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store the window's keys and values and attend to everything up to each column."""
        end = self.length + k.shape[2]
        keys, values = self._keys[layer], self._values[layer]
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        causal = self._mask is None and k.shape[2] > 1
        return attention(q, keys[:, :, :end], values[:, :, :end], self._mask, causal)

    def keep(self, rows: Tensor) -> None:
        """Drop all other rows."""
        self._pads_B = self._pads_B[rows]
        self._keys = [keys[rows] for keys in self._keys]
        self._values = [values[rows] for values in self._values]


@torch.inference_mode()
def continue_rows(
    network: Transformer,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    stop_ids: frozenset[int],
    *,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
) -> list[list[int]]:
    """Return up to ``new_tokens`` ids after each prompt, including the stop id if there is one.

    Args:
        network: a causal transformer.
        prompts: token ids, at least one per prompt; similar lengths need little padding.
        new_tokens: maximum number of ids per row.
        stop_ids: ids that end a row.
        temperature: 0 chooses the most probable token.
        generator: source of the draws, on the network's device.
    """
    rows, length = len(prompts), max((len(prompt) for prompt in prompts), default=0)
    limit = network.config.max_positions
    if min((len(prompt) for prompt in prompts), default=0) < 1 or length + new_tokens > limit:
        raise UserInputError(
            f"prompts need at least one token, and at most {limit} with the {new_tokens} new ones"
        )
    device = network.embedding.weight.device
    window = torch.zeros((rows, length), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        window[row, length - len(prompt) :] = torch.as_tensor(prompt)
    window = window.to(device)
    pads_B = torch.tensor([length - len(prompt) for prompt in prompts], device=device)
    cache = _Cache(network, pads_B, length + new_tokens)
    found = torch.full((rows, new_tokens), -1, device=device)
    owner = torch.arange(rows, device=device)
    stops = torch.tensor(sorted(stop_ids), device=device)
    running = torch.ones(rows, dtype=torch.bool, device=device)
    for step in range(new_tokens):
        logits_BV = _next_logits(network, window, cache)
        chosen_B = _draw(logits_BV, temperature, generator)
        found[owner, step] = torch.where(running, chosen_B, -1)
        running = running & ~torch.isin(chosen_B, stops)
        window = chosen_B[:, None]
        if step % 16 == 15:
            left = int(running.sum())
            if not left:
                break
            if left <= 0.75 * len(running):
                unfinished = running.nonzero()[:, 0]
                cache.keep(unfinished)
                owner, window, running = owner[unfinished], window[unfinished], running[unfinished]
    return [[token for token in row if token >= 0] for row in found.tolist()]


def _next_logits(network: Transformer, window_BL: Tensor, cache: _Cache) -> Tensor:
    positions_BL = cache.open_window(window_BL.shape[1])
    hidden_BLC = network(window_BL, positions_BL, cache.attend)
    cache.length += window_BL.shape[1]
    logits_BV = linear(hidden_BLC[:, -1], network.embedding.weight).float()
    logits_BV[:, network.config.mask_id] = -torch.inf
    return logits_BV


def _draw(logits_BV: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    """Return one id per row."""
    if temperature == 0:
        return logits_BV.argmax(-1)
    probs_BV = (logits_BV / temperature).softmax(-1)
    return torch.multinomial(probs_BV, 1, generator=generator)[:, 0]

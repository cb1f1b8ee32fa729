"""The autoregressive evaluator: how probable is a continuation, left to right, under a causal model?

Used offline for external perplexity and as a baseline. Plain causal forwards without a cache, batched with
right padding: under causal attention padding on the right cannot change what stands before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.small.folder import LoadedModel, bundled_folder, read_folder
from orderlens.models.small.network import Transformer, attention
from orderlens.models.torch.device import pick_device

FloatArray = NDArray[np.float64]


def causal_attend(_layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain left-to-right attention."""
    return attention(q, k, v, causal=True)


def causal_log_probs(network: Transformer, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Return log p(target i | inputs up to i), [B, T] float32; the mask id is never a possible token."""
    positions = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)[None]
    hidden_BTC = network(inputs_BT, positions, causal_attend)
    logits_BTV = functional.linear(hidden_BTC, network.embedding.weight).float()
    excluded = torch.arange(logits_BTV.shape[-1], device=logits_BTV.device) == network.config.mask_id
    log_probs = logits_BTV.masked_fill(excluded, -torch.inf).log_softmax(-1)
    return log_probs.gather(-1, targets_BT[..., None]).squeeze(-1)


class SmallEvaluator:
    """Scores continuations with a causal model of our layout."""

    def __init__(
        self, model: LoadedModel, name: str, device: str | None = None, batch_tokens: int = 4096
    ) -> None:
        if model.config.attention != "causal":
            raise ModelLoadError(
                f"{name}: its attention is {model.config.attention}; an evaluator must be causal"
            )
        self.name = name
        self._device = pick_device(device)
        self._model = model
        self._model.network.to(self._device)
        self._batch_tokens = batch_tokens

    def token_logprobs(self, pairs: Sequence[tuple[str, str]]) -> list[FloatArray]:
        """Return, per (prompt, continuation), the natural-log probability of each continuation token.

        Both are tokenised together; a token that straddles the boundary counts as the continuation's. EOS
        stands before the prompt, so that even an empty prompt conditions on something.
        """
        return self.id_logprobs([self._split(prompt, text) for prompt, text in pairs])

    def _split(self, prompt: str, text: str) -> tuple[list[int], list[int]]:
        ids, ends = self._model.tokenizer.encode_with_ends(prompt + text)
        first = bisect_right(ends, len(prompt))
        return ids[:first], ids[first:]

    def id_logprobs(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[FloatArray]:
        """Do the same for token ids; an empty continuation gives an empty array."""
        lengths = [len(prompt) + len(text) for prompt, text in pairs]
        limit = self._model.config.max_positions
        if lengths and max(lengths) > limit:
            raise UserInputError(
                f"a text of {max(lengths)} tokens is longer than {self.name} accepts ({limit})"
            )
        results: list[FloatArray] = [np.empty(0)] * len(pairs)
        for batch in self._batches(lengths):
            for index, values in zip(batch, self._score([pairs[index] for index in batch]), strict=True):
                results[index] = values
        return results

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Group texts of similar length; a batch holds about ``batch_tokens`` tokens with its padding."""
        batch: list[int] = []
        for index in sorted(range(len(lengths)), key=lambda item: lengths[item]):
            if batch and (len(batch) + 1) * lengths[index] > self._batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    @torch.inference_mode()
    def _score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[FloatArray]:
        eos = self._model.config.eos_id
        longest = max(1, *(len(prompt) + len(text) for prompt, text in pairs))
        targets = torch.full((len(pairs), longest), eos)
        for row, (prompt, text) in enumerate(pairs):
            targets[row, : len(prompt) + len(text)] = torch.tensor([*prompt, *text], dtype=torch.long)
        targets = targets.to(self._device)
        inputs = functional.pad(targets[:, :-1], (1, 0), value=eos)
        values = causal_log_probs(self._model.network, inputs, targets).double().cpu().numpy()
        return [
            values[row, len(head) : len(head) + len(text)].copy() for row, (head, text) in enumerate(pairs)
        ]


def load_tiny_evaluator(argument: str = "", device: str | None = None) -> SmallEvaluator:
    """Load the bundled evaluator, or (``tiny-ar:FOLDER``) a causal model that ``orderlens train`` wrote."""
    if argument:
        return SmallEvaluator(read_folder(Path(argument)), f"tiny-ar:{argument}", device)
    return SmallEvaluator(read_folder(bundled_folder("tiny-ar")), "tiny-ar", device)

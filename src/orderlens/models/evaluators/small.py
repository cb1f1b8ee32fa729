"""The bundled autoregressive evaluator: log-probabilities of continuations under a small causal model.

Used offline for external perplexity and as a baseline. Runs plain causal forwards without a cache; logits are
computed only for rows whose next token is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from orderlens.errors import ModelLoadError, UserInputError
from orderlens.models.engine.device import pick_device
from orderlens.models.evaluators import FloatArray, Window, picked_log_probs, start_windows
from orderlens.models.small.folder import LoadedModel, bundled_folder, read_folder
from orderlens.models.small.network import Transformer, causal_attend

CPU_TOKENS, GPU_TOKENS = 2048, 16_384
"""Tokens per forward, padding included; few enough on a CPU that the progress bar moves."""
CPU_LOGITS, GPU_LOGITS = 1 << 22, 1 << 26
"""Logits per chunk: they fit in a CPU's cache, or on a GPU that also holds a large model."""


def causal_log_probs(network: Transformer, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    """Return log p(target i | inputs up to i), [B, T] float32; the mask id is never a possible token."""
    places_R = torch.arange(inputs_BT.numel(), device=inputs_BT.device)
    return log_probs_at(network, inputs_BT, places_R, targets_BT.flatten()).view(inputs_BT.shape)


def log_probs_at(network: Transformer, inputs_BT: Tensor, places_R: Tensor, targets_R: Tensor) -> Tensor:
    """Return log p(target | inputs up to its place) [R] for some places in the flattened inputs."""
    positions = torch.arange(inputs_BT.shape[1], device=inputs_BT.device)[None]
    hidden_RC = network(inputs_BT, positions, causal_attend).flatten(0, 1)[places_R]
    rows = max(1, (GPU_LOGITS if hidden_RC.is_cuda else CPU_LOGITS) // network.config.vocab_size)
    found = [torch.empty(0, device=hidden_RC.device)]
    for part_RC, part_R in zip(torch.split(hidden_RC, rows), torch.split(targets_R, rows), strict=True):
        logits_RV = functional.linear(part_RC, network.embedding.weight).float()
        logits_RV[:, network.config.mask_id] = -torch.inf
        found.append(picked_log_probs(logits_RV, part_R))
    return torch.cat(found)


class SmallEvaluator:
    """Scores continuations with a causal model of our layout."""

    def __init__(
        self, model: LoadedModel, name: str, device: str | None = None, batch_tokens: int | None = None
    ) -> None:
        if model.config.attention != "causal":
            raise ModelLoadError(
                f"{name}: its attention is {model.config.attention}; an evaluator must be causal"
            )
        self.name = name
        self._device = pick_device(device)
        self._model = model
        self._model.network.to(self._device)
        self._batch_tokens = batch_tokens or (GPU_TOKENS if self._device.type == "cuda" else CPU_TOKENS)

    def token_logprobs(self, pairs: Sequence[tuple[str, str]]) -> list[FloatArray]:
        """Return, per (prompt, continuation), the natural-log probability of each continuation token.

        Both are tokenised as one text; a token across the boundary belongs to the continuation. EOS precedes
        the prompt, so that the first token is defined even if the prompt is empty.
        """
        return self.start(pairs)()

    def start(
        self, pairs: Sequence[tuple[str, str]], on_progress: Callable[[int], None] = lambda _: None
    ) -> Callable[[], list[FloatArray]]:
        """Start ``token_logprobs``; return a function that waits for it. ``on_progress`` receives counts."""
        texts = self._model.tokenizer.encode_pairs(pairs)
        longest, limit = max((len(ids) for ids, _ in texts), default=0), self._model.config.max_positions
        if longest > limit:
            raise UserInputError(f"a text of {longest} tokens is longer than {self.name} accepts ({limit})")
        eos = self._model.config.eos_id
        windows = [
            Window(owner, np.array([eos, *ids], np.int64), len(ids) - first)
            for owner, (ids, first) in enumerate(texts)
        ]
        return start_windows(windows, self._forward, self._device, self._batch_tokens, on_progress)

    def _forward(self, tokens_NW: Tensor, _lengths_N: Tensor, places_R: Tensor, targets_R: Tensor) -> Tensor:
        return log_probs_at(self._model.network, tokens_NW, places_R, targets_R)


def load_tiny_evaluator(argument: str = "", device: str | None = None) -> SmallEvaluator:
    """Load the bundled evaluator, or (``tiny-ar:FOLDER``) a causal model that ``orderlens train`` wrote."""
    if argument:
        return SmallEvaluator(read_folder(Path(argument)), f"tiny-ar:{argument}", device)
    return SmallEvaluator(read_folder(bundled_folder("tiny-ar")), "tiny-ar", device)

"""An autoregressive evaluator from the Hugging Face layout, for external perplexity.

transformers builds the network; weights must be safetensors, and no code from the checkpoint is ever run.
Maps pairs of texts to log-probabilities; does not depend on orders, traces or runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orderlens.common.hub import PATTERNS, Repository, snapshot
from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError, one_line
from orderlens.models.engine.device import pick_device
from orderlens.models.evaluators import FloatArray, Window, picked_log_probs, start_windows
from orderlens.models.files.tokenizer import tokens_before

CPU_TOKENS, GPU_TOKENS = 512, 2048
"""Tokens per forward, padding included: GPT-2 Large needs 1.5 GFLOP per token."""
_TEXTS_PER_CALL = 1024
"""Texts per tokenizer call: their offsets take much more memory than their ids."""


class HFCausalEvaluator:
    """Scores text with a causal language model; texts longer than its context are scored in windows."""

    def __init__(self, name: str, model: Any, tokenizer: Any, batch_tokens: int | None = None) -> None:
        """Wrap a loaded model.

        Args:
            name: the spec that loads it again.
            model: a transformers causal language model in eval mode.
            tokenizer: its fast tokenizer (offsets are needed to find the prompt's end).
            batch_tokens: padded tokens per forward; the default takes seconds on the device.
        """
        if not tokenizer.is_fast:
            raise ModelLoadError(
                f"{name}: its tokenizer gives no character offsets; choose a model with tokenizer.json"
            )
        self.name = name
        self._model = model
        self._tokenizer = tokenizer
        self._batch_tokens = batch_tokens or (GPU_TOKENS if model.device.type == "cuda" else CPU_TOKENS)
        self._opening = _first_known(tokenizer.bos_token_id, tokenizer.eos_token_id, name=name)
        # Families that begin every text with a start token (LLaMA, not GPT-2) get it before prompts too.
        self._always_start = list(tokenizer("")["input_ids"][:1]) == [tokenizer.bos_token_id]
        self._context = int(getattr(model.config, "max_position_embeddings", None) or 1024)

    def token_logprobs(self, pairs: Sequence[tuple[str, str]]) -> list[FloatArray]:
        """Return the log-probabilities of each continuation's tokens given its prompt (nats).

        The joined text is tokenised once. Every token with a character of the continuation is scored,
        including one that starts in the prompt. The first token of a text without a prompt is scored after
        the start-of-text token. Beyond the context length, windows overlap by half, so that each token has at
        least half a context on its left.
        """
        return self.start(pairs)()

    def start(
        self, pairs: Sequence[tuple[str, str]], on_progress: Callable[[int], None] = lambda _: None
    ) -> Callable[[], list[FloatArray]]:
        """Start ``token_logprobs``; return a function that waits for it. ``on_progress`` receives counts."""
        groups = [self._windows(pairs, start) for start in range(0, len(pairs), _TEXTS_PER_CALL)]
        windows = [window for group in groups for window in group]
        wait = start_windows(windows, self._forward, self._model.device, self._batch_tokens, on_progress)

        def finish() -> list[FloatArray]:
            parts: list[list[FloatArray]] = [[] for _ in pairs]
            for window, values in zip(windows, wait(), strict=True):
                parts[window.owner].append(values)
            return [np.concatenate(rows) if rows else np.zeros(0) for rows in parts]

        return finish

    def _windows(self, pairs: Sequence[tuple[str, str]], start: int) -> Iterator[Window]:
        """Yield the windows of one tokenizer call's texts, from text ``start`` on."""
        part = pairs[start : start + _TEXTS_PER_CALL]
        texts = [prompt + text for prompt, text in part]
        encoded = self._tokenizer(texts, add_special_tokens=False, verbose=False).encodings
        for place, (found, (prompt, _)) in enumerate(zip(encoded, part, strict=True)):
            first = tokens_before(found, len(prompt))
            more = [self._opening] if self._always_start or not first else []
            ids = np.array([*more, *found.ids], np.int64)
            yield from self._cut(start + place, ids, first + len(more))

    def _cut(self, owner: int, ids: NDArray[np.int64], first: int) -> Iterator[Window]:
        while first < len(ids):
            last = min(len(ids), max(first + self._context // 2, self._context))
            left = max(0, last - self._context)
            yield Window(owner, ids[left:last], last - first, last == len(ids))
            first = last

    def _forward(self, tokens_NW: Tensor, lengths_N: Tensor, places_R: Tensor, targets_R: Tensor) -> Tensor:
        mask_NW = torch.arange(tokens_NW.shape[1], device=tokens_NW.device) < lengths_N[:, None]
        logits_NWV = self._model(input_ids=tokens_NW, attention_mask=mask_NW.long()).logits
        return picked_log_probs(logits_NWV.flatten(0, 1)[places_R].float(), targets_R)


def load_hf_evaluator(argument: str, device: str | None = None) -> HFCausalEvaluator:
    """Return the evaluator ``ORG/NAME[@REV]`` from the hub (or its cache), or from a local folder.

    Refuses checkpoints without safetensors weights, and never runs code from a checkpoint.
    """
    if not argument:
        raise UserInputError("evaluator 'hf' needs a name; write hf:ORG/NAME[@REV] or hf:FOLDER")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingPackageError(
            "hf evaluators need transformers; pip install 'orderlens[torch,hf]'"
        ) from error
    folder, place = Path(argument).expanduser(), pick_device(device)
    if not folder.is_dir():
        folder = _from_hub(argument)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(
            folder, use_safetensors=True, dtype=torch.float32, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        hint = "without the hub, tiny-ar is bundled"
        raise ModelLoadError(
            f"cannot load evaluator hf:{argument} ({hint}): {one_line(error)[:300]}"
        ) from error
    return HFCausalEvaluator(f"hf:{argument}", model.to(place).eval(), tokenizer)


def _from_hub(argument: str) -> Path:
    name, _, revision = argument.partition("@")
    label, instead = f"evaluator 'hf:{argument}'", "use tiny-ar, which is bundled"
    return snapshot(Repository("model", name, revision or None, label, instead), PATTERNS, ModelLoadError)


def _first_known(*ids: int | None, name: str) -> int:
    for value in ids:
        if value is not None:
            return value
    raise ModelLoadError(f"{name}: its tokenizer has neither a start-of-text nor an end-of-text token")

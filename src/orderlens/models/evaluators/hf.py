"""An autoregressive evaluator from the Hugging Face layout, for external perplexity.

transformers builds the network; weights must be safetensors and no code from the checkpoint is ever run.
Knows nothing of orders, traces or runs: pairs of texts in, log-probabilities out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orderlens.errors import MissingPackageError, ModelLoadError, UserInputError, one_line
from orderlens.hub import Repository, snapshot
from orderlens.models.hub import PATTERNS

if TYPE_CHECKING:
    import torch

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Window:
    """One forward: ``ids`` go in, the last ``n_scored`` of them are scored for text ``owner``."""

    owner: int
    ids: list[int]
    n_scored: int


class HFCausalEvaluator:
    """Scores text with a causal language model; texts longer than its context are scored in windows."""

    def __init__(self, name: str, model: Any, tokenizer: Any, batch_tokens: int = 2048) -> None:
        """Wrap a loaded model.

        Args:
            name: the spec that loads it again.
            model: a transformers causal language model in eval mode.
            tokenizer: its fast tokenizer (offsets are needed to find the prompt's end).
            batch_tokens: padded tokens per forward.
        """
        if not tokenizer.is_fast:
            raise ModelLoadError(
                f"{name}: its tokenizer gives no character offsets; choose one with tokenizer.json"
            )
        self.name = name
        self._model = model
        self._tokenizer = tokenizer
        self._batch_tokens = batch_tokens
        self._start = _first_known(tokenizer.bos_token_id, tokenizer.eos_token_id, name=name)
        # Families that begin every text with a start token (LLaMA, not GPT-2) get it before prompts too.
        self._always_start = list(tokenizer("")["input_ids"][:1]) == [tokenizer.bos_token_id]
        self._context = int(getattr(model.config, "max_position_embeddings", None) or 1024)

    def token_logprobs(self, pairs: Sequence[tuple[str, str]]) -> list[FloatArray]:
        """Return the log-probabilities of each continuation's tokens given its prompt (nats).

        The joined text is tokenised once. Every token with a character of the continuation is scored, also
        one that starts in the prompt. The first token of a text without a prompt is scored after the
        start-of-text token. Past the context length, windows overlap by half so that each token keeps at
        least half a context on its left.
        """
        windows = [window for owner, pair in enumerate(pairs) for window in self._windows(owner, *pair)]
        rows: list[list[FloatArray]] = [[] for _ in pairs]
        results: dict[int, FloatArray] = {}
        for batch in self._batches(windows):
            results.update(zip(batch, self._forward([windows[place] for place in batch]), strict=True))
        for place, window in enumerate(windows):
            rows[window.owner].append(results[place])
        return [np.concatenate(parts) if parts else np.zeros(0) for parts in rows]

    def _windows(self, owner: int, prompt: str, text: str) -> Iterator[_Window]:
        ids, n_scored = self._tokens(prompt, text)
        first = len(ids) - n_scored
        while first < len(ids):
            last = min(len(ids), max(first + self._context // 2, self._context))
            left = max(0, last - self._context)
            yield _Window(owner, ids[left:last], last - first)
            first = last

    def _tokens(self, prompt: str, text: str) -> tuple[list[int], int]:
        """Return the ids of prompt + text (a start token in front when needed) and how many are scored."""
        encoded = self._tokenizer(
            prompt + text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
        in_prompt = next((place for place, (_, end) in enumerate(offsets) if end > len(prompt)), len(ids))
        start = [self._start] if self._always_start or not in_prompt else []
        return start + ids, len(ids) - in_prompt

    def _batches(self, windows: Sequence[_Window]) -> Iterator[list[int]]:
        """Yield places of similar length whose padded size stays within the budget."""
        batch: list[int] = []
        for place in sorted(range(len(windows)), key=lambda item: len(windows[item].ids)):
            if batch and (len(batch) + 1) * len(windows[place].ids) > self._batch_tokens:
                yield batch
                batch = []
            batch.append(place)
        if batch:
            yield batch

    def _forward(self, windows: Sequence[_Window]) -> list[FloatArray]:
        import torch

        width = max(len(window.ids) for window in windows)
        device = self._model.device
        tokens_NW = torch.zeros((len(windows), width), dtype=torch.long)
        mask_NW = torch.zeros((len(windows), width), dtype=torch.long)
        for row, window in enumerate(windows):
            tokens_NW[row, : len(window.ids)] = torch.tensor(window.ids)
            mask_NW[row, : len(window.ids)] = 1
        with torch.inference_mode():
            logits_NWV = self._model(input_ids=tokens_NW.to(device), attention_mask=mask_NW.to(device)).logits
            return [_scored(logits_NWV[row], window) for row, window in enumerate(windows)]


def load_hf_evaluator(argument: str, device: str | None = None) -> HFCausalEvaluator:
    """Return the evaluator ``ORG/NAME[@REV]`` from the hub (or its cache) or from a local folder.

    Refuses checkpoints without safetensors weights and never runs code from a checkpoint.
    """
    if not argument:
        raise UserInputError("evaluator 'hf' needs a name; write hf:ORG/NAME[@REV] or hf:FOLDER")
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        from orderlens.models.torch.device import pick_device
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


def _scored(logits_WV: torch.Tensor, window: _Window) -> FloatArray:
    import torch

    end = len(window.ids)
    rows = logits_WV[end - window.n_scored - 1 : end - 1].float()
    target = torch.tensor(window.ids[end - window.n_scored :], device=rows.device)
    chosen = rows.gather(1, target[:, None])[:, 0] - torch.logsumexp(rows, dim=1)
    return chosen.double().cpu().numpy()


def _first_known(*ids: int | None, name: str) -> int:
    for value in ids:
        if value is not None:
            return value
    raise ModelLoadError(f"{name}: its tokenizer has neither a start-of-text nor an end-of-text token")

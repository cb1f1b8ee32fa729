"""DiffusionGemma of transformers: record its ``generate``, and log-probabilities of a fixed canvas.

The canvas has no mask. It starts as random tokens; each pass draws a token for every position, accepts those
of lowest entropy and replaces the others by new random tokens. What is recorded: a position that becomes
accepted is revealed, one that is no longer accepted is masked again, another accepted token is an edit. The
last pass writes its most probable token at every position. log q is that of the raw logits of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from orderlens.errors import UserInputError, counted

METHODS = ("generate", "_denoising_step", "_finalize_canvas")
"""What is observed of the model (transformers 5.22.2)."""


class Passes(Protocol):
    """The recorder."""

    def sample(self, id: str, prompt: Sequence[int] | None = None) -> None: ...  # noqa: A002

    def take_names(self, count: int) -> list[str]: ...

    def add_pass(self, sample: str, before: Tensor, after: Tensor, logits: Tensor, start: int) -> None: ...


def is_gemma(network: Any) -> bool:
    """Return whether a network is DiffusionGemma, whose ``generate`` passes by the hooks of modules."""
    return type(network).__name__ == "DiffusionGemmaForBlockDiffusion"


class GemmaHook:
    """Observes the decoding of a model until ``remove``.

    Attributes:
        facts: of the run; a temperature that is not stated becomes the highest of the schedule.
        notes: what the reader of the run should know; complete after ``remove``.
    """

    def __init__(self, recorder: Passes, model: Any, mask_id: int, facts: dict[str, Any]) -> None:
        vocab = int(model.config.text_config.vocab_size)
        if mask_id < vocab:
            raise UserInputError(
                f"mask_id={mask_id} is a token of DiffusionGemma, which has no mask; pass mask_id={vocab}, "
                "its vocabulary size, which then stands for positions that are not accepted"
            )
        if missing := [name for name in METHODS if not hasattr(model, name)]:
            raise UserInputError(
                f"this DiffusionGemma has no {missing[0]}; its decoding is recorded with transformers 5.22"
            )
        self._recorder, self._model, self._noise, self.facts = recorder, model, mask_id, facts
        self.notes: list[str] = []
        self._own = {name: vars(model)[name] for name in METHODS if name in vars(model)}
        self._theirs = {name: getattr(model, name) for name in METHODS}
        self._last: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._names: list[str] = []
        self._start = 0
        self._ended: Tensor | None = None
        self._n_never = 0
        ours = (self._generate, self._denoise, self._finalize)
        for name, method in zip(METHODS, ours, strict=True):
            setattr(model, name, method)

    def remove(self) -> None:
        """Give the model its methods back; a pass whose result is not known yet counts as accepted."""
        for name in METHODS:
            delattr(self._model, name)
        vars(self._model).update(self._own)
        self._flush(final=False)
        if self._n_never:
            self.notes.append(
                f"{counted(self._n_never, 'position')} not accepted in the last pass of a canvas: there, the "
                "token is the most probable one of that pass"
            )

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        self._names, self._ended = [], None
        return self._theirs["generate"](*args, **kwargs)

    def _denoise(self, **kwargs: Any) -> Any:
        """Run one pass; hand over the pass before it, whose result is now known."""
        finished, process = kwargs["finished_denoising"].clone(), kwargs["logits_processor"]
        hottest = max((each.t_max for each in process if hasattr(each, "t_max")), default=1.0)
        self.facts["temperature"] = self.facts["temperature"] or hottest
        raw: list[Tensor] = []

        def keep(ids: Tensor, logits: Tensor, **more: Any) -> Any:
            raw.append(logits.detach().clone())
            return process(ids, logits, **more)

        found = self._theirs["_denoising_step"](**kwargs | {"logits_processor": keep})
        accepted = torch.where(kwargs["sampler"].accepted_token_mask, found[0], self._noise)
        if self._ended is not None:
            finished |= self._ended
        after, most_probable = torch.stack([accepted, found[1]]).cpu()
        self._name(kwargs["input_ids"])
        if not self._last:
            self._start = int(kwargs["decoder_position_ids"][0, 0])
        for row in (~finished).nonzero()[:, 0].tolist():
            before = torch.full_like(after[row], self._noise)
            if row in self._last:
                before = self._last[row][1]
                self._hand_over(row, before)
            self._last[row] = before, after[row], most_probable[row], raw[0][row]
        return found

    def _name(self, ids_NL: Tensor) -> None:
        """Name the texts of a decode by its first pass."""
        if not self._names:
            self._names = self._recorder.take_names(len(ids_NL))
            for name, prompt in zip(self._names, ids_NL.tolist(), strict=True):
                self._recorder.sample(name, prompt=prompt)

    def _hand_over(self, row: int, after: Tensor) -> None:
        before, _, _, logits = self._last[row]
        self._recorder.add_pass(self._names[row], before, after, logits, self._start)

    def _flush(self, *, final: bool) -> None:
        for row, (_, accepted, most_probable, _) in self._last.items():
            self._n_never += final * int((accepted == self._noise).sum())
            self._hand_over(row, most_probable if final else accepted)
        self._last = {}

    def _finalize(self, **kwargs: Any) -> Any:
        """Hand over the last passes of a canvas, and note which texts have ended."""
        self._flush(final=True)
        found = self._theirs["_finalize_canvas"](**kwargs)
        self._ended = found[1].clone()
        return found


@torch.no_grad()
def canvas_log_probs(
    model: Any, prompt: Sequence[int], canvas: Sequence[int], conditioning: Tensor | None = None
) -> Tensor:
    """Return normalised log-probabilities [L, V] (nats, temperature 1) at every position of a fixed canvas.

    They depend on all tokens of the canvas, also on the one at the position itself: they are not the factors
    of a likelihood, so no order can be scored with them.

    Args:
        model: ``DiffusionGemmaForBlockDiffusion``.
        prompt: token ids before the canvas.
        canvas: token ids [L].
        conditioning: logits [L, V] of an earlier pass, at its temperature; None as in the first pass.
    """
    given = {} if conditioning is None else {"self_conditioning_logits": conditioning[None]}
    ids, shown = (torch.tensor([list(tokens)], device=model.device) for tokens in (prompt, canvas))
    logits: Tensor = model(input_ids=ids, decoder_input_ids=shown, **given).logits
    return logits[0].float().log_softmax(-1)

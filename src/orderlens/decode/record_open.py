"""The decodes that a later call may continue: which one a call belongs to, and where its window is in it.

Texts, prompts and shapes of a call decide; the decoder says nothing. Does not depend on logits or files.

Shape letters: N texts, W positions of the call, L positions of the canvas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from orderlens.decode.record_calls import REMEDY, CallInputs, prompted_half
from orderlens.decode.record_canvas import RecordedCanvas
from orderlens.errors import UserInputError

OPEN = 2
"""Decodes that a later call may continue; each holds the logits of its last pass."""


class OpenCanvases:
    """The canvases that are open, the last one used at the end.

    Args:
        mask_id: the id of the mask token.
        shift: row i of the logits predicts position i + 1.
        has_window: the caller of ``record`` tells where windows are.
    """

    def __init__(self, mask_id: int, shift: bool, *, has_window: bool) -> None:
        self._mask_id, self._shift, self._has_window = mask_id, shift, has_window
        self._open: list[RecordedCanvas] = []

    @property
    def last(self) -> RecordedCanvas | None:
        """The canvas of the last call; None without one."""
        return self._open[-1] if self._open else None

    def are_candidates(self, ids_NW: Tensor) -> bool:
        """Return whether a call has more rows than texts, to try tokens."""
        return any(canvas.are_candidates(ids_NW) for canvas in self._open)

    def guided_half(self, call: CallInputs, copy: Tensor) -> slice | None:
        """Return the half with the prompts of a batch doubled for guidance; a decode's first call decides."""
        half = prompted_half(copy, self._mask_id)
        if half is None:
            return None
        tells = self._has_window or call.is_cached
        start = (call.start or 0) if tells else 0
        for canvas in self._open:
            part = copy[half] if canvas.is_guided else copy
            if len(canvas.live) == len(part) and canvas.fits(part, start):
                return half if canvas.is_guided else None
        is_masked = (copy == self._mask_id).sum() - 2 * (copy[half] == self._mask_id).sum()
        return half if 2 * is_masked >= (copy[half] != self._mask_id).sum() else None

    def place(self, call: CallInputs, copy: Tensor) -> int:
        """Return the position of a call's window in the canvas.

        Raises:
            UserInputError: the call does not tell, or the decode cannot be recorded.
        """
        canvas, width, told = self.last, copy.shape[1], call.start
        if canvas is not None and canvas.began_without_prompt(copy):
            raise UserInputError(
                "the decoder calls the network without its prompt and then with it, as guidance in two calls "
                "does; recording needs the call with the prompt first, or both in one batch"
            )
        if self._has_window or (call.is_cached and told is not None):
            assert told is not None
            return told
        if call.is_cached:
            raise UserInputError(
                f"the network was called with a cache and a window of {width} tokens, but neither "
                f"position_ids, cache_position nor the cache tell where the window is; {REMEDY}"
            )
        if canvas is None or width >= canvas.tokens_NL.shape[1] or canvas.fits(copy, 0):
            return 0
        if told and canvas.fits(copy, told):
            return told
        if not told and canvas.is_window(copy):
            raise UserInputError(
                f"the network was called with {width} of the {canvas.tokens_NL.shape[1]} tokens of the "
                f"canvas, and its arguments do not tell which; {REMEDY}"
            )
        return 0

    def find(self, copy: Tensor, start: int, *, is_guided: bool) -> RecordedCanvas | None:
        """Return the canvas that a call continues; None for a new decode.

        Decoders may alternate. So an earlier canvas of the same shape is preferred to the last one with
        texts that have left its batch.
        """
        last = self.last
        same = [c for c in self._open[:-1] if not start and c.tokens_NL.shape == copy.shape]
        if last is not None and len(last.live) == len(copy):
            same.append(last)
        elif last is not None:
            same.insert(0, last)
        for canvas in reversed(same):
            if canvas.is_guided == is_guided and canvas.fits(copy, start):
                self._open = [*(other for other in self._open if other is not canvas), canvas]
                return canvas
        return None

    def add(self, n_texts: int, *, is_guided: bool) -> RecordedCanvas:
        """Open a canvas; complete ones are closed, and the oldest one where too many are open."""
        for canvas in self._open:
            canvas.close()
        waiting = [canvas for canvas in self._open if canvas.left_masked()][1 - OPEN :]
        for canvas in self._open:
            if canvas not in waiting:
                canvas.forget_calls()
        new = RecordedCanvas(n_texts, self._mask_id, shift=self._shift, is_guided=is_guided)
        self._open = [*waiting, new]
        return new

    def show(self, ids_NL: Tensor) -> None:
        """Take the final canvas of a decode, with or without its prompt.

        Raises:
            UserInputError: it belongs to none of the open decodes.
        """
        for canvas in reversed(self._open):
            texts = canvas.texts_of(ids_NL)
            if texts is not None and canvas.continues(ids_NL, texts):
                return canvas.show(ids_NL, 0, texts)
            if texts is not None and (start := canvas.tail_start(ids_NL, texts)) is not None:
                return canvas.show(ids_NL, start, texts)
        raise UserInputError(
            f"the canvas {list(ids_NL.shape)} is not that of the recorded decode "
            f"{list(self._open[-1].tokens_NL.shape)}: its prompt or its number of texts differs, or "
            f"{self._mask_id} is not the id of the mask; hand over prompt and generated tokens, as the "
            "network received them"
        )

    def close(self) -> None:
        """End all decodes."""
        for canvas in self._open:
            with torch.inference_mode(False), torch.no_grad():
                canvas.close()
            canvas.forget_calls()
        self._open = []

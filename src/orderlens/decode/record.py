"""``record``: attach to a network, let another decoder run, and get an ordinary run of what it did.

A forward hook sees the canvas and the logits of every pass; the decoder is not edited. The changes become
the rows that ``runs import`` reads, and go through the same code. Does not depend on families,
orders or work units.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from orderlens.decode.record_calls import (
    REMEDY,
    CallInputs,
    Observed,
    Window,
    logits_rows,
    mix_guidance,
    prompted_half,
)
from orderlens.decode.record_canvas import RecordedCanvas
from orderlens.decode.record_gemma import GemmaHook, is_gemma
from orderlens.decode.record_passes import PassCanvas
from orderlens.decode.record_rows import Decode, gaps, import_rows, prompts_of, shift_note
from orderlens.errors import RunError, UserInputError, counted
from orderlens.models.wrapped import as_tokenizer

if TYPE_CHECKING:
    from orderlens.store.reader import Run

_log = logging.getLogger(__name__)
_recorded: set[int] = set()
"""Identities of the networks that are being recorded."""
OPEN = 2
"""Decodes that a later call may continue; each holds the logits of its last pass."""


def record(
    network: Any,
    *,
    mask_id: int,
    out: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    order: str = "recorded",
    shift: bool = False,
    temperature: float = 0.0,
    block_size: int | None = None,
    guidance: float | None = None,
    window: Window | None = None,
) -> Recorder:
    """Return a context that records every decoder that calls ``network`` inside it.

    Args:
        network: the module, or callable, from token ids ``[N, L]`` to logits ``[N, L, V]``. A decoder must
            call a module itself, and ``recorder.network`` in place of a plain callable. None for decoders
            in which hooks do not fire: they call ``recorder.add_pass``.
        mask_id: the id of the mask token.
        out: folder or address of the run; None keeps it in memory.
        tokenizer: of transformers, of tokenizers, or any object with ``encode`` and ``decode``.
        order: name of the decoder's rule: an id or policy of ``orderlens orders``, or any name.
        shift: row i of the logits predicts position i + 1 (Dream, Fast-dLLM v2).
        temperature: at which the decoder draws; 0 is greedy. log q is always at temperature 1.
        block_size: tokens per block, counted from a text's first position to fill; None: one block.
        guidance: scale of classifier-free guidance; log q is then that of the mixture.
        window: returns the position of a call's first token, for cached windows whose arguments do not tell.
    """
    if network is not None and not callable(network):
        raise UserInputError(f"network must be a module or a callable, not {type(network).__name__}")
    if isinstance(mask_id, bool) or not isinstance(mask_id, int) or mask_id < 0:
        raise UserInputError(f"mask_id must be a token id of 0 or more, not {mask_id!r}")
    if not 0 <= temperature < float("inf"):
        raise UserInputError(f"temperature={temperature:g} must be 0 (greedy) or more, and finite")
    facts = {"order": order, "temperature": temperature}
    return Recorder(network, mask_id, out, tokenizer, facts, shift, block_size, guidance, window)


class Recorder:
    """What ``record`` returns.

    Attributes:
        network: what the decoder must call: the module itself, or the observed callable.
    """

    def __init__(
        self,
        network: Any,
        mask_id: int,
        out: str | os.PathLike[str] | None,
        tokenizer: Any,
        facts: Mapping[str, Any],
        shift: bool,
        block_size: int | None,
        guidance: float | None,
        window: Window | None,
    ) -> None:
        self.network = network if isinstance(network, nn.Module) else Observed(network, self)
        self._observed, self._mask_id, self._out = network, mask_id, out
        self._tokenizer = tokenizer
        self._facts, self._shift, self._block_size = dict(facts), shift, block_size
        self._guidance, self._window = guidance, window
        self._decodes: list[tuple[Decode, list[str]]] = []
        self._added: dict[str, PassCanvas] = {}
        self._named: list[str] = []
        self._samples: dict[str, dict[str, Any]] = {}
        self._hooks: list[Any] = []
        self._active = False
        self._call: CallInputs | None = None
        self._open: list[RecordedCanvas] = []
        self._precision: str | None = None
        self._n_candidates = 0
        self._notes: list[str] = []
        self._run: Run | None = None

    def __enter__(self) -> Recorder:
        if self._observed is not None and id(self._observed) in _recorded:
            raise UserInputError("this network is already being recorded; end the other record block first")
        _refuse_used(self._out)
        if is_gemma(self._observed):
            self._block_size = self._block_size or self._observed.config.canvas_length
            self._hooks = [GemmaHook(self, self._observed, self._mask_id, self._facts)]
        elif isinstance(self._observed, nn.Module):
            self._hooks = [
                self._observed.register_forward_pre_hook(
                    lambda _, args, kwargs: self.before(args, kwargs), with_kwargs=True
                ),
                self._observed.register_forward_hook(
                    lambda _, args, kwargs, found: self.after(args, kwargs, found), with_kwargs=True
                ),
            ]
        _recorded.add(id(self._observed))
        self._active = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
            self._notes += getattr(hook, "notes", ())
        self._hooks, self._active = [], False
        _recorded.discard(id(self._observed))
        if self._n_candidates:
            self._notes.append(
                f"{counted(self._n_candidates, 'call')} with more rows than texts left out: candidates that "
                "the decoder tries"
            )
        if error is not None:
            self._notes.append(f"the decoder ended with {type(error).__name__}: {error}")
        self._end_decodes()
        if error is None or any(canvas.changes for canvas, _ in self._decodes):
            self._save()

    @property
    def run(self) -> Run:
        """The recorded run; available after the block."""
        if self._run is not None:
            return self._run
        raise RunError("the run is available after the record block has ended")

    def sample(
        self,
        id: str,  # noqa: A002 (the name that callers know)
        prompt: str | Sequence[int] | None = None,
        target: Any = None,
        correct: bool | None = None,
    ) -> None:
        """Name the next text: call once per row of the next batch, in the order of its rows.

        With an ``id`` that is already recorded, its facts are added, for instance ``correct``.

        Args:
            id: of the sample.
            prompt: its text or its token ids, where the calls do not show them.
            target: the expected answer, which is kept with the run.
            correct: a verdict on the text.
        """
        if id not in self._samples:
            if not self._named:
                self._end_decodes()
            self._named.append(id)
        told = "prompt" if isinstance(prompt, str) else "prompt_ids"
        facts = {told: prompt, "target": target, "correct": correct}
        self._samples.setdefault(id, {}).update({k: v for k, v in facts.items() if v is not None})

    def finish(self, canvas: Any) -> None:
        """Take the final canvas [N, L] and end the decode; what the decoder returns is accepted.

        Needed for the last pass, unless the decoder calls the network once more or writes its tokens into
        the tensor that it passes to the network. The prompt may be left out.
        """
        self._show_canvas(canvas)
        self._end_decodes()

    def on_step(self, step: int | None, x: Tensor, logits: Tensor | None = None) -> Tensor:
        """Take the canvas after a pass; fits Dream's ``generation_tokens_hook_func``. Returns ``x``."""
        del step, logits
        if self._open:
            self._show_canvas(x)
        return x

    @torch.inference_mode(False)
    @torch.no_grad()
    def add_pass(
        self,
        sample: str,
        before: Tensor,
        after: Tensor,
        logits: Tensor,
        start: int = 0,
        origin: Sequence[int] | None = None,
    ) -> None:
        """Add one pass over a text, where no hook can see it: serving engines, replayed CUDA graphs.

        Args:
            sample: the id of the text.
            before: token ids [W] of the canvas, or of a window of it, before the pass.
            after: the same after the pass.
            logits: raw logits [W, V].
            start: position of the window.
            origin: where slots are inserted or deleted, the place in ``before`` of each id in ``after``, −1
                for inserted ones. Positions of the run then count all slots, in text order.
        """
        if sample not in self._added:
            self._samples.setdefault(sample, {})
            self._named = [name for name in self._named if name != sample]
            self._added[sample] = PassCanvas(self._mask_id, self._shift)
            self._decodes.append((self._added[sample], [sample]))
        self._added[sample].add(before.detach(), after.detach(), logits.detach(), start, origin)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _show_canvas(self, canvas: Any) -> None:
        if not self._open:
            raise UserInputError("finish was called before the network; call it after the decoder")
        found = getattr(canvas, "sequences", canvas[0] if isinstance(canvas, tuple) else canvas)
        try:
            ids = torch.as_tensor(found).detach().cpu().long()
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserInputError(f"the final canvas must be token ids [N, L]: {error}") from None
        ids = ids[None] if ids.ndim == 1 else ids
        for open_canvas in reversed(self._open):
            texts = open_canvas.texts_of(ids)
            if texts is not None and open_canvas.continues(ids, texts):
                return open_canvas.show(ids, 0, texts)
            if texts is not None and (start := open_canvas.tail_start(ids, texts)) is not None:
                return open_canvas.show(ids, start, texts)
        raise UserInputError(
            f"the canvas {list(ids.shape)} is not that of the recorded decode "
            f"{list(self._open[-1].tokens_NL.shape)}: its prompt or its number of texts differs; hand over "
            "prompt and generated tokens, as the network received them"
        )

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.inference_mode(False)
    @torch.no_grad()
    def before(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take in the arguments of a call before it is made, as it may extend the cache."""
        if self._active:
            self._call = CallInputs(args, kwargs, self._window)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    @torch.inference_mode(False)
    @torch.no_grad()
    def after(self, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any) -> None:
        """Attribute what changed since the last call, and keep what this one may decide."""
        call, self._call = self._call, None
        if call is None:
            return
        ids, copy = call.ids, call.copy
        logits, first = logits_rows(found, copy, kwargs)
        is_double = logits.dtype == torch.float64  # statistics are computed in float32
        self._precision = "float32" if is_double else str(logits.dtype).removeprefix("torch.")
        half = self._guided_half(call, copy)
        if half is not None:
            ids, copy, logits = ids[half], copy[half], mix_guidance(logits, self._scale(), half)
        if self._open and self._open[-1].is_without_prompt(copy):
            self._open[-1].guided(logits, first, self._scale())
            return
        if any(canvas.are_candidates(copy) for canvas in self._open):
            self._n_candidates += 1
            return
        if self._open and self._open[-1].began_without_prompt(copy):
            raise UserInputError(
                "the decoder calls the network without its prompt and then with it, as guidance in two calls "
                "does; recording needs the call with the prompt first, or both in one batch"
            )
        start = self._place(call, copy)
        canvas = self._decode_of(copy, start, is_guided=half is not None)
        canvas.show_call(copy, start)
        canvas.called(ids, copy, start, logits, first)

    def _guided_half(self, call: CallInputs, copy: Tensor) -> slice | None:
        """Return the half with the prompts of a batch doubled for guidance; a decode's first call decides."""
        half = prompted_half(copy, self._mask_id)
        if half is None:
            return None
        tells = self._window is not None or call.is_cached
        start = (call.start or 0) if tells else 0
        for canvas in self._open:
            part = copy[half] if canvas.is_guided else copy
            if len(canvas.live) == len(part) and canvas.fits(part, start):
                return half if canvas.is_guided else None
        is_masked = (copy == self._mask_id).sum() - 2 * (copy[half] == self._mask_id).sum()
        return half if 2 * is_masked >= (copy[half] != self._mask_id).sum() else None

    def _scale(self) -> float:
        """Return the scale of guidance; refuse a decoder that uses it without being told."""
        if self._guidance is None:
            raise UserInputError(
                "the decoder uses classifier-free guidance: it also calls the network with the prompt "
                "masked; pass guidance=SCALE to record log q of the mixture, or decode without guidance"
            )
        return self._guidance

    def _place(self, call: CallInputs, copy: Tensor) -> int:
        """Return the position of a call's window in the canvas."""
        canvas, width, told = self._open[-1] if self._open else None, copy.shape[1], call.start
        if self._window is not None or (call.is_cached and told is not None):
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

    def _decode_of(self, copy: Tensor, start: int, *, is_guided: bool) -> RecordedCanvas:
        """Return the canvas that a call continues, or a new one.

        Decoders may alternate. So an earlier canvas of the same shape is preferred to the last one with
        texts that have left its batch.
        """
        last = self._open[-1] if self._open else None
        same = [c for c in self._open[:-1] if not start and c.tokens_NL.shape == copy.shape]
        if last is not None and len(last.live) == len(copy):
            same.append(last)
        elif last is not None:
            same.insert(0, last)
        for canvas in reversed(same):
            if canvas.is_guided == is_guided and canvas.fits(copy, start):
                self._open = [*(other for other in self._open if other is not canvas), canvas]
                return canvas
        return self._new_decode(len(copy), is_guided)

    def _new_decode(self, n_texts: int, is_guided: bool) -> RecordedCanvas:
        """Open a canvas; complete ones are closed, and the oldest one where too many are open."""
        for canvas in self._open:
            canvas.close()
        waiting = [canvas for canvas in self._open if canvas.left_masked()][1 - OPEN :]
        for canvas in self._open:
            if canvas not in waiting:
                canvas.forget_calls()
        new = RecordedCanvas(n_texts, self._mask_id, shift=self._shift, is_guided=is_guided)
        self._open = [*waiting, new]
        self._decodes.append((new, self.take_names(n_texts)))
        return new

    def take_names(self, count: int) -> list[str]:
        """Return the names of the texts of a new decode: as stated by ``sample``, then made."""
        names, self._named = self._named[:count], self._named[count:]
        if self._named:
            raise UserInputError(
                f"{counted(len(names) + len(self._named), 'sample')} were named for a batch of {count}; call "
                "rec.sample once per row of the next call"
            )
        number = len(self._decodes)
        names += [f"text-{number:04d}-{row}" for row in range(len(names), count)]
        for name in names:
            self._samples.setdefault(name, {})
        return names

    def _end_decodes(self) -> None:
        for canvas in self._open:
            with torch.inference_mode(False), torch.no_grad():
                canvas.close()
            canvas.forget_calls()
        self._open = []

    def _save(self) -> None:
        """Write the run, in the folder or in memory."""
        from orderlens.store.reader import memory_run, open_run
        from orderlens.texts.foreign.save import foreign_tables, merged_tables, save_units

        prompts = prompts_of(self._decodes, self._samples)
        rows = import_rows(self._decodes, self._samples, prompts, self._tokenizer, self._facts)
        if not len(rows):
            raise UserInputError(
                "nothing was recorded: no call of the network revealed a token inside the record block; "
                f"check mask_id={self._mask_id}, and that the decoder calls the recorded network"
            )
        decode = None if self._tokenizer is None else as_tokenizer(self._tokenizer).decode
        content = foreign_tables(
            rows, block_size=self._block_size, prompts=prompts, decode=decode, prefix="record"
        )
        canvases = [canvas for canvas, _ in self._decodes]
        hooked = [canvas for canvas in canvases if isinstance(canvas, RecordedCanvas)]
        missing = [*self._notes, *shift_note(hooked, self._shift), *gaps(canvases)]
        for note in missing:
            _log.warning("%s", note)
        digest = hashlib.blake2b(json.dumps(rows.columns).encode(), digest_size=16).hexdigest()
        name = type(self._observed).__name__ if isinstance(self._observed, nn.Module) else "function"
        spec = content.spec("record", f"recorded:{name}", "recorded", digest)
        spec["recorded"] = self._settings() | {"notes": [*missing, *content.notes]}
        spec |= {} if self._block_size is None else {"block_size": self._block_size}
        if self._out is None:
            self._run = memory_run(merged_tables(content.units), spec, content.units)
            return
        save_units(str(self._out), spec, content.units)
        self._run = open_run(self._out)

    def _settings(self) -> dict[str, Any]:
        targets = {name: facts["target"] for name, facts in self._samples.items() if "target" in facts}
        found = {"guidance": self._guidance, "precision": self._precision}
        known = {name: value for name, value in found.items() if value is not None}
        return {"mask_id": self._mask_id, "shift": self._shift, "targets": targets} | known


def _refuse_used(out: str | os.PathLike[str] | None) -> None:
    """Refuse a folder that holds a run, before anything is decoded."""
    from orderlens.store.folder import open_folder
    from orderlens.store.records import SPEC

    if out is not None and open_folder(out).exists(SPEC):
        raise RunError(f"{out} already holds a run; give another folder")

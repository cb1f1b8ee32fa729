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

from orderlens.decode.record_calls import CallInputs, Observed, Window, logits_rows, mix_guidance
from orderlens.decode.record_canvas import RecordedCanvas
from orderlens.decode.record_gemma import GemmaHook, is_gemma
from orderlens.decode.record_open import OpenCanvases
from orderlens.decode.record_passes import PassCanvas
from orderlens.decode.record_rows import Decode, gaps, import_rows, prompts_of, shift_note
from orderlens.errors import RunError, UserInputError, counted
from orderlens.models.wrapped import as_tokenizer

if TYPE_CHECKING:
    from orderlens.store.reader import Run

_log = logging.getLogger(__name__)
_recorded: set[int] = set()
"""Identities of the networks that are being recorded."""


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
        self._open = OpenCanvases(mask_id, shift, has_window=window is not None)
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
        self._open.close()
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
                self._open.close()
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
        self._open.close()

    def on_step(self, step: int | None, x: Tensor, logits: Tensor | None = None) -> Tensor:
        """Take the canvas after a pass; fits Dream's ``generation_tokens_hook_func``. Returns ``x``."""
        del step, logits
        if self._open.last is not None:
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
        if self._open.last is None:
            raise UserInputError("finish was called before the network; call it after the decoder")
        found = getattr(canvas, "sequences", canvas[0] if isinstance(canvas, tuple) else canvas)
        try:
            ids = torch.as_tensor(found).detach().cpu().long()
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserInputError(f"the final canvas must be token ids [N, L]: {error}") from None
        ids = ids[None] if ids.ndim == 1 else ids
        self._open.show(ids)

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
        half = self._open.guided_half(call, copy)
        if half is not None:
            ids, copy, logits = ids[half], copy[half], mix_guidance(logits, self._scale(), half)
        last = self._open.last
        if last is not None and last.is_without_prompt(copy):
            last.guided(logits, first, self._scale())
            return
        if self._open.are_candidates(copy):
            self._n_candidates += 1
            return
        start = self._open.place(call, copy)
        canvas = self._open.find(copy, start, is_guided=half is not None)
        if canvas is None:
            canvas = self._open.add(len(copy), is_guided=half is not None)
            self._decodes.append((canvas, self.take_names(len(copy))))
        canvas.show_call(copy, start)
        canvas.called(ids, copy, start, logits, first)

    def _scale(self) -> float:
        """Return the scale of guidance; refuse a decoder that uses it undeclared."""
        if self._guidance is None:
            raise UserInputError(
                "the decoder uses classifier-free guidance: it also calls the network with the prompt "
                "masked; pass guidance=SCALE to record log q of the mixture, or decode without guidance"
            )
        return self._guidance

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

"""SGLang: a plug-in that writes what its diffusion algorithms decide, for ``orderlens runs import``.

SGLang calls every entry point of the group ``sglang.srt.plugins`` in each of its processes. This one does
nothing unless ``ORDERLENS_RECORD=FOLDER`` is set. Then the ``step`` of each algorithm is wrapped. Changes are
appended to ``FOLDER/sglang-PID.jsonl`` after every step, as SGLang may end a process without notice. log q is
that of the raw logits of the pass. Does not import SGLang unless it is asked to record.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orderlens.decode.record_passes import PassCanvas
from orderlens.decode.record_rows import event_rows

FOLDER = "ORDERLENS_RECORD"
"""Environment variable with the folder to write to."""
ALGORITHMS = ("low_confidence.LowConfidence", "joint_threshold.JointThreshold")
"""Algorithms (SGLang 0.5.23) whose step changes masks and tokens in place; others are not recorded."""
MAX_TEXTS = 4096
"""Texts whose state is kept; the one that was seen longest ago is forgotten first."""
_log = logging.getLogger(__name__)


def register() -> None:
    """Wrap the algorithms of SGLang if ``ORDERLENS_RECORD`` names a folder: the entry point."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    recorder = StepRecorder(folder)
    for name in ALGORITHMS:
        HookRegistry.register(f"sglang.srt.dllm.algorithm.{name}.step", recorder.around, HookType.AROUND)
    _log.info("orderlens records %s in %s", ", ".join(ALGORITHMS), folder)


class StepRecorder:
    """Appends the changes of every step to a file.

    Attributes:
        path: the file; one per process.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.path = Path(folder) / f"sglang-{os.getpid()}.jsonl"
        self._texts: dict[str, tuple[PassCanvas, int]] = {}
        self._active = True

    def around(
        self, step: Callable[..., Any], algorithm: Any, batch: Any, full_logits: Any, *args: Any, **more: Any
    ) -> Any:
        """Run one step and write what it changed; a failure ends the recording, not the server.

        Args:
            step: the algorithm's own step, which changes ``batch.input_ids`` [B × block] in place.
            algorithm: with ``block_size`` and ``mask_id``.
            batch: SGLang's ForwardBatch.
            full_logits: raw logits [B × block, V], or an object that holds them under this name.
            args: the rest of the step's arguments.
            more: its keyword arguments.
        """
        if not (self._active and _is_first_rank()):
            return step(algorithm, batch, full_logits, *args, **more)
        before, logits = batch.input_ids.clone(), getattr(full_logits, "full_logits", full_logits)
        if getattr(algorithm, "penalty_lambda", 0):
            logits = logits.clone()  # the step changes them in place
        done = step(algorithm, batch, full_logits, *args, **more)
        try:
            self._write(self._rows(algorithm, batch, before, logits))
        except Exception:  # noqa: BLE001 (requests must be answered after any error)
            self._active = False
            _log.exception("orderlens stops recording; %s holds what was written before", self.path)
        return done

    @torch.inference_mode(False)
    @torch.no_grad()
    def _rows(self, algorithm: Any, batch: Any, before: Tensor, logits: Tensor) -> list[dict[str, Any]]:
        """Return the changes of one step as rows of ``runs import``."""
        size, mask_id = algorithm.block_size, algorithm.mask_id
        old, new, places = torch.stack([before, batch.input_ids, batch.positions]).cpu().view(3, -1, size)
        rows = []
        for i, name in enumerate(batch.rids):
            is_idle = bool((old[i] == new[i]).all()) and mask_id not in old[i]
            if is_idle:  # the prompt, or a block whose cache is filled
                continue
            start = int(places[i, 0])
            canvas, first = self._text(name, mask_id, start)
            canvas.add(old[i], new[i], logits.view(-1, size, logits.shape[-1])[i], start, None)
            found = event_rows(canvas.take_changes(), mask_id, [name])
            facts = {"order": order_of(algorithm), "temperature": 0.0, "block": (start - first) // size}
            rows += [row | facts for row in found]
        return rows

    def _text(self, name: str, mask_id: int, start: int) -> tuple[PassCanvas, int]:
        """Return the canvas of a request and the position of its first block; forget the oldest request."""
        known = self._texts.pop(name) if name in self._texts else (PassCanvas(mask_id), start)
        self._texts[name] = known
        if len(self._texts) > MAX_TEXTS:
            del self._texts[next(iter(self._texts))]
        return known

    def _write(self, rows: Sequence[Mapping[str, Any]]) -> None:
        if rows:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(row)}\n" for row in rows))


def order_of(algorithm: Any) -> str:
    """Return the name of an algorithm's rule: our policy where it is one, else the name of the class."""
    name = type(algorithm).__name__
    return f"max-prob+above={algorithm.threshold:g}" if name == "LowConfidence" else name


def _is_first_rank() -> bool:
    """Return whether this process writes: ranks of one tensor-parallel group decide the same."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return True
    from sglang.srt.distributed import get_tensor_model_parallel_rank

    return bool(get_tensor_model_parallel_rank() == 0)

"""Where a batch of samples lies: canvases, and whether they fit the model."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from orderlens.common.grid import Canvas
from orderlens.errors import UserInputError
from orderlens.models.protocol import Anchor, Model
from orderlens.texts.samples import EncodedSample

_log = logging.getLogger(__name__)


def plan_canvases(
    block_size: int, samples: Sequence[EncodedSample], anchor: Anchor, n_new: int | None = None
) -> list[Canvas]:
    """Return each sample's canvas: as long as its target, or with ``n_new`` as its template or as that."""
    return [
        Canvas.plan(
            len(sample.prompt),
            len(sample.target) if n_new is None else len(sample.template) or n_new,
            block_size,
            anchor,
            len(sample.suffix),
        )
        for sample in samples
    ]


def check_fits(model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> None:
    """Refuse a sample whose canvas is longer than the model's context, or whose suffix it cannot see."""
    for sample, canvas in zip(samples, canvases, strict=True):
        needed = canvas.reach(model.attention)
        if needed > model.max_positions:
            raise UserInputError(
                f"sample '{sample.id}': {canvas.prompt_length} prompt + {canvas.n_requested} tokens need "
                f"{needed} positions, but {model.name} has {model.max_positions}; shorten one of them"
            )
    if model.attention == "block-causal":
        _check_suffixes(model, samples, canvases)


def _check_suffixes(model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> None:
    partly = 0
    for sample, canvas in zip(samples, canvases, strict=True):
        if canvas.n_suffix and not canvas.visible_suffix:
            raise UserInputError(
                f"sample '{sample.id}': its suffix starts at position {canvas.requested_end}, with a new "
                f"block of {canvas.block_size}, and {model.name} is block-causal: the target cannot see it; "
                "use another block size or anchor, or a full-attention model"
            )
        partly += canvas.visible_suffix < canvas.n_suffix
    if partly:
        _log.warning(
            "%s is block-causal: of %d of %d suffixes only the tokens in the target's last block are seen",
            model.name,
            partly,
            len(samples),
        )

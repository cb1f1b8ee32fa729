"""Canvas layout of a batch of samples, and states of fixed targets over one prefilled session.

The clean prefix of every block is known, so any set of visible positions of any block can be evaluated. The
scorer evaluates states along reveal orders; other measurements choose states freely.

Shape letters: M blocks of all samples, B block size, W window (B, or the canvas under full attention),
U states, R rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderlens.common.grid import Canvas, Overflow
from orderlens.decode.extra_inputs import Remaining, remaining_stats
from orderlens.decode.head import start_reduction
from orderlens.errors import ModelOutputError, UserInputError
from orderlens.models.protocol import Anchor, IntArray, Model, Rows, Session, StateBatch
from orderlens.rules.stats import TargetStats
from orderlens.texts.samples import EncodedSample

_log = logging.getLogger(__name__)


def plan_canvases(
    block_size: int,
    samples: Sequence[EncodedSample],
    anchor: Anchor,
    n_new: int | None = None,
    overflow: Overflow = "fill",
) -> list[Canvas]:
    """Return each sample's canvas.

    Its length is that of the target; given ``n_new``, that of the template, or ``n_new`` without a template.
    ``overflow`` states whether positions past that length are filled or stay masked.
    """
    return [
        Canvas.plan(
            len(sample.prompt),
            len(sample.target) if n_new is None else len(sample.template) or n_new,
            block_size,
            anchor,
            len(sample.suffix),
            overflow == "fill",
        )
        for sample in samples
    ]


def check_fits(model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> None:
    """Reject a sample whose canvas exceeds the model's context, or whose suffix the target cannot see."""
    for sample, canvas in zip(samples, canvases, strict=True):
        needed = canvas.reach(model.attention)
        if needed > model.max_positions:
            raise UserInputError(
                f"sample '{sample.id}': {canvas.prompt_length} prompt + {canvas.n_requested} tokens need "
                f"{needed} positions, but {model.name} has {model.max_positions}; shorten prompt or target"
            )
    if model.attention == "block-causal":
        _check_suffixes(model, samples, canvases)


def _check_suffixes(model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> None:
    partly = 0
    for sample, canvas in zip(samples, canvases, strict=True):
        if canvas.n_suffix and not canvas.visible_suffix:
            raise UserInputError(
                f"sample '{sample.id}': its suffix starts a new block of {canvas.block_size} at position "
                f"{canvas.requested_end}, and in the block-causal {model.name} the target cannot see it; "
                "use another block size or anchor, or a full-attention model"
            )
        partly += canvas.visible_suffix < canvas.n_suffix
    if partly:
        _log.warning(
            "%s is block-causal: for %d of %d suffixes the target sees only the tokens in its last block",
            model.name,
            partly,
            len(samples),
        )


BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Every block to score, over all samples of the batch.

    Attributes:
        sample_M: index of the sample, which is also its session slot.
        block_M: 0 for a sample's first scored block.
        low_M: absolute position of the window's first token.
        start_M: absolute position of the block's first token.
        around_MW: the window in every state of the block: the given tokens, masks elsewhere.
        clean_MB: the block's true tokens (mask id past the end of the text).
        given_MB: visible from the start: the prompt's tail, the suffix's head.
        open_MB: positions to reveal.
    """

    sample_M: IntArray
    block_M: IntArray
    low_M: IntArray
    start_M: IntArray
    around_MW: IntArray
    clean_MB: IntArray
    given_MB: BoolArray
    open_MB: BoolArray


class TargetStates:
    """Evaluates states of the samples' targets; one session slot per sample."""

    def __init__(
        self,
        model: Model,
        samples: Sequence[EncodedSample],
        canvases: Sequence[Canvas],
        open_session: Callable[[], Session] | None = None,
    ) -> None:
        self.model, self.samples = model, samples
        self.blocks = lay_out_blocks(model, samples, canvases)
        self.session = (open_session or model.open_session)()
        prefixes = [
            np.concatenate([sample.prompt, sample.target])[: canvas.block_starts[-1]]
            for sample, canvas in zip(samples, canvases, strict=True)
        ]
        self.session.prefill(prefixes, [canvas.offset for canvas in canvases])

    def refuse_impossible(self, m_R: IntArray, offset_R: IntArray, stats: TargetStats) -> None:
        """Refuse a text with a target token of probability zero; one row per token."""
        impossible = np.flatnonzero(~np.isfinite(stats.target_logprob))
        if len(impossible):
            m, offset = m_R[impossible[0]], offset_R[impossible[0]]
            raise ModelOutputError(
                f"sample '{self.samples[self.blocks.sample_M[m]].id}': the model gives the target token at "
                f"position {self.blocks.start_M[m] + offset} probability zero; this text cannot be scored"
            )

    def evaluate(
        self, m_U: IntArray, visible_UB: BoolArray, wanted_UB: BoolArray
    ) -> tuple[IntArray, TargetStats]:
        """Evaluate states; return the row index of every requested position [U, B] and the rows' statistics.

        Args:
            m_U: block of each state.
            visible_UB: positions of the block whose tokens are shown.
            wanted_UB: positions whose distribution is requested.
        """
        row_UB, _, pending = self.start_evaluation(m_U, visible_UB, wanted_UB)
        return row_UB, pending()

    def start_evaluation(
        self, m_U: IntArray, visible_UB: BoolArray, wanted_UB: BoolArray
    ) -> tuple[IntArray, Rows, Callable[[], TargetStats]]:
        """Start an evaluation; return row indices, rows, and a function that waits for the statistics.

        See ``evaluate`` for the arguments.
        """
        blocks = self.blocks
        shown_UB = np.where(visible_UB, blocks.clean_MB[m_U], self.model.mask_id)
        tokens_UW = self._windows(m_U, shown_UB)
        row_state_R, row_offset_R = np.nonzero(wanted_UB)
        inside_R = row_offset_R + (blocks.start_M - blocks.low_M)[m_U[row_state_R]]
        batch = StateBatch(blocks.sample_M[m_U], blocks.low_M[m_U], tokens_UW, row_state_R, inside_R)
        targets_R = blocks.clean_MB[m_U[row_state_R], row_offset_R]
        rows = self.session.evaluate(batch)
        pending = start_reduction(rows, self.model.eos_ids, targets_R)
        row_UB = np.full(wanted_UB.shape, -1)
        row_UB[row_state_R, row_offset_R] = np.arange(len(row_state_R))

        def wait() -> TargetStats:
            found = pending()
            assert found.target_logprob is not None
            return TargetStats.from_target_logprob(found.positions, targets_R, found.target_logprob)

        return row_UB, rows, wait

    def remaining_after(self, m_K: IntArray, shown_KB: IntArray, masked_KB: BoolArray) -> Remaining:
        """Return the statistics of the masked positions in K states that show other than target tokens.

        Args:
            m_K: block of each state.
            shown_KB: the block's tokens, mask id where hidden.
            masked_KB: the positions to look at; a full-attention model looks at its whole canvas.
        """
        tokens_KW = self._windows(m_K, shown_KB)
        blockwise = self.model.attention == "block-causal"
        wanted_KW = masked_KB if blockwise else tokens_KW == self.model.mask_id
        slots_K, low_K = self.blocks.sample_M[m_K], self.blocks.low_M[m_K]
        return remaining_stats(self.model, self.session, slots_K, low_K, tokens_KW, wanted_KW)

    def window(self, m: int, visible_B: BoolArray) -> IntArray:
        """Return the tokens [W] of one block's window with ``visible_B`` of the block shown."""
        shown_1B = np.where(visible_B, self.blocks.clean_MB[m], self.model.mask_id)[None]
        tokens_W: IntArray = self._windows(np.array([m]), shown_1B)[0]
        return tokens_W

    def _windows(self, m_U: IntArray, shown_UB: IntArray) -> IntArray:
        """Put the blocks' shown tokens into their windows."""
        around_MW = self.blocks.around_MW
        if around_MW.shape[1] == shown_UB.shape[1] and self.model.attention == "block-causal":
            return shown_UB
        size, width = shown_UB.shape[1], around_MW.shape[1]
        # The last block of a canvas with a suffix may reach past the window: pad, fill, cut.
        wide_U = np.pad(around_MW[m_U], ((0, 0), (0, size)), constant_values=self.model.mask_id)
        first_U = (self.blocks.start_M - self.blocks.low_M)[m_U]
        wide_U[np.arange(len(m_U))[:, None], first_U[:, None] + np.arange(size)] = shown_UB
        return wide_U[:, :width]


def lay_out_blocks(model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> Blocks:
    """Split every sample's canvas into blocks with their windows (all windows have one width)."""
    rows: list[tuple[int, int, int, int, IntArray, IntArray, BoolArray, BoolArray]] = []
    for index, (sample, canvas) in enumerate(zip(samples, canvases, strict=True)):
        text = np.concatenate([sample.prompt, sample.target, sample.suffix])
        truth = np.full(max(canvas.end, len(text)), model.mask_id)
        truth[: len(text)] = text
        position = np.arange(len(truth))
        target = (position >= canvas.prompt_length) & (position < canvas.requested_end)
        for block, start in enumerate(canvas.block_starts):
            low, high = canvas.window(start, model.attention)
            around_W = np.where(target & (position >= start), model.mask_id, truth)[low:high]
            here = slice(start, start + canvas.block_size)
            given_B = (truth[here] != model.mask_id) & ~target[here]
            rows.append((index, block, low, start, around_W, truth[here], given_B, target[here]))
    return Blocks(*(np.array(column) for column in zip(*rows, strict=True)))

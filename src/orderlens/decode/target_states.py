"""States of fixed targets: the blocks of a batch of samples over one prefilled session.

Any set of visible positions of any block can be evaluated in any order, because the clean prefix of every
block is known. The scorer walks such states along reveal orders; other measurements pick them freely.

Shape letters: M blocks of all samples, W window, U states, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderlens.decode.head import target_stats
from orderlens.grid import Canvas
from orderlens.models.protocol import IntArray, Model, StateBatch
from orderlens.samples import EncodedSample
from orderlens.stats import TargetStats

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Every block to score, over all samples of the batch.

    Attributes:
        sample_M: index of the sample, which is also its session slot.
        block_M: 0 for a sample's first scored block.
        start_M: absolute position of the window's first token.
        clean_MW: the true tokens (mask id past the end of the target).
        given_MW: visible from the start: prompt tail, earlier blocks of a full-attention canvas.
        open_MW: positions to reveal.
    """

    sample_M: IntArray
    block_M: IntArray
    start_M: IntArray
    clean_MW: IntArray
    given_MW: BoolArray
    open_MW: BoolArray


class TargetStates:
    """Evaluates states of the samples' targets; one session slot per sample."""

    def __init__(self, model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> None:
        self.model = model
        self.blocks = lay_out_blocks(model, samples, canvases)
        self.session = model.open_session()
        prefixes = [
            np.concatenate([sample.prompt, sample.target])[: canvas.block_starts[-1]]
            for sample, canvas in zip(samples, canvases, strict=True)
        ]
        self.session.prefill(prefixes, [canvas.offset for canvas in canvases])

    def evaluate(
        self, m_U: IntArray, visible_UW: BoolArray, wanted_UW: BoolArray
    ) -> tuple[IntArray, TargetStats]:
        """Evaluate states and return the row index of every wanted position, and the rows' statistics.

        Args:
            m_U: block of each state.
            visible_UW: positions whose tokens are shown.
            wanted_UW: positions whose distribution is wanted.
        """
        blocks = self.blocks
        tokens_UW = np.where(visible_UW, blocks.clean_MW[m_U], self.model.mask_id)
        row_state_R, row_offset_R = np.nonzero(wanted_UW)
        batch = StateBatch(blocks.sample_M[m_U], blocks.start_M[m_U], tokens_UW, row_state_R, row_offset_R)
        targets_R = blocks.clean_MW[m_U[row_state_R], row_offset_R]
        stats = target_stats(self.session.evaluate(batch), self.model.eos_ids, targets_R)
        row_UW = np.full(wanted_UW.shape, -1)
        row_UW[row_state_R, row_offset_R] = np.arange(len(row_state_R))
        return row_UW, stats


def lay_out_blocks(model: Model, samples: Sequence[EncodedSample], canvases: Sequence[Canvas]) -> Blocks:
    """Cut every sample's canvas into the windows its blocks are evaluated in (all of one width)."""
    rows: list[tuple[int, int, int, IntArray, BoolArray, BoolArray]] = []
    for index, (sample, canvas) in enumerate(zip(samples, canvases, strict=True)):
        sequence = np.full(canvas.end, model.mask_id)
        sequence[: canvas.requested_end] = np.concatenate([sample.prompt, sample.target])
        for block, start in enumerate(canvas.block_starts):
            stop = start + canvas.block_size
            low, high = (start, stop) if model.attention == "block-causal" else (0, canvas.end)
            position_W = np.arange(low, high)
            given_W = position_W < max(canvas.prompt_length, start)
            open_W = ~given_W & (position_W < min(stop, canvas.requested_end))
            rows.append((index, block, low, sequence[low:high], given_W, open_W))
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return Blocks(*columns)

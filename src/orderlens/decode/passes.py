"""``Pass``: one forward pass of a batch of chains, as the parts of a round hand it on.

Shape letters: C chains of the batch, R rows (positions that somebody asked about), sorted by chain, then left
to right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orderlens.models.protocol import FloatArray, IntArray, Rows, StateBatch
from orderlens.stats import DrawStats, PositionStats

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Asked:
    """What one pass is to evaluate.

    Attributes:
        index_C: place of each chain of the batch among all chains of the call.
        states: the chains' windows and the rows wanted of them.
        offset_R: offset of each row in its chain's block.
        open_CB: masked positions of the blocks that are to be filled.
    """

    index_C: IntArray
    states: StateBatch
    offset_R: IntArray
    open_CB: BoolArray

    @property
    def chain_R(self) -> IntArray:
        """Chain of each row, as a place in ``index_C``."""
        return self.states.row_state_R

    @property
    def masked_R(self) -> BoolArray:
        """Whether each row's position is to be filled."""
        return self.open_CB[self.chain_R, self.offset_R]


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass evaluated.

    Attributes:
        index_C: place of each chain of the batch among all chains of the call.
        chain_R: chain of each row, as a place in ``index_C``.
        offset_R: its offset in the chain's block.
        masked_R: whether the position is to be filled (else it holds a token that may be revised).
        rows: what the model says there.
        stats: the same as position statistics.
        draws: one token per row drawn at the run's temperature; None at T = 0.
        token_R: the token that stands there; the mask id where masked.
        held_logprob_R: its log-probability in this pass; without meaning where masked, and None where no
            policy of the call revises.
        look: takes rows to try; returns the mean entropy of what is masked after each. None where no policy
            of the call looks ahead.
        apart: takes held rows; returns the log-probability of each one's token where it alone is masked. None
            as ``look``.
    """

    index_C: IntArray
    chain_R: IntArray
    offset_R: IntArray
    masked_R: BoolArray
    rows: Rows
    stats: PositionStats
    draws: DrawStats | None
    token_R: IntArray
    held_logprob_R: FloatArray | None
    look: Callable[[IntArray], FloatArray] | None = None
    apart: Callable[[IntArray], FloatArray] | None = None

    @property
    def index_R(self) -> IntArray:
        """Place of each row's chain among all chains."""
        return self.index_C[self.chain_R]


def regroup(chain_r: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values of a sorted array, and each entry's place among them."""
    new_r = np.ones(len(chain_r), bool)
    new_r[1:] = chain_r[1:] != chain_r[:-1]
    return chain_r[new_r], np.cumsum(new_r) - 1


def each(rule: Callable[[int], int], count_r: IntArray) -> IntArray:
    """Return a rule's number for every count, asking once per distinct one."""
    distinct, place_r = np.unique(count_r, return_inverse=True)
    return np.array([rule(int(count)) for count in distinct], np.int64)[place_r]

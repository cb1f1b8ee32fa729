"""dInfer's hierarchy decoder that also takes back what the model has come to doubt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orderlens.rules.protocol import BoolArray, IntArray, real
from orderlens.rules.revise.planners import BlockView, Moves, Planner
from orderlens.rules.stats import comparable


@dataclass(eq=False)
class HierarchyRemask(Planner):
    """Runs of masked and doubted positions give their best if p > LOW; all with p > T; at least D + 1 in all.

    Source: inclusionAI/dInfer ``parallel_strategy.py``, ``get_transfer_index_hierarchy_remask``. A held
    position is doubted when what this pass would put there has p < REMASK (0.4, the published default); D
    positions are. They and the masked ones are candidates alike. The best candidate of every run of them is
    taken if p > LOW, all candidates with p > T are, and where that is fewer than D + 1 the most probable
    others make up for it. A doubted position that is taken holds the fresh proposal afterwards (an edit where
    that is another token), one that is not is masked.

    LOW and T have no defaults there; 0.4 and 0.9 are those of the hierarchy decoder. Among equals of a run
    the leftmost is taken, unlike in ``hierarchy``, and confidences are float32 or better.

    Every pass leaves fewer masks than it found, so a block of n positions takes at most n passes; a full
    block is not looked at again.
    """

    id = "hierarchy-remask"
    summary = (
        "hierarchy-remask=LOW:T[:REMASK]: hierarchy, and held positions with p < REMASK (0.4) compete anew"
    )
    order_id = "max-prob"
    low: float = real(0.0, 1.0, "LOW", 0.4)
    threshold: float = real(0.0, 1.0, "T", 0.9)
    remask: float = real(0.0, 1.0, "REMASK", 0.4, default=0.4)

    def passes(self, n_positions: int) -> int:
        """Return n."""
        return max(1, n_positions)

    def plan(self, view: BlockView) -> Moves:
        """Take the runs' best, the sure and what makes up for the doubted; mask the other doubted ones."""
        p_R = comparable(np.exp(view.proposal_logprob_R))
        doubted_R = ~view.masked_R & (p_R < comparable(self.remask))
        open_R = view.masked_R | doubted_R
        best_R = _best_of_runs(view, open_R) & (p_R > comparable(self.low))
        taken_R = open_R & (best_R | (p_R > comparable(self.threshold)))
        counts_C = (
            np.bincount(view.chain_R[rows], minlength=len(view.filling_C)) for rows in (doubted_R, taken_R)
        )
        n_doubted_C, n_taken_C = counts_C
        rest_R = open_R & ~taken_R
        missing_C: IntArray = n_doubted_C + 1 - n_taken_C
        taken_R |= rest_R & (view.ranks(view.proposal_logprob_R, rest_R) < missing_C[view.chain_R])
        return Moves(taken_R & view.masked_R, doubted_R & ~taken_R, taken_R & doubted_R)


def _best_of_runs(view: BlockView, open_R: BoolArray) -> BoolArray:
    """Return the most probable row of every run of neighbouring open rows, the leftmost among equals."""
    best_R = np.zeros(len(view), bool)
    row_o = np.flatnonzero(open_R)
    starts_o = np.ones(len(row_o), bool)
    chain_o, offset_o = view.chain_R[row_o], view.offset_R[row_o]
    starts_o[1:] = (np.diff(chain_o) != 0) | (np.diff(offset_o) != 1)
    run_o, p_o = np.cumsum(starts_o) - 1, comparable(view.proposal_logprob_R[row_o])
    by_o = np.lexsort((offset_o, -p_o, run_o))
    best_R[row_o[by_o[starts_o]]] = True
    return best_R

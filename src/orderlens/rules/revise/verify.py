"""Revise rules that judge each held token: LLaDA-2.1's edits, dInfer's re-masking, WINO's verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from orderlens.rules.protocol import real, whole
from orderlens.rules.revise import BlockView, Moves, Revise
from orderlens.rules.stats import BoolArray, IntArray, comparable


@dataclass(eq=False)
class Edit(Revise):
    """A held token is replaced by the most probable token if that is another one and has p > TAU.

    The token-to-token half of LLaDA-2.1's decoding (arXiv 2602.08676, eq. 1-3; Hugging Face ``generate``, its
    port in dllm ``pipelines/llada21/sampler.py``, SGLang ``JointThreshold``). It is applied in the same pass
    that reveals masked positions, from the first pass on, to the tokens held before that pass; prompt
    and template tokens are never edited. Once the block is full, up to POST further passes follow; the
    first pass without a change ends the block and is counted.
    The mask-to-token half is a commit rule, ``above=T``.

    Published values: TAU 0.9, POST 16 (dllm, with T 0.95); 0.5 with T 0.7 and 0 with T 0.5 are the quality
    and speed modes of the model card. TAU = 0 edits wherever the most probable token is another one, as in
    SGLang; one of the two diffusers schedulers reads 0 as "off".

    Differs: an edit never writes MASK (the public code does not exclude it); at T > 0 the public code
    compares a drawn token, ours the most probable one, so that an edit never lowers the probability; earlier
    blocks are not revisited (Multi-Block Editing), because they are cached.

    A block of n positions takes at most n + POST passes: nothing is masked again.
    """

    id = "edit"
    summary = (
        "edit=TAU[:POST]: a held token is replaced by one with p > TAU; POST (16) passes after the last mask"
    )
    draws_proposals = False
    tau: float = real(0.0, 1.0, "TAU", 0.9)
    post_passes: int = whole(0, "POST", 16, default=16)

    def passes(self, n_positions: int) -> int:
        return n_positions + self.post_passes

    def max_passes(self, n_positions: int) -> int:
        return self.passes(n_positions)

    def is_done(self, n_full: int, changed: bool) -> bool:
        return not changed or n_full >= self.post_passes

    def revise(self, view: BlockView) -> Moves:
        sure_R = comparable(np.exp(view.proposal_logprob_R)) > comparable(self.tau)
        return Moves(edit_R=~view.masked_R & sure_R & (view.proposal_R != view.token_R))


@dataclass(eq=False)
class HierarchyRemask(Revise):
    """The ``hierarchy`` rule over masked and doubted positions; it fills at least D + 1, D being the doubted.

    Source: inclusionAI/dInfer ``parallel_strategy.py``, ``get_transfer_index_hierarchy_remask``. A held
    position is doubted if this pass's proposal for it has p < REMASK (0.4, the published default); D
    positions are. Doubted and masked positions are candidates. The best candidate of every run of candidates
    is filled if p > LOW, and all candidates with p > T. If these are fewer than D + 1, the most probable
    others are filled too. A doubted position that is filled takes the new proposal (an edit if that is
    another token); otherwise it is masked.

    LOW and T have no defaults there; 0.4 and 0.9 are those of the hierarchy decoder. If several
    tie in a run, the leftmost is filled, unlike in ``hierarchy``. Confidences are float32 or better.

    Every pass reduces the number of masks, so a block of n positions takes at most n passes; a full block is
    not changed any more.
    """

    id = "hierarchy-remask"
    summary = "hierarchy-remask=LOW:T[:REMASK]: hierarchy, also over held positions with p < REMASK (0.4)"
    order_id = "max-prob"
    low: float = real(0.0, 1.0, "LOW", 0.4)
    threshold: float = real(0.0, 1.0, "T", 0.9)
    remask: float = real(0.0, 1.0, "REMASK", 0.4, default=0.4)

    def passes(self, n_positions: int) -> int:
        return max(1, n_positions)

    def revise(self, view: BlockView) -> Moves:
        p_R = comparable(np.exp(view.proposal_logprob_R))
        doubted_R = ~view.masked_R & (p_R < comparable(self.remask))
        open_R = view.masked_R | doubted_R
        best_R = _best_of_runs(view, open_R) & (p_R > comparable(self.low))
        filled_R = open_R & (best_R | (p_R > comparable(self.threshold)))
        counts_C = (
            np.bincount(view.chain_R[rows], minlength=len(view.filling_C)) for rows in (doubted_R, filled_R)
        )
        n_doubted_C, n_filled_C = counts_C
        rest_R = open_R & ~filled_R
        missing_C: IntArray = n_doubted_C + 1 - n_filled_C
        filled_R |= rest_R & (view.ranks(view.proposal_logprob_R, rest_R) < missing_C[view.chain_R])
        return Moves(filled_R & view.masked_R, doubted_R & ~filled_R, filled_R & doubted_R)


def _best_of_runs(view: BlockView, open_R: BoolArray) -> BoolArray:
    """Return the most probable row of every run of adjacent open rows, the leftmost if several tie."""
    best_R = np.zeros(len(view), bool)
    row_o = np.flatnonzero(open_R)
    starts_o = np.ones(len(row_o), bool)
    chain_o, offset_o = view.chain_R[row_o], view.offset_R[row_o]
    starts_o[1:] = (np.diff(chain_o) != 0) | (np.diff(offset_o) != 1)
    run_o, p_o = np.cumsum(starts_o) - 1, comparable(view.proposal_logprob_R[row_o])
    by_o = np.lexsort((offset_o, -p_o, run_o))
    best_R[row_o[by_o[starts_o]]] = True
    return best_R


FIRST_ACCEPTED = 30
"""Number of filled positions that a block's first pass assumes for the limit on re-masking."""


@dataclass(eq=False)
class Wino(Revise):
    """Fills all with p > DRAFT, and re-masks held tokens whose probability, when hidden, is below VERIFY.

    Source: WINO-DLLM ``decoding_wino`` (DRAFT 0.6, VERIFY 0.9; task files 0.5 to 0.8). A pass fills every
    masked position with p > DRAFT, at most min(max(floor(0.7 |M|), 5), 20) of them, the most probable, and at
    least the best one. If it fills more than one, every token held before the pass is judged by its
    probability in a state where it alone is hidden. The least probable ones below VERIFY are masked, at most
    one fewer than the previous pass filled (30 before a block's first pass).

    Differs: there a doubled block with a special attention mask judges all tokens in the same forward pass,
    and the hidden copies see each other. The model protocol has no such mask, so every judged token is a
    separate state, counted in ``n_lookahead``. At temperature > 0 proposals are drawn; there they are not.
    |M| counts the masks of the block.

    A pass fills more than it re-masks, so a block of n positions takes at most n passes.
    """

    id = "wino"
    summary = "wino[=DRAFT:VERIFY]: fills p > DRAFT (0.6), masks tokens with p < VERIFY (0.9) if hidden alone"
    order_id = "max-prob"
    judges_apart = True
    draft: float = real(0.0, 1.0, "DRAFT", 0.6)
    verify: float = real(0.0, 1.0, "VERIFY", 0.9)

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        return super().parse(values or ["0.6", "0.9"])

    def passes(self, n_positions: int) -> int:
        return max(1, n_positions)

    def revise(self, view: BlockView) -> Moves:
        count_C = len(view.filling_C)
        sure_R = view.masked_R & (comparable(np.exp(view.proposal_logprob_R)) > comparable(self.draft))
        left_C = np.bincount(view.chain_R[view.masked_R], minlength=count_C)
        most_C = np.minimum(np.maximum(left_C * 7 // 10, 5), 20)
        fill_C = np.clip(np.bincount(view.chain_R[sure_R], minlength=count_C), 1, most_C)
        commit_R = view.masked_R & (view.ranks(view.proposal_logprob_R, view.masked_R) < fill_C[view.chain_R])
        remask_R = self._remasked(view, fill_C)
        view.memory.keep_chains("filled", fill_C)
        return Moves(commit_R, remask_R)

    def _remasked(self, view: BlockView, fill_C: IntArray) -> BoolArray:
        judged_R = ~view.masked_R & (fill_C > 1)[view.chain_R]
        apart_R = view.apart(judged_R)
        doubted_R = judged_R & (
            comparable(np.exp(np.where(judged_R, apart_R, 0.0))) < comparable(self.verify)
        )
        most_C = view.memory.chains("filled", FIRST_ACCEPTED) - 1
        return doubted_R & (view.ranks(-apart_R, doubted_R) < most_C[view.chain_R])

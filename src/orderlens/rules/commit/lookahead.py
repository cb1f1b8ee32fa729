"""LookUM's commit rule: tries several sets of positions and keeps one by the entropy that they leave."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Self

import numpy as np

from orderlens.errors import UserInputError
from orderlens.rules.protocol import AFTER_SETS, Commit, CommitView, real, whole
from orderlens.rules.stats import BoolArray, FloatArray, IntArray, comparable

MAX_SETS, MAX_POOL = 8, 12


@dataclass(eq=False)
class LookaheadSets(Commit):
    """M sets of K of the order's first POOL positions are tried; one is drawn with weight exp(−H/W).

    LookUM (arXiv 2511.05563) in its variant NIS: M = 2, K = 2, POOL = 5, all positions of a set filled with
    tokens drawn from p (the run's temperature). H is the mean entropy of the positions that stay masked: of
    the block for a block-causal model, of the canvas for full attention. Our own choices, because the paper's
    are not known: the weight's temperature W (0.1 nats; 0 keeps the best set), distinct sets, and one drawn
    token per position and pass, so that sets that share a position share its token. The winner's state is not
    reused as the next pass, so a pass costs M + 1 states. With at most K positions left nothing is tried.
    """

    id = "lookahead-sets"
    summary = "lookahead-sets[=M[:K[:POOL[:W]]]]: tries M (2) sets of K (2) of the first POOL (5), keeps one"
    randomised = True
    needs = frozenset({AFTER_SETS})
    m: int = whole(2, "M", 2, default=2)
    k: int = whole(1, "K", 2, default=2)
    pool: int = whole(2, "POOL", 5, default=5)
    heat: float = real(0.0, 1e6, "W", 0.1, default=0.1)

    @classmethod
    def parse(cls, values: list[str]) -> Self:
        rule = super().parse(values)
        if rule.m > MAX_SETS or not rule.k < rule.pool <= MAX_POOL:
            raise UserInputError(
                f"'lookahead-sets': M is {rule.m}, K is {rule.k} and POOL is {rule.pool}; M must be at most "
                f"{MAX_SETS}, and POOL larger than K and at most {MAX_POOL}"
            )
        return rule

    def planned_passes(self, n_positions: int) -> int:
        return -(-n_positions // self.k)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        rank_R, left_C = view.ranks(scores_R), view.left_C
        chosen_R: BoolArray = (rank_R < self.k) & (left_C <= self.k)[view.chain_R]
        if (left_C <= self.k).all():
            return chosen_R
        row_R, width_C = np.lexsort((rank_R, view.chain_R)), np.minimum(left_C, self.pool)
        uniforms_Cn, starts_C = view.chain_uniforms(self.m + 1), view.starts_C
        tried: list[tuple[IntArray, IntArray]] = []
        for width in range(self.k + 1, self.pool + 1):  # chains with equally many sets to draw from
            if len(mine := np.flatnonzero(width_C == width)):
                places_cmk = _drawn_sets(width, self.k, uniforms_Cn[mine, : self.m])
                tried.append((mine, row_R[starts_C[mine][:, None, None] + places_cmk]))
        after_K = view.entropy_after(np.concatenate([rows_cmk.reshape(-1, self.k) for _, rows_cmk in tried]))
        done = 0
        for mine, rows_cmk in tried:
            count = rows_cmk.shape[0] * rows_cmk.shape[1]
            value_cm = -comparable(after_K[done : done + count].reshape(rows_cmk.shape[:2]))
            number_c = uniforms_Cn[mine, rows_cmk.shape[1]]
            chosen_R[rows_cmk[np.arange(len(mine)), self._drawn(value_cm, number_c)]] = True
            done += count
        return chosen_R

    def _drawn(self, value_cm: FloatArray, number_c: FloatArray) -> IntArray:
        """Return the kept set of each chain, given one number in [0, 1) each."""
        best_cm = value_cm - value_cm.max(axis=1, keepdims=True)
        if not self.heat:
            return np.asarray(best_cm.argmax(axis=1), np.int64)
        below_cm = np.cumsum(np.exp(best_cm / self.heat), axis=1)
        place_c = (below_cm <= (number_c * below_cm[:, -1])[:, None]).sum(axis=1)
        return np.asarray(np.minimum(place_c, value_cm.shape[1] - 1), np.int64)


@lru_cache(maxsize=64)
def _all_sets(width: int, k: int) -> IntArray:
    """Return all sets of k of the places 0 … width − 1 [sets, k]."""
    return np.array(list(combinations(range(width), k)), np.int64)


def _drawn_sets(width: int, k: int, uniforms_cm: FloatArray) -> IntArray:
    """Return up to m different sets of k places per chain [c, m, k], drawn uniformly."""
    sets_Sk, chain_c = _all_sets(width, k), np.arange(len(uniforms_cm))
    number_cS = np.tile(np.arange(len(sets_Sk)), (len(chain_c), 1))
    m = min(uniforms_cm.shape[1], len(sets_Sk))
    for draw in range(m):  # exchange the next set with a random one of those after it
        other_c = draw + (uniforms_cm[:, draw] * (len(sets_Sk) - draw)).astype(np.int64)
        number_cS[chain_c, other_c], number_cS[:, draw] = number_cS[:, draw], number_cS[chain_c, other_c]
    return sets_Sk[number_cS[:, :m]]

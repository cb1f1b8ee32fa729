"""Commit rules that spread out the positions of a set: dilated levels, spacing, one per run of masks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from orderlens.rules.protocol import Commit, CommitView, Pick, Schedule, real, whole
from orderlens.rules.stats import BoolArray, FloatArray, IntArray, comparable


@dataclass(eq=False)
class Dilated(Schedule):
    """DUS: every stride-th position of the block, the stride divided by BASE from pass to pass.

    omerlux/DUS ``dilated_unmask_levels`` and ``merge_last_level``: the first stride is n // BASE, a level
    contains the multiples of the stride that are not revealed yet, the rest comes last, and a last level
    smaller than the one before is merged into it (BASE = 2: 32 positions in levels of 2, 2, 4, 8, 16). The
    sets are fixed; the order only ranks the positions of a set, so a static order needs no model to plan
    them. The public ``generate_scheduled`` has ``binary`` levels as its default, which are not part of this
    rule; its re-masking is ``dilated-sure``.
    """

    id = "dilated"
    summary = "dilated[=BASE]: every n/BASE-th position (BASE = 2), then positions between them"
    base: int = whole(2, "BASE", 2, default=2)

    def passes(self, n_positions: int) -> IntArray:
        return np.sort(self.levels(n_positions))

    def levels(self, n_positions: int) -> IntArray:
        """Return the pass [n] that reveals each position, counted from the left."""
        return np.array(_levels(n_positions, self.base))

    def plan(self, path: IntArray) -> tuple[IntArray, IntArray]:
        level = self.levels(len(path))[path]
        by = np.argsort(level, kind="stable")
        return path[by], level[by]

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        level_R = view.memory.rows("level", -1)
        new_R = level_R < 0
        if new_R.any():
            place_R = np.arange(len(level_R)) - view.starts_C[view.chain_R]
            for n in np.unique(view.filling_C):
                mine = new_R & (view.filling_C == n)[view.chain_R]
                level_R[mine] = self.levels(int(n))[place_R[mine]]
        view.memory.keep_rows("level", level_R)
        due_C = np.maximum(view.forward_C, view.least_C(level_R))
        chosen: BoolArray = level_R <= due_C[view.chain_R]
        return chosen


@lru_cache(maxsize=256)
def _levels(n: int, base: int) -> tuple[int, ...]:
    level = np.full(n, -1)
    stride, now = n // base, 0
    while stride >= 1:
        free = np.flatnonzero((np.arange(n) % stride == 0) & (level < 0))
        level[free] = now
        now += bool(len(free))
        stride //= base
    level[level < 0] = now
    sizes = np.bincount(level)
    if len(sizes) >= 2 and sizes[-1] < sizes[-2]:
        level[level == len(sizes) - 1] -= 1
    return tuple(level.tolist())


@dataclass(eq=False)
class DilatedSure(Commit):
    """The levels of ``dilated``; a position with p < T waits for the next level, the last reveals the rest.

    omerlux/DUS ``generate_scheduled`` fills a level and immediately re-masks its positions with p < T
    (T = 0.3 by default), which is not to reveal them. There such a position is in no later level and stays
    masked in the text; as in OpenDLM's copy, it joins the next level here. A pass reveals at least the
    order's first of its level.
    """

    id = "dilated-sure"
    summary = "dilated-sure=T[:BASE]: dilated levels; positions with p < T wait for the next level"
    threshold: float = real(0.0, 1.0, "T", 0.3)
    base: int = whole(2, "BASE", 2, default=2)

    def planned_passes(self, n_positions: int) -> int:
        """Return the number of levels."""
        return Dilated(self.base).planned_passes(n_positions)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        due_R = Dilated(self.base).select(view, scores_R)
        n_levels_C = np.array([self.planned_passes(int(n)) for n in view.filling_C])
        last_R = (view.forward_C >= n_levels_C - 1)[view.chain_R]
        sure_R = due_R & ((view.proposal_prob_R >= comparable(self.threshold)) | last_R)
        first_R = due_R & view.best(np.where(due_R, scores_R, -np.inf))
        return sure_R | (first_R & ~view.any_C(sure_R)[view.chain_R])


@dataclass(eq=False)
class Spaced(Commit):
    """Filters the choice of another rule, best positions first, by a minimum distance between them.

    The spacing filter of DUS (omerlux/DUS ``apply_spacing_filter``, G = 8): the distance is at least
    max(2, floor(|M| G / n)), where |M| of the block's n positions are masked. It follows the rule that it
    narrows, ``max-prob+threshold=0.9+spaced`` or ``entropy+bound=0.1+spaced``; alone it chooses among all
    masked positions. Positions that it leaves out are considered again at the next pass.
    """

    id = "spaced"
    summary = "spaced[=G]: filters the rule before it (or all positions) by a minimum distance (G = 8)"
    g: int = whole(1, "G", 8, default=8)
    inner: Commit | None = None

    def __post_init__(self) -> None:
        if self.inner is not None:
            self.needs, self.randomised = self.inner.needs, self.inner.randomised

    @property
    def spec(self) -> str:
        own = super().spec
        return own if self.inner is None else f"{self.inner.spec}+{own}"

    @property
    def files(self) -> Mapping[str, str]:
        return {} if self.inner is None else self.inner.files

    def over(self, inner: Commit) -> Spaced:
        """Return this filter applied to ``inner``."""
        return Spaced(self.g, inner)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        return self.pick(view, scores_R).chosen_R

    def pick(self, view: CommitView, scores_R: FloatArray) -> Pick:
        every = Pick(np.ones(len(view), bool))
        wanted = every if self.inner is None else self.inner.pick(view, scores_R)
        return Pick(self._apart(view, scores_R, wanted.chosen_R), wanted.token_R)

    def _apart(self, view: CommitView, scores_R: FloatArray, wanted_R: BoolArray) -> BoolArray:
        """Go through each chain's candidates, best first, and keep those far enough from earlier ones."""
        gap_C = np.maximum(2, view.left_C * self.g // view.filling_C)
        rank_R = view.ranks(np.where(wanted_R, scores_R, -np.inf))
        n_C = np.bincount(view.chain_R[wanted_R], minlength=len(gap_C))
        row_CN = np.full((len(gap_C), int(rank_R.max()) + 1), -1)
        row_CN[view.chain_R, rank_R] = np.arange(len(rank_R))
        near_CB = np.zeros((len(gap_C), int(view.offset_R.max()) + 1), bool)
        place_B = np.arange(near_CB.shape[1])
        chosen_R = np.zeros(len(view), bool)
        for rank in range(int(n_C.max())):
            chain_c = np.flatnonzero(rank < n_C)
            row_c = row_CN[chain_c, rank]
            free = ~near_CB[chain_c, view.offset_R[row_c]]
            chain_c, row_c = chain_c[free], row_c[free]
            chosen_R[row_c] = True
            near_CB[chain_c] |= np.abs(place_B - view.offset_R[row_c][:, None]) < gap_C[chain_c][:, None]
        return chosen_R


@dataclass(eq=False)
class Hierarchy(Commit):
    """The best position of every run of masks if p > LOW, all with p > T, and at least the block's best.

    dInfer's hierarchy decoder (``HierarchyDecoder.get_transfer_index``; LOW = 0.4 in the class, 0.3 at its
    command line, T = 0.8…0.9), whose order is ``max-prob``. Equally probable best positions of a run are all
    committed, as there. Runs do not cross blocks. Its log-softmax is in the logits' dtype; ours is float32 or
    better. Its re-masking variant is another rule.
    """

    id = "hierarchy"
    summary = "hierarchy=LOW:T: the best of every run of masks if p > LOW, all with p > T, at least the first"
    low: float = real(0.0, 1.0, "LOW", 0.4)
    threshold: float = real(0.0, 1.0, "T", 0.9)

    def select(self, view: CommitView, scores_R: FloatArray) -> BoolArray:
        starts_R = np.ones(len(view), bool)
        starts_R[1:] = (np.diff(view.chain_R) != 0) | (np.diff(view.offset_R) != 1)
        run_R = np.cumsum(starts_R) - 1
        best_R = scores_R == np.maximum.reduceat(scores_R, np.flatnonzero(starts_R))[run_R]
        low_R, sure_R = (view.proposal_prob_R > comparable(bound) for bound in (self.low, self.threshold))
        chosen: BoolArray = (best_R & low_R) | sure_R | view.best(scores_R)
        return chosen

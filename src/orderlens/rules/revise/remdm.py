"""ReMDM: a revealed token is masked again with probability σ, and more reveals compensate for it.

Wang et al., arXiv 2503.00307; kuleshov-group/remdm ``diffusion.py``. With α the revealed share, a pass from
time t to s masks a held token with probability σ and fills a masked one with probability
(α_s − (1 − σ) α_t)/(1 − α_t), so that the share is α for every σ. The rules differ in σ.

Our reading for blocks: time runs from 1 to EPS over the passes of *one block*, where α = 1 − t is the
revealed share of its positions; finished blocks do not change. With one block for the whole text this is the
published sampler. By default a block has one pass per position to fill (published: 1,024 passes for 1,024
tokens).

Differs: tokens are drawn at the run's temperature (published: 1, with nucleus sampling at 0.9, which we do
not have). Positions that are masked after the last pass are filled by one more pass in the same way
(published: always one more pass, argmax). Notes: the defaults of the public configuration (η 0, sampler mdlm)
re-mask nothing; stored confidences of ``conf`` are bfloat16 there, which changes probabilities by about 0.4
%, and float64 here.

A block takes STEPS passes, and one more if a position is still masked. A pass without a change counts.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from orderlens.rules.protocol import real, whole
from orderlens.rules.revise import BlockView, Moves, Revise, SteppedRevise
from orderlens.rules.stats import BoolArray, FloatArray, IntArray

EPS = 1e-5
"""The time at which the grid ends."""
T_ON, T_OFF, ALPHA_ON = 0.55, 0.05, 0.9


class Remasking(SteppedRevise):
    """Base class of these rules: the time grid and the two random decisions."""

    order_id = "random"

    def revise(self, view: BlockView) -> Moves:
        fill_R, sigma_R = self.rates(view)
        flip_R = view.uniforms_R < np.where(view.masked_R, fill_R, sigma_R)
        return Moves(flip_R & view.masked_R, flip_R & ~view.masked_R)

    def is_done(self, n_full: int, changed: bool) -> bool:
        return False

    @abstractmethod
    def rates(self, view: BlockView) -> tuple[FloatArray, FloatArray]:
        """Return the probabilities to fill a masked and to mask a held position, each [R]."""

    def times(self, view: BlockView) -> tuple[FloatArray, FloatArray]:
        """Return each row's t and s: equal steps from 1 to EPS."""
        step_C = (1 - EPS) / self.steps_C(view)
        t_C = 1 - view.forward_C * step_C
        return t_C[view.chain_R], (t_C - step_C)[view.chain_R]


@dataclass(eq=False)
class _WithEta(Remasking):
    """A rule with η, written ``ID[=STEPS[:ETA]]``; STEPS 0 is one pass per position."""

    steps: int = whole(0, "STEPS", 32, default=0)
    eta: float = 0.0


@dataclass(eq=False)
class Cap(_WithEta):
    """σ = min(η, (1 − α_s)/α_t), η = 0.008 (``remdm-cap``)."""

    id = "remdm-cap"
    summary = "remdm-cap[=STEPS[:ETA]]: masks tokens again with probability ETA (0.008) at most"
    eta: float = real(0.0, 1.0, "ETA", 0.008, default=0.008)

    def rates(self, view: BlockView) -> tuple[FloatArray, FloatArray]:
        t_R, s_R = self.times(view)
        return compensated(t_R, s_R, np.minimum(self.eta, _largest(t_R, s_R)))


@dataclass(eq=False)
class Rescale(_WithEta):
    """σ = η σ_max with σ_max = min(1, (1 − α_s)/α_t), η = 0.015 (``remdm-rescale``)."""

    id = "remdm-rescale"
    summary = "remdm-rescale[=STEPS[:ETA]]: masks tokens again at ETA (0.015) times the largest possible rate"
    eta: float = real(0.0, 1.0, "ETA", 0.015, default=0.015)

    def rates(self, view: BlockView) -> tuple[FloatArray, FloatArray]:
        t_R, s_R = self.times(view)
        return compensated(t_R, s_R, self.eta * _largest(t_R, s_R))


class Confident(Remasking):
    """σ_i = σ_max softmax(−p_i) over held positions, p_i being the probability when filled (``remdm-conf``).

    As published, a masked position has σ = 0, so it is filled at the plain rate and re-masked tokens are not
    compensated: with few passes, more positions than planned may be masked at the end.
    """

    id = "remdm-conf"
    summary = "remdm-conf[=STEPS]: masks tokens again, improbable tokens more often"

    def rates(self, view: BlockView) -> tuple[FloatArray, FloatArray]:
        t_R, s_R = self.times(view)
        fill_R, _ = compensated(t_R, s_R, np.zeros(len(view)))
        weight_R = np.where(view.masked_R, 0.0, np.exp(-np.exp(np.where(view.masked_R, 0.0, view.logq_R))))
        total_R = np.bincount(view.chain_R, weight_R, len(view.filling_C))[view.chain_R]
        return fill_R, _largest(t_R, s_R) * weight_R / np.where(total_R > 0, total_R, 1.0)


class ForwardBackward(Remasking):
    """σ = (α_s − α_t)/α_t, at most 1 (sampler ``forward-backward`` of the public code).

    The rate to fill is then 2 (α_s − α_t)/(1 − α_t); at the last steps it exceeds 1 and counts as 1, as
    there.
    """

    id = "remdm-fb"
    summary = "remdm-fb[=STEPS]: ReMDM's forward-backward sampler, which masks as much again as it fills"

    def rates(self, view: BlockView) -> tuple[FloatArray, FloatArray]:
        t_R, s_R = self.times(view)
        alpha_R = 1 - t_R
        sigma_R = np.where(alpha_R > 0, (t_R - s_R) / np.where(alpha_R > 0, alpha_R, 1.0), 1.0)
        return compensated(t_R, s_R, sigma_R)


@dataclass(eq=False)
class Loop(_WithEta):
    """Plain filling to α = 0.9, a phase that masks with η = 0.02 and refills, the rest (``remdm-loop``).

    Plain filling for t > 0.55 and t ≤ 0.05, where α goes from 0 to 0.9 and from 0.9 to 1; in between α stays
    0.9. With few passes the phase may have none.
    """

    id = "remdm-loop"
    summary = (
        "remdm-loop[=STEPS[:ETA]]: fills 0.9, masks with probability ETA (0.02) and refills, then the rest"
    )
    eta: float = real(0.0, 1.0, "ETA", 0.02, default=0.02)

    def rates(self, view: BlockView) -> tuple[FloatArray, FloatArray]:
        t_R, s_R = self.times(view)
        rising, falling = ALPHA_ON / (1 - T_ON), (1 - ALPHA_ON) / T_OFF
        before_R, after_R = t_R > T_ON, t_R <= T_OFF
        hidden_t_R = np.where(before_R, 1 - (1 - t_R) * rising, t_R * falling)
        hidden_s_R = np.where(before_R, 1 - (1 - s_R) * rising, s_R * falling)
        plain_R = 1 - hidden_s_R / hidden_t_R
        refill = self.eta * ALPHA_ON / (1 - ALPHA_ON)
        quiet_R = before_R | after_R
        return np.where(quiet_R, plain_R, refill), np.where(quiet_R, 0.0, self.eta)


def _largest(t_R: FloatArray, s_R: FloatArray) -> FloatArray:
    """Return σ_max = min(1, (1 − α_s)/α_t), 1 where nothing is revealed yet."""
    alpha_R = 1 - t_R
    return np.minimum(1.0, s_R / np.where(alpha_R > 0, alpha_R, s_R))


def compensated(t_R: FloatArray, s_R: FloatArray, sigma_R: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the fill rate (α_s − (1 − σ) α_t)/(1 − α_t) for σ, and σ."""
    return ((1 - s_R) - (1 - sigma_R) * (1 - t_R)) / t_R, sigma_R


@dataclass(eq=False)
class Refine(Revise):
    """Fills 7/8 of a block one token per pass, then re-fills the K least sure LOOPS times, then the rest.

    Source: ReMDM-LLaDA as copied in ParallelBench (``generate_remdm``) and PC-Sampler; K = 1, 32 loops. The
    most probable proposal is filled first, one per pass. Before each pass of the loop the K held tokens with
    the smallest probability *in the pass that filled them* are masked; the pass fills the K most probable.

    Differs: one token per pass outside the loop (public: steps = length). Notes: where K exceeds
    the number of filled positions, the public code re-masks tokens of the prompt; with two blocks and steps <
    length its own assertion fails. PC-Sampler's copy is ``refine-current``.

    A block of n positions takes n + LOOPS passes.
    """

    id = "refine"
    summary = (
        "refine[=LOOPS[:K]]: after 7/8 of a block, LOOPS (32) passes re-mask and refill the K (1) least sure"
    )
    order_id = "max-prob"
    loops: int = whole(1, "LOOPS", 32, default=32, always=True)
    n_remasked: int = whole(1, "K", 1, default=1)

    def passes(self, n_positions: int) -> int:
        return n_positions + self.loops

    def is_done(self, n_full: int, changed: bool) -> bool:
        return False

    def revise(self, view: BlockView) -> Moves:
        looping_R = self._looping(view, view.forward_C)[view.chain_R]
        n_fill_R = np.where(looping_R, self.n_remasked, 1)
        fill_R = view.masked_R & (view.ranks(view.proposal_logprob_R, view.masked_R) < n_fill_R)
        filled_R = fill_R | ~view.masked_R
        stored_R = np.where(view.masked_R, view.proposal_logprob_R, view.logq_R)
        least_R = filled_R & (view.ranks(-stored_R, filled_R) < self.n_remasked)
        return Moves.keeping(
            view, filled_R & ~(least_R & self._looping(view, view.forward_C + 1)[view.chain_R])
        )

    def _looping(self, view: BlockView, pass_C: IntArray) -> BoolArray:
        """Return which chains are in the loop at their block's pass ``pass_C``."""
        first_C = np.maximum(np.minimum(view.filling_C * 7 // 8, view.filling_C - 1), 1)
        looping_C: BoolArray = (pass_C >= first_C) & (pass_C < first_C + self.loops)
        return looping_C


@dataclass(eq=False)
class RefineCurrent(Revise):
    """``refine`` with two passes per loop: one masks the K least probable tokens, the next fills K.

    Source: NEUIR/PC-Sampler ``generate_with_remdm`` (K = 1, 32 loops). The most probable proposals are
    filled, K per pass, until 7/8 of the block are filled. Each loop then runs two passes: the first masks the
    K held tokens with the smallest probability *in that pass*, and the second fills the K most probable.
    The rest is filled K per pass.

    Note: the public code requires that K divides both counts; here they are rounded.

    A block of n positions takes about n/K + 2 LOOPS passes.
    """

    id = "refine-current"
    summary = "refine-current[=LOOPS[:K]]: refine by the current probability, with two passes per loop"
    order_id = "max-prob"
    loops: int = whole(1, "LOOPS", 32, default=32, always=True)
    n_remasked: int = whole(1, "K", 1, default=1)

    def passes(self, n_positions: int) -> int:
        first, k = self._n_first(n_positions), self.n_remasked
        return first + 2 * self.loops + max(0, -(-(n_positions - first * k) // k))

    def is_done(self, n_full: int, changed: bool) -> bool:
        return False

    def revise(self, view: BlockView) -> Moves:
        first_C = np.array([self._n_first(int(n)) for n in view.filling_C], np.int64)
        into_C = view.forward_C - first_C
        masking_R = ((into_C >= 0) & (into_C < 2 * self.loops) & (into_C % 2 == 0))[view.chain_R]
        fill_R = view.masked_R & (view.ranks(view.proposal_logprob_R, view.masked_R) < self.n_remasked)
        least_R = ~view.masked_R & (view.ranks(-view.held_logprob_R, ~view.masked_R) < self.n_remasked)
        return Moves(fill_R & ~masking_R, least_R & masking_R)

    def _n_first(self, n_positions: int) -> int:
        """Return the number of passes before the first loop."""
        return max(1, n_positions * 7 // 8 // self.n_remasked)

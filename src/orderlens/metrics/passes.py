"""Var of a trace with several tokens per pass, split into parts between passes, inside passes, and coupling.

y_i is the log q of token i in the pass that committed it. z_i is its log p after the earlier tokens of the
same pass are revealed too: the trace of the same path with one token per pass. The difference c_i = z_i − y_i
measures the dependence between tokens of one pass; its sum over pass t is the coupling C_t. With weight k_t/n
for a pass of k_t tokens, the law of total variance holds for both, hence

    Var(z) = between(y) + inside(y) + [between(z) − between(y)] + [inside(z) − inside(y)],

where Var(y) = between(y) + inside(y) is the Var of the trace, and the brackets are the two parts of the
coupling. The first bracket depends only on the sums C_t. For a coherent model it is the same along every path
through the sets. Shape letters: N reveals, S traces, P passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from orderlens.errors import UserInputError
from orderlens.metrics.segments import AnyArray, BoolArray, FloatArray, IntArray, Segments, moments


@dataclass(frozen=True, slots=True)
class PassVariance:
    """The parts of Var, in nats². Without a sequential trace the coupling's parts are NaN.

    Attributes:
        between: variance of the passes' mean log q, weighted by their tokens.
        inside: mean variance inside passes, weighted by their tokens.
        coupling_between: contribution of the coupling between passes; depends only on the couplings C_t.
        coupling_inside: contribution of the coupling inside passes; depends on the path through each set.
    """

    between: float
    inside: float
    coupling_between: float = math.nan
    coupling_inside: float = math.nan

    @property
    def var(self) -> float:
        """Var(y) over the tokens of the trace."""
        return self.between + self.inside

    @property
    def coupling(self) -> float:
        """Var(z) − Var(y)."""
        return self.coupling_between + self.coupling_inside

    @property
    def sequential_var(self) -> float:
        """Var(z): Var of the same path with one token per pass."""
        return self.var + self.coupling


def pass_variance(log_q: ArrayLike, forward: ArrayLike, sequential: ArrayLike | None = None) -> PassVariance:
    """Return the parts of one trace's Var.

    Args:
        log_q: natural-log probabilities in reveal order, each from the pass that committed it [N].
        forward: the pass of each reveal, from 0, not decreasing [N].
        sequential: log p of each token given all tokens before it in reveal order, including those of its
            pass; equal to ``log_q`` at the first token of every pass [N].
    """
    values, passes = np.asarray(log_q, np.float64), np.asarray(forward)
    if values.shape != passes.shape or values.ndim != 1 or (np.diff(passes) < 0).any():
        raise UserInputError("log_q and forward must be one-dimensional, of equal length, in reveal order")
    between, inside = segment_pass_variance(values, passes, Segments.one(len(values)))
    if sequential is None:
        return PassVariance(float(between[0]), float(inside[0]))
    other = np.asarray(sequential, np.float64)
    if other.shape != values.shape:
        raise UserInputError(f"{len(other)} sequential values for {len(values)} reveals; give one per reveal")
    between_z, inside_z = segment_pass_variance(other, passes, Segments.one(len(values)))
    return PassVariance(
        float(between[0]), float(inside[0]), float(between_z[0] - between[0]), float(inside_z[0] - inside[0])
    )


def segment_pass_variance(
    log_q_N: AnyArray, forward_N: IntArray, traces: Segments
) -> tuple[FloatArray, FloatArray]:
    """Return the variance between passes and the mean variance inside passes of every trace [S], [S].

    They sum to the trace's Var; NaN for a trace that is empty or not finite.
    """
    values = np.asarray(log_q_N, np.float64)
    passes = Segments.of_changes(traces.ids(), np.asarray(forward_N))
    pass_mean, pass_var, _ = moments(values, passes)
    _, between, _ = moments(passes.repeat(pass_mean), traces)
    return between, traces.mean(passes.repeat(pass_var))


def segment_pass_counts(
    forward_N: IntArray,
    requested_N: BoolArray,
    lookahead_N: AnyArray,
    traces: Segments,
    known_S: AnyArray | None = None,
) -> dict[str, IntArray]:
    """Return the three counts of forward passes of every trace [S].

    ``n_passes`` counts all passes up to the last reveal or revision. ``n_passes_requested`` counts those up
    to the last reveal inside the requested length; for traces with revisions, all passes.
    ``n_passes_lookahead`` counts look-ahead states, which the other two do not include.

    Args:
        forward_N: pass of each reveal, from 0.
        requested_N: whether the reveal is inside the requested length.
        lookahead_N: look-ahead states of the reveal; NaN counts as 0.
        traces: the traces as segments of all reveals.
        known_S: passes of traces with revisions; 0 or below for other traces.
    """
    last = traces.reduce(np.maximum, forward_N, -1)
    requested = traces.reduce(np.maximum, np.where(requested_N, forward_N, -1), -1)
    counts = {"n_passes": last, "n_passes_requested": requested}
    found = {name: np.asarray(values, np.int64) + 1 for name, values in counts.items()}
    if known_S is not None:
        found = {name: np.maximum(values, known_S) for name, values in found.items()}
    return found | {"n_passes_lookahead": traces.total(np.nan_to_num(lookahead_N)).astype(np.int64)}


def coupling(sequential: ArrayLike, log_q: ArrayLike) -> float:
    """Return C = Σ sequential − Σ log q of one set (nats)."""
    return float(np.sum(np.asarray(sequential, np.float64)) - np.sum(np.asarray(log_q, np.float64)))


def entropy_bound(entropy: ArrayLike) -> float:
    """Return Σ H − max H of a set (nats).

    It is an upper bound of the mean coupling of any joint distribution with these marginals. The mean
    coupling over texts drawn from the joint is the set's total correlation. The coupling of a single text may
    exceed the bound.
    """
    values = np.asarray(entropy, np.float64)
    return float(values.sum() - values.max()) if len(values) else math.nan

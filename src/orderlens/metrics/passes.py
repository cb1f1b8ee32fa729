"""Var of a trace with several tokens per pass: its parts between passes, inside them, and the coupling.

y_i is the log q of token i in the pass that committed it, z_i its log p once the tokens that its pass listed
before it are revealed as well: the trace that one token per pass would have left along the same path. They
differ by what tokens of one pass know of each other; c_i = z_i − y_i sums over a pass to its coupling C_t.
With the weight k_t/n for a pass of k_t tokens, the law of total variance holds for both, hence

    Var(z) = between(y) + inside(y) + [between(z) − between(y)] + [inside(z) − inside(y)],

where Var(y) = between(y) + inside(y) is the trace's own Var and the brackets are the coupling's two parts.
The first bracket needs the sums C_t alone; it is the same along every path through the sets when the model is
coherent. Arrays in, numbers out. Shape letters: N reveals, S traces, P passes.
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
    """The parts of Var; all in nats². Without a sequential trace the coupling's parts are NaN.

    Attributes:
        between: of the passes' mean log q, weighted by their tokens.
        inside: mean variance inside passes, weighted by their tokens.
        coupling_between: what the coupling adds between passes; follows from the couplings C_t alone.
        coupling_inside: what it adds inside passes; depends on the path through each set.
    """

    between: float
    inside: float
    coupling_between: float = math.nan
    coupling_inside: float = math.nan

    @property
    def var(self) -> float:
        """Var over tokens of the trace itself."""
        return self.between + self.inside

    @property
    def coupling(self) -> float:
        """Var(z) − Var(y)."""
        return self.coupling_between + self.coupling_inside

    @property
    def one_by_one(self) -> float:
        """Var(z): over tokens of the same path with one token per pass."""
        return self.var + self.coupling


def pass_variance(log_q: ArrayLike, forward: ArrayLike, sequential: ArrayLike | None = None) -> PassVariance:
    """Return the parts of one trace's Var.

    Args:
        log_q: natural-log probabilities in reveal order, each from the pass that committed it [N].
        forward: the pass of each reveal, from 0, never falling [N].
        sequential: log p of each token given those before it in reveal order, those of its own pass included;
            equal to ``log_q`` at the first token of every pass [N].
    """
    values, passes = np.asarray(log_q, np.float64), np.asarray(forward)
    if values.shape != passes.shape or values.ndim != 1 or (np.diff(passes) < 0).any():
        raise UserInputError("log_q and forward must be equally long, in reveal order")
    between, inside = segment_pass_variance(values, passes, Segments.one(len(values)))
    if sequential is None:
        return PassVariance(float(between[0]), float(inside[0]))
    other = np.asarray(sequential, np.float64)
    if other.shape != values.shape:
        raise UserInputError(f"{len(other)} sequential values for {len(values)} reveals")
    beyond, within = segment_pass_variance(other, passes, Segments.one(len(values)))
    return PassVariance(
        float(between[0]), float(inside[0]), float(beyond[0] - between[0]), float(within[0] - inside[0])
    )


def segment_pass_variance(
    log_q_N: AnyArray, forward_N: IntArray, traces: Segments
) -> tuple[FloatArray, FloatArray]:
    """Return the variance between passes and the mean variance inside passes of every trace [S], [S].

    They sum to the trace's Var; NaN where a trace is empty or not finite.
    """
    values = np.asarray(log_q_N, np.float64)
    passes = Segments.of_changes(traces.ids(), np.asarray(forward_N))
    pass_mean, pass_var, _ = moments(values, passes)
    _, between, _ = moments(passes.spread(pass_mean), traces)
    return between, traces.mean(passes.spread(pass_var))


def segment_pass_counts(
    forward_N: IntArray,
    requested_N: BoolArray,
    lookahead_N: AnyArray,
    traces: Segments,
    known_S: AnyArray | None = None,
) -> dict[str, IntArray]:
    """Return the forward passes of every trace [S] under the names that they have everywhere.

    ``n_passes`` counts all passes up to the last reveal or revision, ``n_passes_requested`` those up to the
    last reveal inside the requested length (where tokens are revised: all), ``n_passes_lookahead`` the states
    that were scored in advance, which neither of the two contains.

    Args:
        forward_N: pass of each reveal, from 0.
        requested_N: whether the reveal lies inside the requested length.
        lookahead_N: states scored in advance for the reveal; NaN counts as 0.
        traces: the traces as segments of all reveals.
        known_S: passes of traces whose tokens are revised, 0 or below for the others.
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
    """Return Σ H − max H of a set (nats): no joint with these marginals has a larger mean coupling.

    The mean is over texts that the model itself would write there (it is the set's total correlation); a
    given text may lie above the bound.
    """
    values = np.asarray(entropy, np.float64)
    return float(values.sum() - values.max()) if len(values) else math.nan

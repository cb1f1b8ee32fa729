"""Statistics of the log-probabilities of one path or of many paths; Lorenz curves and Gini of blocks.

``y_t = log q_t`` in nats, in reveal order. Variances use ddof = 0. The statistics of a trace with a NaN or an
infinity are NaN; ``n`` still counts its reveals. Does not depend on tokens, orders or tables.

Shape letters: N reveals, S traces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from orderlens.errors import UserInputError
from orderlens.metrics.segments import AnyArray, BoolArray, FloatArray, IntArray, Segments, divide

SIGMAS = (0.1, 0.3, 0.5, 1.0)
"""Noise scales at which the exact Jensen loss is reported."""

LOG_HALF = math.log(0.5)
"""A reveal with log q below it is a bottleneck step."""


@dataclass(frozen=True, slots=True)
class PathStats:
    """Statistics of one trace, in nats unless stated otherwise.

    Attributes:
        n: number of reveals.
        mean: mean of log q.
        var: variance of log q, ddof = 0.
        log_prob: sum of log q.
        min: smallest log q.
        q05: 5 % quantile (linear interpolation).
        bottleneck_rate: share of reveals with q < 1/2.
        mad: median absolute deviation from the median.
        abs_delta_reveal: Σ |log q_t − log q_{t−1}| in reveal order.
        sq_delta_reveal: Σ (log q_t − log q_{t−1})² in reveal order.
        abs_delta_text: the same sum of absolute values in text order (NaN without positions).
        sq_delta_text: the same sum of squares in text order (NaN without positions).
        gini: Gini coefficient of −log q over the trace.
        gini_block0: the same over its first block (over the trace if no blocks are given).
        gini_mean: its mean over blocks.
        var_about: mean of (log q − reference)² (NaN without a reference).
        jensen_loss: n·g(mean) − Σ g(log q_t) by noise scale σ.
    """

    n: int
    mean: float
    var: float
    log_prob: float
    min: float
    q05: float
    bottleneck_rate: float
    mad: float
    abs_delta_reveal: float
    sq_delta_reveal: float
    abs_delta_text: float
    sq_delta_text: float
    gini: float
    gini_block0: float
    gini_mean: float
    var_about: float
    jensen_loss: dict[float, float] = field(default_factory=dict)


def path_stats(
    log_q: ArrayLike,
    positions: ArrayLike | None = None,
    blocks: ArrayLike | None = None,
    *,
    reference: float | None = None,
    sigmas: Sequence[float] = SIGMAS,
) -> PathStats:
    """Return the statistics of one trace.

    Args:
        log_q: natural-log probabilities in reveal order [n].
        positions: positions in reveal order [n], for the text-order sums.
        blocks: block of each reveal [n]; without it the trace counts as one block.
        reference: a held-out mean of log q, for ``var_about``.
        sigmas: noise scales of the Jensen loss.
    """
    values = _trace(log_q)
    one = Segments.one(len(values))
    where = None if positions is None else _matching(positions, values, "positions")
    stats = segment_path_stats(values, one, where)
    about = math.nan if reference is None else stats["var"][0] + (stats["mean"][0] - reference) ** 2
    per_block = np.zeros(len(values), np.int64) if blocks is None else _matching(blocks, values, "blocks")
    block0, mean = block_gini(values, one, per_block)
    loss = {sigma: float(segment_jensen_loss(values, one, sigma)[0]) for sigma in sigmas}
    numbers = {name: float(column[0]) for name, column in stats.items() if name != "n"}
    return PathStats(
        n=len(values),
        gini=float(segment_gini(_information(values), one)[0]),
        gini_block0=float(block0[0]),
        gini_mean=float(mean[0]),
        var_about=float(about),
        jensen_loss=loss,
        **numbers,
    )


def segment_path_stats(
    log_q_N: AnyArray, segments: Segments, positions_N: IntArray | None = None
) -> dict[str, FloatArray]:
    """Return the statistics of every trace as columns [S], named as in ``PathStats``.

    Blocks, Jensen losses and ``var_about`` have separate functions, because they need more than log q.
    """
    bad = segments.any(~np.isfinite(log_q_N))
    log_q_N = np.where(np.isfinite(log_q_N), log_q_N, log_q_N.dtype.type(0))
    # Compared in the stored precision: float32(log ½) cast to float64 would count as below ½.
    bottleneck = segments.mean(log_q_N < log_q_N.dtype.type(LOG_HALF))
    y_N = log_q_N.astype(np.float64)
    mean = segments.mean(y_N)
    ordered = segments.sort(y_N)
    median = segments.quantile(ordered, 0.5)
    stats = {
        "mean": mean,
        "var": segments.mean((y_N - segments.repeat(mean)) ** 2),
        "log_prob": np.where(segments.lengths > 0, segments.total(y_N), np.nan),
        "min": segments.quantile(ordered, 0.0),
        "q05": segments.quantile(ordered, 0.05),
        "bottleneck_rate": bottleneck,
        "mad": segments.quantile(segments.sort(np.abs(y_N - segments.repeat(median))), 0.5),
        **_steps(y_N, segments, "reveal"),
        **_steps(y_N if positions_N is None else y_N[segments.text_order(positions_N)], segments, "text"),
    }
    if positions_N is None:
        stats["abs_delta_text"] = stats["sq_delta_text"] = np.full(segments.count, np.nan)
    for column in stats.values():
        column[bad] = np.nan
    return {"n": segments.lengths.astype(np.float64), **stats}


GROUP = 16
"""Number of neighbouring tokens whose mean log q is a group confidence."""


def segment_lowest(
    log_q_N: AnyArray, segments: Segments, positions_N: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return two statistics of the weakest part of every trace [S]; NaN if a log q is not finite.

    The first is the mean of the ceil(n/10) smallest log q. The second is the smallest mean of log q over
    ``GROUP`` neighbouring tokens in the text, or the mean of a shorter text.
    """
    bad = segments.any(~np.isfinite(log_q_N)) | (segments.lengths == 0)
    y_N = np.where(np.isfinite(log_q_N), log_q_N, 0.0).astype(np.float64)
    n_low = -(-segments.lengths // 10)
    low_N = np.where(segments.ranks() < segments.repeat(n_low), segments.sort(y_N), 0.0)
    width = np.minimum(segments.lengths, GROUP)
    before = np.concatenate([[0.0], np.cumsum(y_N[segments.text_order(positions_N)])])
    width_N = segments.repeat(width)
    start_N = np.maximum(np.arange(segments.n_rows) + 1 - width_N, 0)
    mean_N = (before[1:] - before[start_N]) / np.maximum(width_N, 1)
    group = segments.reduce(np.minimum, np.where(segments.ranks() >= width_N - 1, mean_N, np.inf))
    return np.where(bad, np.nan, divide(segments.total(low_N), n_low)), np.where(bad, np.nan, group)


def segment_jensen_loss(log_q_N: AnyArray, segments: Segments, sigma: float) -> FloatArray:
    """Return n·g(mean) − Σ g(log q_t) of every trace [S] at noise scale ``sigma``; NaN if undefined."""
    return jensen_loss_of(log_success_rows(log_q_N, sigma), segments.mean(log_q_N), segments, sigma)


def jensen_loss_of(g_N: FloatArray, mean_S: FloatArray, segments: Segments, sigma: float) -> FloatArray:
    """Return the Jensen loss [S] from the already computed g(log q_t) [N] and the traces' means [S]."""
    usable = segments.lengths > 0
    loss = segments.lengths * log_success_rows(mean_S, sigma) - segments.total(g_N)
    return np.where(usable, loss, np.nan)


def log_success_rows(log_q_N: AnyArray, sigma: float) -> FloatArray:
    """Return g(log q) [N]; NaN where log q is not finite, 0 where q rounds to 1 or above."""
    from orderlens.theory import log_success

    y_N = np.asarray(log_q_N, np.float64)
    out = np.where(np.isfinite(y_N), 0.0, np.nan)
    inside = np.isfinite(y_N) & (y_N < 0)
    out[inside] = log_success(y_N[inside], sigma)
    return out


def block_gini(
    log_q_N: AnyArray, segments: Segments, block_N: IntArray, first_block: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """Return the Gini coefficient of each trace's first block and its mean over blocks, both [S].

    ``first_block`` is the number of the first block; by default it is the block of the first reveal.
    """
    blocks, owner = sub_blocks(segments, block_N)
    value = segment_gini(_information(np.asarray(log_q_N, np.float64)), blocks)
    if first_block is None:
        return first_and_mean(value, owner, segments.ranks()[blocks.starts] == 0)
    return first_and_mean(value, owner, block_N[blocks.starts] == first_block)


def sub_blocks(segments: Segments, block_N: IntArray) -> tuple[Segments, Segments]:
    """Return the blocks as segments of the rows, and the traces as segments of those blocks."""
    blocks = Segments.of_changes(segments.ids(), np.asarray(block_N))
    return blocks, Segments(np.searchsorted(blocks.bounds, segments.bounds))


def first_and_mean(
    value_B: FloatArray, owner: Segments, is_first_B: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return each trace's value in its first block, and the mean over its blocks with a value, both [S].

    ``is_first_B`` marks the first blocks. A trace may lack one if its rows were filtered out.
    """
    first = np.full(owner.count, np.nan)
    first[owner.ids()[is_first_B]] = value_B[is_first_B]
    known = np.isfinite(value_B)
    return first, divide(owner.total(np.where(known, value_B, 0.0)), owner.total(known))


def block_variance(log_q: ArrayLike, blocks: ArrayLike) -> tuple[float, float]:
    """Return the mean variance inside blocks and the variance of block means, weighted by block length.

    They sum to the variance of the trace (the law of total variance).
    """
    values = _trace(log_q)
    parts, _ = sub_blocks(Segments.one(len(values)), _matching(blocks, values, "blocks"))
    if not len(values):
        return math.nan, math.nan
    mean = parts.mean(values)
    share = parts.lengths / len(values)
    inside = parts.mean((values - parts.repeat(mean)) ** 2)
    return float(share @ inside), float(share @ (mean - values.mean()) ** 2)


def argmax_accuracy(is_argmax: ArrayLike) -> float:
    """Return the share of reveals whose most probable token was the target; NaN without reveals."""
    flags = np.asarray(is_argmax, np.float64)
    return float(flags.mean()) if len(flags) else math.nan


def _steps(y_N: FloatArray, segments: Segments, name: str) -> dict[str, FloatArray]:
    delta = np.zeros(len(y_N))
    delta[1:] = np.diff(y_N)
    delta[segments.starts[segments.lengths > 0]] = 0.0
    undefined = segments.lengths == 0
    return {
        f"abs_delta_{name}": np.where(undefined, np.nan, segments.total(np.abs(delta))),
        f"sq_delta_{name}": np.where(undefined, np.nan, segments.total(delta**2)),
    }


def _information(log_q_N: FloatArray) -> FloatArray:
    return np.maximum(-log_q_N, 0.0)  # rounding can make log q slightly positive


def _trace(log_q: ArrayLike) -> FloatArray:
    values = np.asarray(log_q, np.float64)
    if values.ndim != 1:
        raise UserInputError(f"log_q must be one trace of numbers, got shape {values.shape}")
    if (values > 1e-6).any():
        raise UserInputError(
            f"log q must be ≤ 0, got {values[values > 1e-6][0]:g}; pass natural logs of probabilities"
        )
    return values


def _matching(other: ArrayLike, values: FloatArray, name: str) -> IntArray:
    array = np.asarray(other, np.int64)
    if array.shape != values.shape:
        raise UserInputError(f"{name} has shape {array.shape}, log_q has {values.shape}; give one per reveal")
    return array


def lorenz(s: ArrayLike) -> FloatArray:
    """Return the Lorenz curve L_0 = 0, L_1, …, L_n = 1 of ``s`` sorted ascending [n + 1].

    If all values are 0, it is the diagonal. An undefined value or an empty block gives NaN.
    """
    shares = _block(s)
    if not len(shares) or not np.isfinite(shares).all():
        return np.full(len(shares) + 1, np.nan)
    if shares.sum() == 0:
        return np.linspace(0.0, 1.0, len(shares) + 1)
    return np.concatenate([[0.0], np.cumsum(np.sort(shares)) / shares.sum()])


def gini(s: ArrayLike) -> float:
    """Return the Gini coefficient Σ (2i − n − 1) s_(i) / (n Σ s) of one block.

    0 when all values are equal (also when all are 0); NaN for an empty block or an undefined value.
    """
    shares = _block(s)
    return float(segment_gini(shares, Segments.one(len(shares)))[0])


def segment_gini(s_N: FloatArray, segments: Segments) -> FloatArray:
    """Return the Gini coefficient of every segment [S]."""
    bad = segments.any(~np.isfinite(s_N))
    ordered = segments.sort(np.where(np.isfinite(s_N), s_N, 0.0))
    weight = 2.0 * segments.ranks() + 1 - segments.repeat(segments.lengths)
    total = segments.total(ordered)
    value = divide(segments.total(weight * ordered), segments.lengths * total)
    value[(total == 0) & (segments.lengths > 0)] = 0.0
    value[bad] = np.nan
    return value


def segment_lorenz(s_SK: FloatArray) -> FloatArray:
    """Return the Lorenz curves [S, K + 1] of blocks of K steps each; NaN if a value is undefined."""
    ordered = np.sort(s_SK, axis=1)
    total = ordered.sum(axis=1, keepdims=True)
    curve = divide(np.cumsum(ordered, axis=1), total)
    diagonal = np.arange(1, s_SK.shape[1] + 1) / s_SK.shape[1]
    curve = np.where(total == 0, diagonal, curve)
    curve[~np.isfinite(s_SK).all(axis=1)] = np.nan
    return np.concatenate([np.where(np.isnan(curve[:, :1]), np.nan, 0.0), curve], axis=1)


def lorenz_gini(curve: ArrayLike) -> float:
    """Return the Gini coefficient of a Lorenz curve [n + 1] (1 − twice the trapezoid area)."""
    heights = np.asarray(curve, np.float64)
    return float(1.0 - np.mean(heights[1:] + heights[:-1]))


def _block(s: ArrayLike) -> FloatArray:
    shares = np.asarray(s, np.float64)
    if shares.ndim != 1:
        raise UserInputError(f"self-information must be one block of numbers, got shape {shares.shape}")
    if (shares < 0).any():
        raise UserInputError(
            f"self-information −log q must be ≥ 0, got {shares[shares < 0][0]:g}; pass −log q"
        )
    return shares

"""How unevenly the self-information s = −log q of a block is spread over its steps.

Lorenz curves and the Gini coefficient of one block, and of many blocks at once. Does not know what a trace
is: callers cut it into blocks first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from orderlens.errors import UserInputError
from orderlens.metrics.segments import FloatArray, Segments, divide


def lorenz(s: ArrayLike) -> FloatArray:
    """Return the Lorenz curve L_0 = 0, L_1, …, L_n = 1 of ``s`` sorted ascending [n + 1].

    All zeros give the diagonal; an undefined value or an empty block gives NaN.
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
    weight = 2.0 * segments.ranks() + 1 - segments.spread(segments.lengths)
    total = segments.total(ordered)
    value = divide(segments.total(weight * ordered), segments.lengths * total)
    value[(total == 0) & (segments.lengths > 0)] = 0.0
    value[bad] = np.nan
    return value


def segment_lorenz(s_SK: FloatArray) -> FloatArray:
    """Return the Lorenz curves [S, K + 1] of blocks of K steps each; NaN where a value is undefined."""
    ordered = np.sort(s_SK, axis=1)
    total = ordered.sum(axis=1, keepdims=True)
    curve = divide(np.cumsum(ordered, axis=1), total)
    diagonal = np.arange(1, s_SK.shape[1] + 1) / s_SK.shape[1]
    curve = np.where(total == 0, diagonal, curve)
    curve[~np.isfinite(s_SK).all(axis=1)] = np.nan
    return np.concatenate([np.where(np.isnan(curve[:, :1]), np.nan, 0.0), curve], axis=1)


def lorenz_gini(curve: ArrayLike) -> float:
    """Return the Gini coefficient that a Lorenz curve [n + 1] encloses (1 − twice the trapezoid area)."""
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

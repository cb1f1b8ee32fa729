"""The statistics that every trace has, under the names they have in every table, view and frame.

Reveals past the requested length are not counted. Content is what is neither EOS nor special. A trace with a
log q of −inf has mean and sum −inf and no variance; a trace with a NaN has none of them.

Shape letters: N counted reveals, S traces.
"""

from __future__ import annotations

import numpy as np

from orderlens.metrics.segments import AnyArray, BoolArray, FloatArray, IntArray, Segments, divide


def trace_stats(
    log_q_N: AnyArray, eos_N: BoolArray, content_N: BoolArray, forward_N: IntArray, traces: Segments
) -> dict[str, AnyArray]:
    """Return the statistics of every trace as columns [S].

    Args:
        log_q_N: natural-log probabilities of the counted reveals.
        eos_N: whether the reveal ends the text.
        content_N: whether it is neither EOS nor special.
        forward_N: forward pass that committed it, from 0.
        traces: the traces as segments of the reveals.
    """
    mean, var, total = moments(log_q_N, traces)
    kept = traces.kept(content_N)
    content_mean, content_var, _ = moments(log_q_N[content_N], kept)
    return {
        "n": traces.lengths,
        "mean": mean,
        "var": var,
        "n_content": kept.lengths,
        "content_mean": content_mean,
        "content_var": content_var,
        "log_prob": total,
        "n_eos": traces.total(eos_N).astype(np.int64),
        "n_forwards": np.asarray(traces.reduce(np.maximum, forward_N, -1), np.int64) + 1,
    }


def moments(values_N: AnyArray, segments: Segments) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return mean, variance (ddof = 0) and sum of each segment [S]; NaN where it is empty."""
    values = np.asarray(values_N, np.float64)
    total = segments.total(values)
    with np.errstate(invalid="ignore"):  # −inf minus −inf: no variance
        mean = divide(total, segments.lengths)
        apart = values - segments.spread(mean)
        var = segments.mean(apart * apart)
    return mean, var, np.where(segments.lengths > 0, total, np.nan)

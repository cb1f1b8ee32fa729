"""From a model's rows to position statistics: the only place with a vocabulary axis.

A model returns log-probabilities (reduced here, in numpy) or hidden states (reduced in ``head_torch``, which
is imported only then). Everything after this module sees a few numbers per position. ``start_reduction``
starts the work and returns a function that waits for it: on a GPU the host is free in the meantime.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from orderlens.models.protocol import FloatArray, HiddenRows, IntArray, LogProbRows, Rows
from orderlens.rules.stats import (
    DrawInputs,
    DrawStats,
    PendingStats,
    PositionStats,
    RowStats,
    TargetStats,
    require_finite_rows,
)


def take_rows(rows: Rows, index_R: IntArray) -> Rows:
    """Return the rows at ``index_R``."""
    if isinstance(rows, LogProbRows):
        return LogProbRows(rows.log_probs_RV[index_R])
    from orderlens.decode import head_torch

    return head_torch.take_rows(rows, index_R)


def blank_rows(rows: Rows, count: int) -> Rows:
    """Return ``count`` uninitialised rows of the same kind, to be filled by ``put_rows``."""
    if isinstance(rows, LogProbRows):
        return LogProbRows(np.empty((count, rows.log_probs_RV.shape[1])))
    from orderlens.decode import head_torch

    return head_torch.blank_rows(rows, count)


def put_rows(into: Rows, index_R: IntArray, rows: Rows) -> None:
    """Write ``rows`` into the places ``index_R`` of rows made by ``blank_rows``."""
    if isinstance(into, LogProbRows) and isinstance(rows, LogProbRows):
        into.log_probs_RV[index_R] = rows.log_probs_RV
        return
    from orderlens.decode import head_torch

    assert isinstance(into, HiddenRows)
    assert isinstance(rows, HiddenRows)
    head_torch.put_rows(into, index_R, rows)


def divergence(rows: Rows, earlier: Rows) -> FloatArray:
    """Return KL(rows ‖ earlier) of each pair of rows in nats: at least 0, inf where the KL is infinite."""
    if isinstance(rows, LogProbRows) and isinstance(earlier, LogProbRows):
        log_p_RV, log_q_RV = _checked(rows.log_probs_RV), earlier.log_probs_RV
        p_RV = np.exp(log_p_RV)
        gap_RV = np.subtract(log_p_RV, log_q_RV, out=np.zeros_like(p_RV), where=p_RV > 0)
        kl_R: FloatArray = np.maximum((p_RV * gap_RV).sum(axis=1), 0.0)
        return kl_R
    from orderlens.decode import head_torch

    assert isinstance(rows, HiddenRows)
    assert isinstance(earlier, HiddenRows)
    return head_torch.divergence(rows, earlier)


def self_certainty(rows: Rows, mask_id: int) -> FloatArray:
    """Return KL(uniform ‖ row) of each row in nats, over the tokens that may be revealed [R].

    It is infinite if one of them has probability 0, and NaN then. Rows of log-probabilities exclude the mask
    only; hidden rows name the ids that they exclude.
    """
    if isinstance(rows, HiddenRows):
        from orderlens.decode import head_torch

        mean_R, n_allowed = head_torch.mean_logprobs(rows)
    else:
        allowed_RV = np.delete(rows.log_probs_RV, mask_id, axis=1)
        mean_R, n_allowed = allowed_RV.mean(axis=1), allowed_RV.shape[1]
    certainty_R = np.maximum(-np.log(n_allowed) - mean_R, 0.0)  # rounding can make it negative
    return np.where(np.isfinite(mean_R), certainty_R, np.nan)


def start_reduction(
    rows: Rows,
    eos_ids: Iterable[int],
    targets_R: IntArray | None = None,
    draw_inputs: DrawInputs | None = None,
) -> PendingStats:
    """Start reducing rows to their statistics; return a function that waits for the result.

    Args:
        rows: the rows.
        eos_ids: ids whose total probability is computed.
        targets_R: one token per row whose log-probability is computed.
        draw_inputs: if given, one token per row is drawn, by inverting the CDF over ascending ids.
    """
    if isinstance(rows, HiddenRows):
        from orderlens.decode import head_torch

        return head_torch.start_reduction(rows, eos_ids, targets_R, draw_inputs)
    positions = _positions(rows, eos_ids)
    target_R = None
    if targets_R is not None:
        target_R = np.take_along_axis(rows.log_probs_RV, targets_R[:, None], 1)[:, 0]
    found = RowStats(
        positions, target_R, None if draw_inputs is None else _drawn(rows, positions, draw_inputs)
    )
    return lambda: found


def position_stats(rows: Rows, eos_ids: Iterable[int]) -> PositionStats:
    """Return the statistics of each row that a deployable order may see."""
    return start_reduction(rows, eos_ids)().positions


def target_stats(rows: Rows, eos_ids: Iterable[int], targets_R: IntArray) -> TargetStats:
    """Return position statistics plus those of each row's target token."""
    found = start_reduction(rows, eos_ids, targets_R)()
    assert found.target_logprob is not None
    return TargetStats.from_target_logprob(found.positions, targets_R, found.target_logprob)


def draw_stats(
    rows: Rows, eos_ids: Iterable[int], temperature: float | FloatArray, uniforms_R: FloatArray
) -> DrawStats:
    """Return position statistics plus one token per row, drawn from the softmax at ``temperature`` [R]."""
    found = start_reduction(rows, eos_ids, draw_inputs=DrawInputs(temperature, uniforms_R))()
    assert found.draws is not None
    return found.draws


def _positions(rows: LogProbRows, eos_ids: Iterable[int]) -> PositionStats:
    log_p_RV = _checked(rows.log_probs_RV)
    top_R = log_p_RV.argmax(axis=1)
    top_logprob_R = np.take_along_axis(log_p_RV, top_R[:, None], 1)[:, 0]
    without_top_RV = log_p_RV.copy()
    np.put_along_axis(without_top_RV, top_R[:, None], -np.inf, 1)
    p_RV = np.exp(log_p_RV)
    entropy_R = -np.where(p_RV > 0, p_RV * np.where(p_RV > 0, log_p_RV, 0.0), 0.0).sum(axis=1)
    eos = sorted(eos_ids)
    with np.errstate(divide="ignore"):
        eos_R = np.log(p_RV[:, eos].sum(axis=1))
    return PositionStats(top_R, top_logprob_R, without_top_RV.max(axis=1), entropy_R, eos_R)


def _drawn(rows: LogProbRows, stats: PositionStats, draw_inputs: DrawInputs) -> DrawStats:
    scaled_RV = rows.log_probs_RV / np.reshape(draw_inputs.temperature, (-1, 1))
    weight_RV = np.exp(scaled_RV - scaled_RV.max(axis=1, keepdims=True))
    cumulative_RV = weight_RV.cumsum(axis=1)
    total_R = cumulative_RV[:, -1]
    token_R = (cumulative_RV <= (draw_inputs.uniforms_R * total_R)[:, None]).sum(axis=1)
    last_R = weight_RV.shape[1] - 1 - (weight_RV > 0)[:, ::-1].argmax(axis=1)
    token_R = np.minimum(token_R, last_R)  # rounding can raise uniform × total to the total itself
    rows_R = np.arange(len(token_R))
    tempered_R = np.log(weight_RV[rows_R, token_R] / total_R)
    return DrawStats(stats, token_R, rows.log_probs_RV[rows_R, token_R], tempered_R)


def _checked(log_p_RV: FloatArray) -> FloatArray:
    with np.errstate(invalid="ignore"):
        bad = ~np.isfinite(log_p_RV.max(axis=1))
    require_finite_rows(bad)
    return log_p_RV

"""The table of statistics per trace: one number per trace and statistic, from columns of complete traces.

``run.samples()``, SQL, studies, the report and the viewer all use ``trace_table``. Chunks are processed as
flat arrays, without a loop over traces. Does not depend on files, models, orders or graders.

Shape letters: N reveals, S traces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from orderlens.metrics.order_shape import (
    masks_to_the_left,
    segment_eos_cascade,
    segment_frontier_distance,
    segment_local_arness,
    segment_spearman_l2r,
)
from orderlens.metrics.passes import segment_pass_counts, segment_pass_variance
from orderlens.metrics.path import (
    SIGMAS,
    block_gini,
    first_and_mean,
    jensen_loss_of,
    log_success_rows,
    segment_lowest,
    segment_path_stats,
    sub_blocks,
)
from orderlens.metrics.segments import AnyArray, BoolArray, FloatArray, IntArray, Segments, divide, moments
from orderlens.metrics.text import segment_distinct_n, segment_token_entropy

Columns = dict[str, AnyArray]
ContentDrops: TypeAlias = Literal["eos", "special"]
"""Tokens that content statistics leave out: EOS alone, as in the paper, or EOS and special tokens."""

FLAGS = ("is_eos", "is_special", "is_overflow")
CORE = ("logq", "forward", "n_lookahead", *FLAGS)
"""Columns of reveals that every trace table reads."""
DISTRIBUTION = ("entropy", "max_logprob", "second_logprob", "self_certainty")
"""Columns of reveals about the distribution at the revealed position."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "path": ("is_argmax", "n_tied", "block", "position", *DISTRIBUTION),
    "shape": ("block", "position"),
    "cascade": ("position",),
    "text": ("position", "token_id"),
    "jensen": (),
}
"""Groups of additional statistics, and the columns that each needs in addition to ``CORE``."""


@dataclass(frozen=True, slots=True)
class TraceArrays:
    """Complete traces as flat arrays [N] and segments [S], without reveals past the requested length.

    Attributes:
        segments: the traces.
        eos: which reveals end the text [N].
        content: which reveals are content: not EOS and, unless only EOS is dropped, not special [N].
        columns: other columns of reveals by name [N].
        n_overflow: number of reveals past the requested length, per trace [S].
        n_overflow_before: number of these in a pass before the last pass that revealed a requested position
            [S]. If it is not 0, later log q are conditioned on tokens that the text does not contain.
        passes: result of ``metrics.passes.segment_pass_counts``; empty without the column ``forward``.
    """

    segments: Segments
    eos: BoolArray
    content: BoolArray
    columns: Columns
    n_overflow: IntArray
    n_overflow_before: IntArray
    passes: Mapping[str, IntArray]

    @classmethod
    def of(
        cls,
        columns: Mapping[str, AnyArray],
        traces: Segments,
        known_S: AnyArray | None = None,
        drops: ContentDrops = "special",
    ) -> TraceArrays:
        """Return the arrays of some traces.

        Args:
            columns: all reveals of the traces by column, including ``FLAGS`` [N].
            traces: the traces as segments of the reveals.
            known_S: known numbers of passes, see ``segment_pass_counts`` [S].
            drops: the tokens that content leaves out.
        """
        inside = ~columns["is_overflow"]
        passes: dict[str, IntArray] = {}
        if "forward" in columns:
            lookahead = columns.get("n_lookahead", np.zeros(traces.n_rows))
            passes = segment_pass_counts(columns["forward"], inside, lookahead, traces, known_S)
        before = overflow_before(columns.get("forward", np.arange(traces.n_rows)), inside, traces)
        segments, requested = traces.filter(inside), dict(columns)
        if not inside.all():
            requested = {name: values[inside] for name, values in columns.items()}
        eos, special, _ = (requested.pop(name) for name in FLAGS)
        n_overflow = traces.lengths - segments.lengths
        content = ~eos if drops == "eos" else ~eos & ~special
        return cls(segments, eos, content, requested, n_overflow, before, passes)

    @property
    def content_segments(self) -> Segments:
        """The traces as segments of their content reveals."""
        return self.segments.filter(self.content)

    def text_tokens(self) -> tuple[IntArray, Segments]:
        """Return the tokens in text order without EOS, and the traces as segments of them."""
        order = self.segments.text_order(self.columns["position"])
        keep = ~self.eos[order]
        return self.columns["token_id"][order][keep], self.segments.filter(keep)


def overflow_before(forward: IntArray, inside: BoolArray, traces: Segments) -> IntArray:
    """Return per trace the number of overflow reveals in a pass before the last requested one [S].

    Args:
        forward: pass of each reveal [N].
        inside: which reveals are of a requested position [N].
        traces: the traces as segments of the reveals.
    """
    if inside.all():
        return np.zeros(traces.count, np.int64)
    last = traces.reduce(np.maximum, np.where(inside, forward, -1), -1)
    return traces.total(~inside & (forward < traces.repeat(last))).astype(np.int64)


WITHOUT_LIKELIHOOD = "generated traces have no likelihood"
"""Words by which the sentence of ``overflow_note`` is found among notes."""


def overflow_note(n_before: AnyArray) -> str | None:
    """Return the sentence about traces that have no likelihood because of their overflow, if there are any.

    Args:
        n_before: ``n_overflow_before`` of generated traces [S].
    """
    concerned = int(np.count_nonzero(n_before))
    if not concerned:
        return None
    return (
        f"{concerned} of {len(n_before)} {WITHOUT_LIKELIHOOD}: they revealed positions past "
        "the requested length before requested ones; generate and evaluate take --overflow mask."
    )


def trace_table(traces: TraceArrays, groups: Collection[str] = ()) -> Columns:
    """Return the statistics of every trace as columns [S].

    Args:
        traces: with the columns of ``CORE`` and of the groups.
        groups: names in ``GROUPS``; without any, the columns of ``run.samples()``.
    """
    out = _core(traces)
    if "path" in groups:
        out = _path(traces) | out  # keeps the mean of a trace with log q = −∞
    if "jensen" in groups:
        out |= _jensen(traces, out)
    if "shape" in groups:
        out |= _shape(traces)
    if "cascade" in groups:
        found = segment_eos_cascade(traces.columns["position"], traces.eos, traces.content, traces.segments)
        out |= dict(zip(("eos_cascade", "eos_cascade_start", "eos_cascade_resume"), found, strict=True))
    if "text" in groups:
        out |= _text(traces)
    return out


def _core(traces: TraceArrays) -> Columns:
    log_q, segments = traces.columns["logq"], traces.segments
    mean, var, total = moments(log_q, segments)
    content_mean, content_var, _ = moments(log_q[traces.content], traces.content_segments)
    return {
        "n": segments.lengths,
        "mean": mean,
        "var": var,
        "n_content": traces.content_segments.lengths,
        "content_mean": content_mean,
        "content_var": content_var,
        "log_prob": total,
        "n_eos": segments.total(traces.eos).astype(np.int64),
        "n_overflow": traces.n_overflow,
        "n_overflow_before": traces.n_overflow_before,
        **traces.passes,
    }


def _path(traces: TraceArrays) -> Columns:
    at, segments, keep = traces.columns, traces.segments, traces.content
    rows = content = _path_rows(at, segments)
    if not keep.all():
        content = _path_rows({name: at[name][keep] for name in _ROWS}, traces.content_segments, first_block=0)
    between, inside = segment_pass_variance(at["logq"], at["forward"], segments)
    return {
        **rows,
        **{f"content_{name}": values.copy() for name, values in content.items() if name != "n"},
        "n_nonfinite": segments.total(~np.isfinite(at["logq"])),
        "argmax_accuracy": _mean_of_known(at["is_argmax"], segments),
        "tied_rate": _mean_of_known(np.where(np.isnan(at["n_tied"]), np.nan, at["n_tied"] > 1), segments),
        "var_between": between,
        "var_inside": inside,
    }


_ROWS = ("logq", "position", "block", *DISTRIBUTION)


def _path_rows(at: Mapping[str, AnyArray], segments: Segments, first_block: int | None = None) -> Columns:
    """Return the path statistics that exist for all reveals and for content reveals."""
    out: Columns = dict(segment_path_stats(at["logq"], segments, at["position"]))
    out["gini_block0"], out["gini_mean"] = block_gini(at["logq"], segments, at["block"], first_block)
    out["lowest_decile"], out["lowest_group"] = segment_lowest(at["logq"], segments, at["position"])
    out["mean_entropy"] = _mean_of_known(at["entropy"], segments)
    out["self_certainty"] = segments.mean(at["self_certainty"])  # NaN if one reveal has none
    out["mean_margin"] = _mean_of_known(np.exp(at["max_logprob"]) - np.exp(at["second_logprob"]), segments)
    return out


def _jensen(traces: TraceArrays, path: Columns) -> Columns:
    out: Columns = {}
    keep, content = traces.content, traces.content_segments
    for sigma in SIGMAS:
        g = log_success_rows(traces.columns["logq"], sigma)
        out[f"jensen_{sigma:g}"] = jensen_loss_of(g, path["mean"], traces.segments, sigma)
        out[f"content_jensen_{sigma:g}"] = jensen_loss_of(g[keep], path["content_mean"], content, sigma)
    return out


def _shape(traces: TraceArrays) -> Columns:
    position, block, keep = traces.columns["position"], traces.columns["block"], traces.content
    content_segments = traces.content_segments
    content = _block_shapes(position[keep], block[keep], content_segments)
    everything = content if keep.all() else _block_shapes(position, block, traces.segments)
    blocks, _ = sub_blocks(traces.segments, block)
    distance = segment_frontier_distance(position, blocks)[keep]
    return {
        **content,
        **{f"all_{name}": values for name, values in everything.items()},
        "frontier_distance": content_segments.mean(distance),
        "frontier_adjacent": content_segments.mean(distance == 1),
    }


def _block_shapes(position: IntArray, block: IntArray, segments: Segments) -> Columns:
    blocks, owner = sub_blocks(segments, block)
    first = block[blocks.starts] == 0
    left = masks_to_the_left(position, blocks)
    n = blocks.lengths
    # The number of pairs out of text order is the number of masks to the left, summed over reveals.
    values = {
        "spearman_l2r": segment_spearman_l2r(position, blocks),
        "local_arness": segment_local_arness(position, blocks),
        "global_arness": blocks.mean(left == 0),
        "concordance": 1.0 - divide(blocks.total(left), n * (n - 1) / 2),
    }
    out: Columns = {}
    for name, value in values.items():
        out[f"{name}_block0"], out[f"{name}_mean"] = first_and_mean(value, owner, first)
    return out


def _text(traces: TraceArrays) -> Columns:
    tokens, text_segments = traces.text_tokens()
    eos = traces.eos[traces.segments.text_order(traces.columns["position"])]
    ended = np.concatenate([[0], np.cumsum(eos)])
    eos_so_far = ended[1:] - traces.segments.repeat(ended[traces.segments.starts])
    return {
        "eos_fraction": traces.segments.mean(traces.eos),
        "n_tokens": text_segments.lengths.astype(np.float64),
        "n_text": traces.segments.total(eos_so_far == 0),
        **{f"distinct_{n}": segment_distinct_n(tokens, text_segments, n) for n in (1, 2, 3)},
        "token_entropy": segment_token_entropy(tokens, text_segments),
    }


def _mean_of_known(values_N: AnyArray, segments: Segments) -> FloatArray:
    known = np.isfinite(values_N)
    return divide(segments.total(np.where(known, values_N, 0.0)), segments.total(known))

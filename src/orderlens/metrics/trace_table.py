"""The one table of statistics per trace: columns of whole traces in, one number per trace and statistic out.

``run.samples()``, SQL, studies, the report and the viewer all read what ``trace_table`` returns. Chunks are
worked on as flat arrays, without a loop over traces. Does not know files, models, orders or graders.

Shape letters: N reveals, S traces.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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
    segment_path_stats,
    sub_blocks,
)
from orderlens.metrics.segments import AnyArray, BoolArray, FloatArray, IntArray, Segments, divide, moments
from orderlens.metrics.text import segment_distinct_n, segment_token_entropy

Columns = dict[str, AnyArray]

FLAGS = ("is_eos", "is_special", "is_overflow")
CORE = ("logq", "forward", "n_lookahead", *FLAGS)
"""Columns of reveals that every trace table reads."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "path": ("is_argmax", "n_tied", "entropy", "max_logprob", "second_logprob", "block", "position"),
    "shape": ("block", "position"),
    "cascade": ("position",),
    "text": ("position", "token_id"),
    "jensen": (),
}
"""Groups of further statistics, and the columns that each reads beside ``CORE``."""


@dataclass(frozen=True, slots=True)
class TraceArrays:
    """Whole traces as flat arrays [N] and segments [S], reveals past the requested length left out.

    Attributes:
        segments: the traces.
        eos: which reveals end the text [N].
        content: which reveals are neither EOS nor special [N].
        columns: further columns of reveals by name [N].
        n_overflow: reveals past the requested length, per trace [S].
        passes: ``metrics.passes.segment_pass_counts``; empty where ``forward`` was not read.
    """

    segments: Segments
    eos: BoolArray
    content: BoolArray
    columns: Columns
    n_overflow: IntArray
    passes: Mapping[str, IntArray]

    @classmethod
    def of(
        cls, columns: Mapping[str, AnyArray], whole: Segments, known_S: AnyArray | None = None
    ) -> TraceArrays:
        """Return the arrays of some traces.

        Args:
            columns: all reveals of the traces by column, ``FLAGS`` included [N].
            whole: the traces as segments of them.
            known_S: passes known from elsewhere, see ``segment_pass_counts`` [S].
        """
        inside = ~columns["is_overflow"]
        passes: dict[str, IntArray] = {}
        if "forward" in columns:
            ahead = columns.get("n_lookahead", np.zeros(whole.n_rows))
            passes = segment_pass_counts(columns["forward"], inside, ahead, whole, known_S)
        segments, kept = whole.kept(inside), dict(columns)
        if not inside.all():
            kept = {name: values[inside] for name, values in columns.items()}
        eos, special, _ = (kept.pop(name) for name in FLAGS)
        return cls(segments, eos, ~eos & ~special, kept, whole.lengths - segments.lengths, passes)

    @property
    def content_segments(self) -> Segments:
        """The traces as segments of their content reveals."""
        return self.segments.kept(self.content)

    def text_tokens(self) -> tuple[IntArray, Segments]:
        """Return the tokens in text order with EOS removed, and the traces as segments of them."""
        order = self.segments.text_order(self.columns["position"])
        keep = ~self.eos[order]
        return self.columns["token_id"][order][keep], self.segments.kept(keep)


def trace_table(traces: TraceArrays, groups: Collection[str] = ()) -> Columns:
    """Return the statistics of every trace as columns [S].

    Args:
        traces: with the columns of ``CORE`` and of the groups.
        groups: of ``GROUPS``; without any, what ``run.samples()`` shows.
    """
    out = _core(traces)
    if "path" in groups:
        out = _path(traces) | out  # a trace with log q = −∞ has a mean, but no order statistics
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


_ROWS = ("logq", "position", "block", "entropy", "max_logprob", "second_logprob")


def _path_rows(at: Mapping[str, AnyArray], segments: Segments, first_block: int | None = None) -> Columns:
    """Return the statistics of the path that content has as well."""
    out: Columns = dict(segment_path_stats(at["logq"], segments, at["position"]))
    out["gini_block0"], out["gini_mean"] = block_gini(at["logq"], segments, at["block"], first_block)
    out["mean_entropy"] = _mean_of_known(at["entropy"], segments)
    out["mean_margin"] = _mean_of_known(np.exp(at["max_logprob"]) - np.exp(at["second_logprob"]), segments)
    return out


def _jensen(traces: TraceArrays, path: Columns) -> Columns:
    out: Columns = {}
    keep, kept = traces.content, traces.content_segments
    for sigma in SIGMAS:
        g = log_success_rows(traces.columns["logq"], sigma)
        out[f"jensen_{sigma:g}"] = jensen_loss_of(g, path["mean"], traces.segments, sigma)
        out[f"content_jensen_{sigma:g}"] = jensen_loss_of(g[keep], path["content_mean"], kept, sigma)
    return out


def _shape(traces: TraceArrays) -> Columns:
    position, block, keep = traces.columns["position"], traces.columns["block"], traces.content
    kept = traces.content_segments
    content = _block_shapes(position[keep], block[keep], kept)
    everything = content if keep.all() else _block_shapes(position, block, traces.segments)
    blocks, _ = sub_blocks(traces.segments, block)
    distance = segment_frontier_distance(position, blocks)[keep]
    return {
        **content,
        **{f"all_{name}": values for name, values in everything.items()},
        "frontier_distance": kept.mean(distance),
        "frontier_adjacent": kept.mean(distance == 1),
    }


def _block_shapes(position: IntArray, block: IntArray, segments: Segments) -> Columns:
    blocks, owner = sub_blocks(segments, block)
    first = block[blocks.starts] == 0
    left = masks_to_the_left(position, blocks)
    n = blocks.lengths
    # Of the n(n − 1)/2 pairs, those out of text order are the masks skipped on the left, summed over reveals.
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
    tokens, kept = traces.text_tokens()
    eos = traces.eos[traces.segments.text_order(traces.columns["position"])]
    ended = np.concatenate([[0], np.cumsum(eos)])
    eos_so_far = ended[1:] - traces.segments.spread(ended[traces.segments.starts])
    return {
        "eos_fraction": traces.segments.mean(traces.eos),
        "n_tokens": kept.lengths.astype(np.float64),
        "n_text": traces.segments.total(eos_so_far == 0),
        **{f"distinct_{n}": segment_distinct_n(tokens, kept, n) for n in (1, 2, 3)},
        "token_entropy": segment_token_entropy(tokens, kept),
    }


def _mean_of_known(values_N: AnyArray, segments: Segments) -> FloatArray:
    known = np.isfinite(values_N)
    return divide(segments.total(np.where(known, values_N, 0.0)), segments.total(known))

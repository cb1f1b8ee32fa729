"""One row per trace with every statistic, computed from a run in bounded memory.

Chunks of whole traces are worked on as flat arrays (no loop over traces), and leave one number per trace and
statistic. Two threads overlap, since numpy lets go of the interpreter. Knows no files, models or graders.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike

from orderlens.analysis.traces import Traces, known_traces, read_chunks, read_traces
from orderlens.metrics import path as path_metrics
from orderlens.metrics.concentration import segment_gini
from orderlens.metrics.order_shape import (
    masks_to_the_left,
    segment_eos_cascade,
    segment_frontier_distance,
    segment_local_arness,
    segment_spearman_l2r,
)
from orderlens.metrics.passes import segment_pass_variance
from orderlens.metrics.path import SIGMAS, first_and_mean, segment_path_stats, sub_blocks
from orderlens.metrics.segments import (
    AnyArray,
    BoolArray,
    FloatArray,
    IntArray,
    Segments,
    divide,
    trace_stats,
)
from orderlens.metrics.text import segment_distinct_n, segment_token_entropy
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS, likelihood

PARTS = ("path", "shape", "text", "jensen")
"""Groups of statistics; ``path`` is always computed, the others cost extra."""

T = TypeVar("T")
Columns = dict[str, AnyArray]

_ALWAYS = (
    *KEYS,
    "step",
    "forward",
    "logq",
    "is_eos",
    "is_special",
    "is_overflow",
    "is_argmax",
    "n_tied",
    "entropy",
)
_COLUMNS = {
    "path": (*_ALWAYS, "max_logprob", "second_logprob", "block", "position", "n_lookahead"),
    "shape": ("block", "position"),
    "text": ("position", "token_id"),
    "jensen": (),
}


def sample_table(run: Run, parts: Collection[str] = PARTS, workers: int | None = None) -> pd.DataFrame:
    """Return one row per trace of ``run``, in the order of the store.

    Args:
        run: an opened run.
        parts: which groups of statistics to compute besides ``path``.
        workers: threads; by default up to two.
    """
    wanted = list(dict.fromkeys(name for part in ("path", *parts) for name in _COLUMNS[part]))
    frames = list(_in_threads(lambda chunk: _rows(chunk, parts), read_chunks(run, wanted), workers))
    empty = run.table("reveals").schema.empty_table().select(wanted)
    frame = pd.concat(frames, ignore_index=True) if frames else _rows(empty, parts)
    frame = frame.assign(**{name: _passes(run, frame, name) for name in ("n_forwards", "n_passes")})
    return frame.assign(likelihood=pd.Series(_likelihoods(run, frame), index=frame.index, dtype=object))


def _passes(run: Run, frame: pd.DataFrame, name: str) -> IntArray:
    """Return the forward passes that the run states or the reveals tell, whichever are more."""
    told, stated = frame[name].to_numpy(np.int64), run.stated_passes()
    if not any(stated.values()):
        return told
    names = frame["run"] if "run" in frame.columns else [run.names[0]] * len(frame)
    keys = frame[list(KEYS)].astype(object).where(frame[list(KEYS)].notna(), None)
    rows = zip(names, keys.itertuples(index=False, name=None), told.tolist(), strict=True)
    return np.array([max(stated[run_name].get(key, count), count) for run_name, key, count in rows], np.int64)


def _likelihoods(run: Run, frame: pd.DataFrame) -> list[str | None]:
    """Return what each trace's summed log q is; see ``store.samples``."""
    stated = {name: spec.get("likelihood") for name, spec in run.specs.items()}
    names = frame["run"] if "run" in frame.columns else [run.names[0]] * len(frame)
    rows = zip(names, frame["order"], frame["temperature"], strict=True)
    return [likelihood(stated[name], order, temperature) for name, order, temperature in rows]


def matched_distinct(run: Run, samples: pd.DataFrame, limits: ArrayLike, n: int = 3) -> FloatArray:
    """Return distinct-n of each trace's first ``limits[i]`` tokens (EOS removed), like the sample table."""
    limit = np.asarray(limits, np.int64)
    out, done = [np.zeros(0)], 0
    for traces in known_traces(run, samples, ["position", "token_id"]):
        tokens, kept = _text_tokens(traces)
        short = kept.ranks() < kept.spread(limit[done : done + kept.count])
        out.append(segment_distinct_n(tokens[short], kept.kept(short), n))
        done += kept.count
    return np.concatenate(out)


def _rows(table: pa.Table, parts: Collection[str]) -> pd.DataFrame:
    traces = read_traces(table)
    columns = _path_columns(traces)
    if "jensen" in parts:
        columns |= _jensen_columns(traces, columns)
    if "shape" in parts:
        columns |= _shape_columns(traces)
    if "text" in parts:
        columns |= _text_columns(traces)
    return pd.concat([traces.keys.reset_index(drop=True), pd.DataFrame(columns)], axis=1)


def _path_columns(traces: Traces) -> Columns:
    at, segments = traces.columns, traces.segments
    logq, position, block = at["logq"], at["position"], at["block"]
    out = segment_path_stats(logq, segments, position)
    out["gini_block0"], out["gini_mean"] = path_metrics.block_gini(logq, segments, block)
    out |= {
        "n_nonfinite": segments.total(~np.isfinite(logq)),
        "n_overflow": traces.n_overflow,
        "argmax_accuracy": _mean_of_known(at["is_argmax"], segments),
        "mean_entropy": _mean_of_known(at["entropy"], segments),
        "mean_margin": _mean_of_known(np.exp(at["max_logprob"]) - np.exp(at["second_logprob"]), segments),
        "tied_rate": _mean_of_known(np.where(np.isnan(at["n_tied"]), np.nan, at["n_tied"] > 1), segments),
    }
    out |= {f"content_{name}": column for name, column in _content_columns(traces, out).items()}
    del out["content_n"]
    out["n_passes"], out["n_ahead"] = traces.n_passes, traces.n_ahead
    out["n_lookahead"] = segments.total(np.nan_to_num(at["n_lookahead"])).astype(np.int64)
    out["var_between"], out["var_inside"] = segment_pass_variance(logq, at["forward"], segments)
    return out | trace_stats(logq, traces.eos, traces.content, at["forward"], segments)


def _content_columns(traces: Traces, everything: Columns) -> Columns:
    at, keep = traces.columns, traces.content
    shared = ("n_nonfinite", "n_overflow", "argmax_accuracy", "tied_rate")
    if keep.all():
        return {name: column.copy() for name, column in everything.items() if name not in shared}
    segments = traces.segments.kept(keep)
    logq, position, block = at["logq"][keep], at["position"][keep], at["block"][keep]
    out = segment_path_stats(logq, segments, position)
    blocks, owner = sub_blocks(segments, block)
    value = segment_gini(np.maximum(-logq.astype(np.float64), 0.0), blocks)
    out["gini_block0"], out["gini_mean"] = first_and_mean(value, owner, block[blocks.starts] == 0)
    out["mean_entropy"] = _mean_of_known(at["entropy"][keep], segments)
    margin = np.exp(at["max_logprob"][keep]) - np.exp(at["second_logprob"][keep])
    out["mean_margin"] = _mean_of_known(margin, segments)
    return out


def _jensen_columns(traces: Traces, path: Columns) -> Columns:
    out = {}
    logq, keep = traces.columns["logq"], traces.content
    kept = traces.segments.kept(keep)
    for sigma in SIGMAS:
        g = path_metrics.log_success_rows(logq, sigma)
        out[f"jensen_{sigma:g}"] = path_metrics.jensen_loss_of(g, path["mean"], traces.segments, sigma)
        out[f"content_jensen_{sigma:g}"] = path_metrics.jensen_loss_of(
            g[keep], path["content_mean"], kept, sigma
        )
    return out


def _shape_columns(traces: Traces) -> Columns:
    at, keep = traces.columns, traces.content
    out = _block_shapes(at["position"][keep], at["block"][keep], traces.segments.kept(keep), "")
    if keep.all():
        out |= {f"all_{name}": column for name, column in out.items()}
    else:
        out |= _block_shapes(at["position"], at["block"], traces.segments, "all_")
    blocks, _ = sub_blocks(traces.segments, at["block"])
    distance = segment_frontier_distance(at["position"], blocks)[keep]
    kept = traces.segments.kept(keep)
    out["frontier_distance"] = kept.mean(distance)
    out["frontier_adjacent"] = kept.mean(distance == 1)
    cascade = segment_eos_cascade(at["position"], traces.eos, keep, traces.segments)
    return out | dict(zip(("eos_cascade", "eos_cascade_start", "eos_cascade_resume"), cascade, strict=True))


def _block_shapes(position: IntArray, block: IntArray, segments: Segments, prefix: str) -> Columns:
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
        out[f"{prefix}{name}_block0"], out[f"{prefix}{name}_mean"] = first_and_mean(value, owner, first)
    return out


def _text_columns(traces: Traces) -> Columns:
    tokens, kept = _text_tokens(traces)
    order = traces.segments.text_order(traces.columns["position"])
    eos_before: IntArray = np.cumsum(traces.eos[order])
    eos_before -= traces.segments.spread(_before(traces.eos[order], traces.segments))
    return {
        "eos_fraction": traces.segments.mean(traces.eos),
        "n_tokens": kept.lengths.astype(np.float64),
        "n_text": traces.segments.total(eos_before == 0),
        **{f"distinct_{n}": segment_distinct_n(tokens, kept, n) for n in (1, 2, 3)},
        "token_entropy": segment_token_entropy(tokens, kept),
    }


def _before(flags_N: BoolArray, segments: Segments) -> IntArray:
    """Return how many flags are set before each segment starts [S]."""
    return np.concatenate([[0], np.cumsum(flags_N)])[segments.starts]


def _text_tokens(traces: Traces) -> tuple[IntArray, Segments]:
    """Return the tokens in text order with EOS removed, and the traces as segments of them."""
    order = traces.segments.text_order(traces.columns["position"])
    keep = ~traces.eos[order]
    return traces.columns["token_id"][order][keep], traces.segments.kept(keep)


def _mean_of_known(values_N: AnyArray, segments: Segments) -> FloatArray:
    known = np.isfinite(values_N)
    return divide(segments.total(np.where(known, values_N, 0.0)), segments.total(known))


def _in_threads(
    work: Callable[[pa.Table], T], chunks: Iterable[pa.Table], workers: int | None
) -> Iterator[T]:
    """Yield ``work`` of each chunk in order, with only a few chunks in flight."""
    count = workers or min(2, os.cpu_count() or 1)
    with ThreadPoolExecutor(count) as pool:
        running: deque[Future[T]] = deque()
        for chunk in chunks:
            running.append(pool.submit(work, chunk))
            if len(running) > count:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()

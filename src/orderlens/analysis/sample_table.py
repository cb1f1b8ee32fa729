"""One row per trace with every statistic, computed from a run in bounded memory.

Chunks of whole traces come from the store, are worked on as flat arrays (no loop over traces), and leave one
number per trace and statistic. Two threads overlap, since numpy lets go of the interpreter. Knows the columns
of ``reveals``; does not know files, models or graders.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike

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
from orderlens.store.codec import trace_starts
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS, flag, likelihood

PARTS = ("path", "shape", "text", "jensen")
"""Groups of statistics; ``path`` is always computed, the others cost extra."""

CHUNK_ROWS = 1 << 18
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


@dataclass(frozen=True, slots=True)
class Traces:
    """A chunk of whole traces without overflow rows, as flat arrays [N] and segments [S].

    ``keys`` has one row per trace, and no columns when the keys were not read. ``n_passes`` counts the passes
    that filled overflow positions too, ``n_ahead`` what they looked ahead; empty where that was not read.
    """

    keys: pd.DataFrame
    segments: Segments
    content: BoolArray
    eos: BoolArray
    columns: dict[str, AnyArray]
    n_overflow: FloatArray
    n_passes: FloatArray
    n_ahead: FloatArray


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
    frame = frame.assign(n_forwards=_passes(run, frame))
    return frame.assign(likelihood=pd.Series(_likelihoods(run, frame), index=frame.index, dtype=object))


def _passes(run: Run, frame: pd.DataFrame) -> IntArray:
    """Return the forward passes: those that the run states, else those that the reveals tell."""
    told, stated = frame["n_forwards"].to_numpy(np.int64), run.stated_passes()
    if not any(stated.values()):
        return told
    names = frame["run"] if "run" in frame.columns else [run.names[0]] * len(frame)
    keys = frame[list(KEYS)].astype(object).where(frame[list(KEYS)].notna(), None)
    rows = zip(names, keys.itertuples(index=False, name=None), told.tolist(), strict=True)
    return np.array([stated[name].get(key, count) for name, key, count in rows], np.int64)


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


def known_traces(run: Run, samples: pd.DataFrame, columns: Sequence[str]) -> Iterator[Traces]:
    """Yield the run's traces again, in the order of its sample table, without reading their keys.

    The table tells how long each trace is, so only ``columns`` and the flags are read.
    """
    lengths = (samples["n"] + samples["n_overflow"]).to_numpy(np.int64)
    bounds, done = np.concatenate([[0], np.cumsum(lengths)]), 0
    for chunk in read_chunks(run, [*columns, "is_eos", "is_special", "is_overflow"]):
        first, last = np.searchsorted(bounds, [done, done + chunk.num_rows])
        yield _traces(chunk, Segments(bounds[first : last + 1] - done))
        done += chunk.num_rows


def read_traces(table: pa.Table) -> Traces:
    """Return a chunk of the store as arrays; overflow rows are counted and dropped."""
    starts = _starts(table)
    return _traces(table, Segments(np.append(starts, table.num_rows).astype(np.int64)))


def _traces(table: pa.Table, whole: Segments) -> Traces:
    keys = table.select([name for name in (*KEYS, "run") if name in table.column_names])
    arrays = {name: _array(table, name) for name in table.column_names if name not in _NOT_ARRAYS}
    inside = ~flag(table, "is_overflow")
    eos, special = flag(table, "is_eos"), flag(table, "is_special")
    n_overflow = whole.total(~inside)
    made = whole.reduce(np.maximum, arrays["forward"], -1) + 1 if "forward" in arrays else np.zeros(0)
    ahead = whole.total(np.nan_to_num(arrays["n_lookahead"])) if "n_lookahead" in arrays else np.zeros(0)
    frame = keys.take(pa.array(whole.starts)).to_pandas()
    if not inside.all():
        arrays = {name: values[inside] for name, values in arrays.items()}
        eos, special, whole = eos[inside], special[inside], whole.kept(inside)
    return Traces(frame, whole, ~eos & ~special, eos, arrays, n_overflow, np.asarray(made, np.float64), ahead)


_NOT_ARRAYS = frozenset((*KEYS, "run", "is_eos", "is_special", "is_overflow"))


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


def _starts(table: pa.Table) -> IntArray:
    """Return the first row of each trace: where the step falls back, checked against the keys."""
    if not table.num_rows:
        return np.zeros(0, np.int64)
    step = table["step"].to_numpy()
    starts = np.concatenate([[0], np.flatnonzero(step[1:] <= step[:-1]) + 1])
    ends = np.append(starts[1:], table.num_rows) - 1
    keys = table.select([name for name in KEYS if name in table.column_names])
    if keys.take(pa.array(starts)).equals(keys.take(pa.array(ends))):
        return starts
    return trace_starts(table)  # a trace that does not begin at step 0


def _array(table: pa.Table, name: str) -> AnyArray:
    column = table[name]
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.float32()) if column.null_count else column
    elif pa.types.is_integer(column.type) and name == "n_tied":
        column = column.cast(pa.float32())
    values = np.asarray(column.to_numpy())
    return values.astype(np.int64) if values.dtype.kind in "iu" else values


def read_chunks(run: Run, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield pieces of about CHUNK_ROWS rows; row groups of a run can be much smaller."""
    names = run.table("reveals").columns
    wanted = [*(["run"] if "run" in names else []), *columns]
    waiting: list[pa.Table] = []
    for chunk in run.iter_traces(wanted):
        waiting.append(chunk)
        if sum(table.num_rows for table in waiting) >= CHUNK_ROWS:
            yield pa.concat_tables(waiting)
            waiting = []
    if sum(table.num_rows for table in waiting):
        yield pa.concat_tables(waiting)


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

"""Mean Lorenz curves per order, from a run in bounded memory (data of the paper's Fig. 1b)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from orderlens.analysis.frames import cells
from orderlens.analysis.sample_table import Traces, read_chunks, read_traces
from orderlens.metrics.concentration import lorenz_gini, segment_lorenz
from orderlens.metrics.path import sub_blocks
from orderlens.metrics.segments import BoolArray, FloatArray
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS


def lorenz_curves(run: Run, block: int | None = 0, keep: BoolArray | None = None) -> pd.DataFrame:
    """Return the mean Lorenz curve of −log q inside one block (or all blocks with None) per order.

    Blocks are compared only with blocks of the same length. Scored and generated traces are kept apart.
    ``keep`` says which traces count, in the order of the store; all by default.

    Returns:
        Columns order, scored, length (steps of the block), step (0…length), lorenz (mean curve), gini (of the
        mean curve, which is the mean Gini), n (blocks), n_undefined (blocks with a NaN).
    """
    sums: dict[tuple[str, bool, int], list[FloatArray]] = {}
    columns = [*KEYS, "step", "block", "logq", "is_eos", "is_special", "is_overflow"]
    done = 0
    for chunk in read_chunks(run, columns):
        traces = read_traces(chunk)
        count = traces.segments.count
        chosen = np.ones(count, np.bool_) if keep is None else keep[done : done + count]
        done += count
        for key, found in _chunk_sums(traces, block, chosen).items():
            old = sums.get(key)
            sums[key] = found if old is None else [a + b for a, b in zip(old, found, strict=True)]
    return _frame(sums)


def _chunk_sums(
    traces: Traces, block: int | None, keep: BoolArray
) -> dict[tuple[str, bool, int], list[FloatArray]]:
    """Return the sum of the curves and the counts (defined, undefined) by (order, scored, length)."""
    number, logq = traces.columns["block"], traces.columns["logq"].astype(np.float64)
    blocks, owner = sub_blocks(traces.segments, number)
    of_trace = owner.ids()
    frame = pd.DataFrame(
        {
            "order": traces.keys["order"].to_numpy()[of_trace],
            "scored": traces.keys["temperature"].isna().to_numpy()[of_trace],
            "length": blocks.lengths,
        }
    )
    chosen = frame[keep[of_trace] & (True if block is None else number[blocks.starts] == block)]
    out = {}
    for (order, scored, length), rows in cells(chosen, ("order", "scored", "length")):
        places = blocks.starts[rows.index, None] + np.arange(length)
        curves = segment_lorenz(np.maximum(-logq[places], 0.0))
        known = np.isfinite(curves[:, -1])
        counts = np.array([known.sum(), (~known).sum()], np.float64)
        out[str(order), bool(scored), int(length)] = [curves[known].sum(axis=0), counts]
    return out


def _frame(sums: dict[tuple[str, bool, int], list[FloatArray]]) -> pd.DataFrame:
    parts = []
    for (order, scored, length), (total, counts) in sorted(sums.items(), key=lambda item: item[0]):
        curve = total / counts[0] if counts[0] else np.full(length + 1, np.nan)
        part = pd.DataFrame({"step": np.arange(length + 1), "lorenz": curve})
        part = part.assign(order=order, scored=scored, length=length, gini=lorenz_gini(curve))
        parts.append(part.assign(n=int(counts[0]), n_undefined=int(counts[1])))
    names = ["order", "scored", "length", "step", "lorenz", "gini", "n", "n_undefined"]
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)

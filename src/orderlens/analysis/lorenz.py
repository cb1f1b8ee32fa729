"""Distribution of a block's self-information −log q over its steps: mean Lorenz curves by order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from orderlens.analysis.frames import cells
from orderlens.analysis.traces import known_traces
from orderlens.errors import UndefinedFigureError
from orderlens.metrics.path import lorenz_gini, segment_lorenz, sub_blocks
from orderlens.metrics.segments import BoolArray, FloatArray
from orderlens.metrics.trace_table import TraceArrays
from orderlens.rules.cards import kind_of
from orderlens.store.reader import Run

if TYPE_CHECKING:
    from orderlens.analysis.study import Study


def first_block_curves(study: Study) -> dict[str, Any]:
    """Return the mean Lorenz curve of −log q in block 0 per order, by rising Gini.

    Only blocks of the most frequent length are averaged; ``n_other_lengths`` counts the others.
    """
    frame = lorenz_curves(study.run, study.all_traces, keep=~study.all_traces["repeated"].to_numpy(bool))
    frame = frame[frame["scored"] & (frame["n"] > 0)]
    if not len(frame):
        raise UndefinedFigureError("nothing was scored: the run holds no fixed targets")
    counts = frame[frame["step"] == 0].groupby("length")["n"].sum()
    blocks = {int(str(length)): int(n) for length, n in counts.items()}
    length = max(blocks, key=lambda item: blocks[item])
    curves = []
    for order, part in frame[frame["length"] == length].groupby("order", sort=False):
        first = part.iloc[0]
        heights = part.sort_values("step")["lorenz"].tolist()
        kind = kind_of(str(order))
        curves.append(
            {"order": order, "kind": kind, "gini": first["gini"], "n": int(first["n"]), "lorenz": heights}
        )
    curves.sort(key=lambda item: (item["gini"], item["order"]))
    return {"length": length, "curves": curves, "n_other_lengths": sum(blocks.values()) - blocks[length]}


def lorenz_curves(
    run: Run, samples: pd.DataFrame, block: int | None = 0, keep: BoolArray | None = None
) -> pd.DataFrame:
    """Return the mean Lorenz curve of −log q inside one block (or all blocks with None) per order.

    Blocks are compared only with blocks of the same length. Scored and generated traces are kept apart.
    ``samples`` is the sample table of the run; ``keep`` says which of its traces count, all by default.

    Returns:
        Columns order, scored, length (steps of the block), step (0…length), lorenz (mean curve), gini (of the
        mean curve, which is the mean Gini), n (blocks), n_undefined (blocks with a NaN).
    """
    sums: dict[tuple[str, bool, int], list[FloatArray]] = {}
    chosen = np.ones(len(samples), np.bool_) if keep is None else keep
    done = 0
    for traces in known_traces(run, samples, ["block", "logq"]):
        here = slice(done, done := done + traces.segments.count)
        for key, found in _chunk_sums(traces, samples[here], block, chosen[here]).items():
            old = sums.get(key)
            sums[key] = found if old is None else [a + b for a, b in zip(old, found, strict=True)]
    return _frame(sums)


def _chunk_sums(
    traces: TraceArrays, samples: pd.DataFrame, block: int | None, keep: BoolArray
) -> dict[tuple[str, bool, int], list[FloatArray]]:
    """Return the sum of the curves and the counts (defined, undefined) by (order, scored, length)."""
    number, logq = traces.columns["block"], traces.columns["logq"].astype(np.float64)
    blocks, owner = sub_blocks(traces.segments, number)
    of_trace = owner.ids()
    frame = pd.DataFrame(
        {
            "order": samples["order"].to_numpy()[of_trace],
            "scored": samples["temperature"].isna().to_numpy()[of_trace],
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

"""Fixed targets: mean log q and Var per order, Lorenz curves of −log q in a block, and the loss by step.

The loss by step serves ``schedule=K:FILE``: traces with one token per pass, blocks of the most frequent size.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from orderlens.analysis import paper
from orderlens.analysis.frames import cells
from orderlens.analysis.study import NO_TARGET, Study
from orderlens.analysis.table import Cell, Column, Table, has_scored, never, table
from orderlens.analysis.traces import in_sets, known_traces, picked_traces
from orderlens.errors import UndefinedFigureError
from orderlens.metrics.coherence import ROUNDING, tied_ranks
from orderlens.metrics.estimate import Clusters, Estimate, ratios_of_sums
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.path import lorenz_gini, segment_lorenz, sub_blocks
from orderlens.metrics.segments import BoolArray, FloatArray
from orderlens.metrics.trace_table import TraceArrays
from orderlens.rules.cards import kind_of
from orderlens.store.reader import Run

_FIXED = (
    Column("mean", "mean log q"),
    Column("var", "Var(log q)"),
    Column("gini_block0", "Gini (block 0)"),
    Column("gini_mean", "Gini (blocks)"),
    Column("argmax_accuracy", "argmax accuracy"),
    Column("bottleneck_rate", "q < 1/2"),
    Column("min", "min log q"),
    Column("var_about", "Var about others"),
)


@table("mean log q and Var per order on fixed targets (Fig. 1a)", traces="score", suits=has_scored)
def fixed_sequence(study: Study) -> list[Table]:
    """Return the plane of mean log q and Var per order on fixed targets (data of the paper's Fig. 1a)."""
    rows = order_plane(study)
    columns = (Column("kind", "kind"), Column("n", "n"), Column("seeds", "seeds"), *_FIXED)
    title = "Fixed sequences: mean log q and its variance per order (nats, per sequence, then averaged)"
    return [Table("fixed-sequence", title, ("order",), columns, tuple(rows), _plane_notes(rows))]


def order_plane(study: Study) -> list[dict[str, Cell]]:
    """Return each order's statistics on fixed targets."""
    frame, names = study.scored, [column.name for column in _FIXED]
    rows = []
    for order in study.orders(study.samples):
        part = frame[frame["order"] == order]
        cells = study.estimates(part, names) if len(part) else [Estimate.undefined(NO_TARGET)] * len(names)
        n_seeds = int(part["seed"].nunique())
        head: dict[str, Cell] = {"order": order, "kind": kind_of(order), "n": len(part), "seeds": n_seeds}
        rows.append(head | dict(zip(names, cells, strict=True)))
    return rows


def _theirs() -> str:
    return f"{paper.number('spearman_var_mean'):.2f}".replace("-", "−")


def _plane_notes(rows: Sequence[dict[str, Cell]]) -> tuple[str, ...]:
    points = [(str(row["order"]), row["mean"], row["var"]) for row in rows]
    known = [
        (o, m.value, v.value) for o, m, v in points if isinstance(m, Estimate) and isinstance(v, Estimate)
    ]
    known = [point for point in known if math.isfinite(point[1]) and math.isfinite(point[2])]
    about = (
        "Var about others: mean squared deviation of log q from the mean over tokens of the other sequences."
    )
    notes = [about]
    if any(row["kind"] == "target-aware" for row in rows):
        notes.append(
            "For target-aware orders the mean of log q is not a likelihood: the implied probabilities can "
            "sum to more than 1."
        )
    if len(known) > 2:
        rho = rank_correlation(tied_ranks([p[1] for p in known]), [p[2] for p in known])
        shown = (
            f"= {rho:.2f}" if math.isfinite(rho) else "is undefined because their means (or Var) are equal"
        )
        found = f"Spearman(Var, mean log q) {shown} (paper: {_theirs()} over six)"
        notes.append(f"Across the {len(known)} orders {found}.")
        pairs = [
            f"{a[0]}/{b[0]}"
            for a, b in itertools.combinations(known, 2)
            if abs(a[1] - b[1]) > ROUNDING and (a[1] - b[1]) * (a[2] - b[2]) > 0
        ]
        notes.append(f"Pairs in which the higher mean has the higher Var: {', '.join(pairs) or 'none'}.")
    return tuple(notes)


def first_block_curves(study: Study) -> dict[str, Any]:
    """Return the mean Lorenz curve of −log q in block 0 per order, by rising Gini.

    Only blocks of the most frequent length (the longest, if several are) are averaged; ``n_other_lengths``
    counts the others.
    """
    frame = lorenz_curves(study.run, study.all_traces, keep=~study.all_traces["repeated"].to_numpy(bool))
    frame = frame[frame["scored"] & (frame["n"] > 0)]
    if not len(frame):
        raise UndefinedFigureError("nothing was scored: the run holds no fixed targets")
    counts = frame[frame["step"] == 0].groupby("length")["n"].sum()
    blocks = {int(str(length)): int(n) for length, n in counts.items()}
    length = max(blocks, key=lambda item: (blocks[item], item))
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


def block_losses(study: Study, order: str) -> tuple[list[str], FloatArray]:
    """Return the prompt of every complete block of one order, and −log q by reveal in the block [B, n]."""
    frame = study.scored[study.scored["order"] == order]
    frame = frame[~in_sets(frame)]
    prompts = dict(zip(frame.index, frame["prompt"].astype(str), strict=True))
    owners, found = [], []
    for row, traces, at in picked_traces(study.run, study.all_traces, frame.index, ["logq", "block"]):
        logq, block = (traces.columns[name][at].astype(np.float64) for name in ("logq", "block"))
        for number in np.unique(block):
            owners.append(prompts[row])
            found.append(-logq[block == number])
    sizes = [len(values) for values in found]
    n = max(set(sizes), key=lambda size: (sizes.count(size), size)) if sizes else 0
    kept = [place for place, size in enumerate(sizes) if size == n]
    rows = np.array([found[place] for place in kept], np.float64).reshape(len(kept), n)
    return [owners[place] for place in kept], rows


@table("loss per token by number of revealed positions, for schedule=K", traces="score", suits=never)
def losses(study: Study) -> Table:
    """Return one row per order and number of revealed positions of the block."""
    rows: list[dict[str, Cell]] = []
    for order in study.orders(study.scored):
        owners, loss_BN = block_losses(study, order)
        if not len(loss_BN):
            continue
        clusters = Clusters(owners, study.options.resampling)
        sums = clusters.sums(np.column_stack([loss_BN, np.ones(len(loss_BN))]))
        cells = ratios_of_sums(clusters, sums, len(loss_BN))
        rows += [{"order": order, "revealed": str(place), "loss": cell} for place, cell in enumerate(cells)]
    notes = (
        "loss: mean −log q of the next token when this number of the block's positions is revealed.",
        "One token per pass; blocks of the most frequent size. Of a random order it is ARDM's L.",
    )
    columns = (Column("loss", "loss (nats)"),)
    empty: Cell = Estimate.undefined(NO_TARGET)
    shown = tuple(rows) or ({"order": "(none)", "revealed": "(none)", "loss": empty},)
    return Table("losses", "Loss by number revealed", ("order", "revealed"), columns, shown, notes)

"""Fig. 1b: how a block's self-information is shared among its steps, per order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from orderlens.analysis.frames import cells
from orderlens.analysis.traces import Traces, read_chunks, read_traces
from orderlens.errors import UndefinedFigureError
from orderlens.figures.catalogue import Recipe
from orderlens.figures.numbers import real, short
from orderlens.figures.style import OrderStyle, footnote, look, new_figure, order_styles, panel_letters
from orderlens.metrics.concentration import lorenz_gini, segment_lorenz
from orderlens.metrics.path import sub_blocks
from orderlens.metrics.segments import BoolArray, FloatArray
from orderlens.rules.cards import display_name, kind_of
from orderlens.store.reader import Run
from orderlens.store.samples import KEYS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orderlens.analysis.study import Study


def data(study: Study) -> dict[str, Any]:
    """Return the mean Lorenz curve of −log q in block 0 per order, by rising Gini.

    Only blocks of the commonest length are averaged; how many others there are is told.
    """
    frame = lorenz_curves(study.run, block=0, keep=~study.every["repeated"].to_numpy(bool))
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


def draw(data: Mapping[str, Any]) -> Figure:
    """Draw the curves under the diagonal and, beside them, how far under it they run."""
    with look():
        figure, (whole, depth) = new_figure(1, 2, height=2.9)
        steps = np.linspace(0, 1, data["length"] + 1)
        whole.plot([0, 1], [0, 1], color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        depth.axhline(0, color="#b9b9b9", linewidth=0.9, linestyle=(0, (4, 3)))
        styles = order_styles(item["order"] for item in data["curves"])
        for place, item in enumerate(data["curves"]):
            style = styles[item["order"]]
            heights = np.array([real(value) for value in item["lorenz"]])
            _curve(whole, item, style, steps, heights, place)
            _curve(depth, item, style, steps, steps - heights, place)
        whole.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        whole.set_ylabel("share of −Σ log q")
        depth.set(xlim=(0, 1), box_aspect=1)
        depth.set_ylabel("distance below uniform")
        for panel in (whole, depth):
            panel.set_xlabel("share of steps, easiest first")
        panel_letters([whole, depth])
        figure.legend(*whole.get_legend_handles_labels(), loc="outside right center", title="order (Gini)")
        n = max(item["n"] for item in data["curves"])
        text = f"Block 0 ({data['length']} steps), mean of up to {n} curves per order; dashed: uniform."
        footnote(figure, text)
    return figure


def _curve(
    panel: Axes,
    item: Mapping[str, Any],
    style: OrderStyle,
    steps: FloatArray,
    heights: FloatArray,
    place: int,
) -> None:
    spacing = max(len(steps) // 4, 1)
    panel.plot(
        steps,
        heights,
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markevery=(place % spacing, spacing),
        linewidth=1.2,
        markersize=4.0,
        label=f"{display_name(item['order'])} ({short(item['gini'], 3)})",
        markerfacecolor="white" if item["kind"] == "target-aware" else style.color,
    )


RECIPE = Recipe("Lorenz curves of self-information in block 0 (Fig. 1b)", data, draw, "score")


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

"""Kept states of the masked positions (``--states``), trace by trace, and their statistics.

``metrics.locality`` defines the statistics. Does not depend on models or tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from orderlens.analysis.traces import TRACE, trace_rows
from orderlens.metrics.locality import States, group_means, lead_of_neighbours
from orderlens.metrics.segments import FloatArray
from orderlens.store.reader import Run
from orderlens.store.schema import ENTROPY_UNITS, TOP_UNITS

RIVALS = {"2": (2, 3), "3": (3, 1 << 30)}
"""Distances that distance 1 is compared with: exactly 2, and all from 3 on."""


def iter_states(run: Run) -> Iterator[tuple[tuple[object, ...], States]]:
    """Yield each trace with kept states: its values of ``TRACE``, and the states."""
    columns = ("forward", "start", "visible", "top", "entropy")
    frame = trace_rows(run, "states", *columns).sort_values("forward", kind="stable")
    key = pd.Series(_keys(frame), index=frame.index)
    for trace, rows in frame.groupby(key, sort=False):
        text = "".join(rows["visible"]).encode()
        visible_PB = np.frombuffer(text, np.uint8).reshape(len(rows), -1) == ord("1")
        count_P = rows["top"].str.len().to_numpy()
        masked_PB = ~visible_PB & (np.cumsum(~visible_PB, axis=1) <= count_P[:, None])
        numbers = []
        for name, units in (("top", TOP_UNITS), ("entropy", ENTROPY_UNITS)):
            values_PB = np.full(visible_PB.shape, np.nan)
            values_PB[masked_PB] = np.concatenate(rows[name].to_list()) / units
            numbers.append(values_PB)
        forward_P, start_P = (rows[name].to_numpy(np.int64) for name in ("forward", "start"))
        yield trace, States(forward_P, start_P, visible_PB, numbers[0], numbers[1])


def trace_statistics(states: States) -> dict[str, float]:
    """Return the statistics of one trace: means by group of distances, leads of distance 1, by quarter."""
    distance_PB, (fall_QB, reveal_QB) = states.distance_PB, states.falls()
    out: dict[str, float] = {"n_kept": len(states.forward_P)}
    values = {"entropy": (states.entropy_PB, distance_PB), "top": (states.top_PB, distance_PB)}
    for name, (value, distance) in (values | {"fall": (fall_QB, reveal_QB)}).items():
        mean_D, count_D = group_means(value, distance)
        out |= {f"{name}_{d}": mean for d, mean in enumerate(mean_D)}
        out |= {f"n_{name}_{d}": count for d, count in enumerate(count_D)}
    for name, bounds in RIVALS.items():
        out[f"fall_lead_{name}"] = lead_of_neighbours(fall_QB, reveal_QB, *bounds)
        out[f"entropy_lead_{name}"] = -lead_of_neighbours(states.entropy_PB, distance_PB, *bounds)
    entropy_P = states.pass_entropy()
    quarter_P = np.minimum((4 * states.visible_PB.mean(axis=1)).astype(int), 3)
    for place in range(4):
        mine = entropy_P[quarter_P == place]
        out[f"quarter_{place}"] = float(mine.mean()) if len(mine) else np.nan
    return out | {"denoising_entropy": float(entropy_P.mean())}


def state_statistics(run: Run, traces: pd.DataFrame) -> pd.DataFrame:
    """Return ``trace_statistics`` of each trace with kept states, with the index of ``traces``."""
    places = dict(zip(_keys(traces), traces.index, strict=True))
    found = {places[key]: trace_statistics(states) for key, states in iter_states(run)}
    return pd.DataFrame.from_dict(found, orient="index")


def first_block_entropy(run: Run, traces: pd.DataFrame) -> dict[str, FloatArray]:
    """Return by order the mean entropy of each masked position in each pass of the first block [P, B].

    The mean is over the traces in which the position is still masked; NaN where there are none.
    """
    orders = dict(zip(_keys(traces), traces["order"].astype(str), strict=True))
    sums: dict[str, list[FloatArray]] = {}
    for key, states in iter_states(run):
        if key in orders:
            rows_PB = states.entropy_PB[states.start_P == states.start_P[0]]
            sums.setdefault(orders[key], []).append(rows_PB)
    out = {}
    for order, parts in sums.items():
        whole = np.full((len(parts), max(map(len, parts)), parts[0].shape[1]), np.nan)
        for place, rows_PB in enumerate(parts):
            whole[place, : len(rows_PB)] = rows_PB
        known = np.isfinite(whole)
        count_PB = known.sum(axis=0)
        total_PB = np.where(known, whole, 0.0).sum(axis=0)
        out[order] = np.divide(total_PB, count_PB, out=np.full(count_PB.shape, np.nan), where=count_PB > 0)
    return out


def _keys(frame: pd.DataFrame) -> list[tuple[object, ...]]:
    """Return the values of ``TRACE`` of each row; None where they are null."""
    plain = frame[TRACE].astype(object).where(frame[TRACE].notna(), None)
    return list(plain.itertuples(index=False, name=None))

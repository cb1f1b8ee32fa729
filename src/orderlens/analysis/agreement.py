"""How alike two orders reveal the same sample: Spearman of their steps in block 0 on shared positions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from orderlens.analysis.estimate import Clusters, Estimate, mean
from orderlens.analysis.frames import joined_keys
from orderlens.analysis.study import Study
from orderlens.metrics.order_shape import agreement
from orderlens.rng import keyed_generator
from orderlens.store.codec import trace_starts

MAX_SAMPLES = 1000
"""Samples compared: two paths of a block each are kept in memory, so their number is bounded."""

_KEY = ("run", "task", "sample_id", "temperature")


def agreement_matrix(study: Study, frame: pd.DataFrame) -> dict[str, dict[str, Estimate]]:
    """Return the mean agreement of every pair of orders over the samples of ``frame`` (first seeds)."""
    orders = study.orders(frame)
    paths = _block0_paths(study, _chosen(study, frame))
    out: dict[str, dict[str, Estimate]] = {order: {} for order in orders}
    for place, first in enumerate(orders):
        for second in orders[place:]:
            cell = _pair(study, paths.get(first, {}), paths.get(second, {}))
            out[first][second] = out[second][first] = cell
    return out


def _pair(study: Study, first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> Estimate:
    shared = [key for key in first if key in second]
    if not shared:
        return Estimate.undefined("no sample under both orders")
    values = [agreement(first[key], second[key]) for key in shared]
    return mean(values, Clusters(shared, study.options.resampling), "fewer than 2 shared content positions")


def _chosen(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one trace per sample and order, of at most MAX_SAMPLES samples."""
    first = frame.sort_values("seed", kind="stable").drop_duplicates([*_KEY, "order"]).sort_index()
    keys = pd.Series(joined_keys(first, _KEY), index=first.index, dtype=object)
    unique = keys.unique()
    if len(unique) > MAX_SAMPLES:
        rng = keyed_generator(study.options.resampling.seed, "agreement")
        unique = rng.choice(unique, MAX_SAMPLES, replace=False)
    return first.assign(key=keys)[keys.isin(unique)]


def _block0_paths(study: Study, chosen: pd.DataFrame) -> dict[str, dict[str, np.ndarray]]:
    """Return the content positions of block 0 in reveal order, by order and sample."""
    out: dict[str, dict[str, np.ndarray]] = {}
    wanted = dict(zip(chosen.index, zip(chosen["order"], chosen["key"], strict=True), strict=True))
    columns = [
        "sample_id",
        "task",
        "order",
        "seed",
        "temperature",
        "sample_seed",
        "step",
        "block",
        "position",
    ]
    done = 0
    for chunk in study.run.iter_traces([*columns, "is_eos", "is_special", "is_overflow"]):
        bounds = np.append(trace_starts(chunk), chunk.num_rows)
        numbers = [place for place in range(len(bounds) - 1) if done + place in wanted]
        if numbers:
            flags = [pc.fill_null(chunk[name], False) for name in ("is_eos", "is_special", "is_overflow")]
            dropped = pc.or_(pc.or_(flags[0], flags[1]), flags[2])
            keep = np.asarray(pc.equal(chunk["block"], 0)) & ~np.asarray(dropped)
            position = chunk["position"].to_numpy()
            for place in numbers:
                rows = slice(bounds[place], bounds[place + 1])
                order, key = wanted[done + place]
                out.setdefault(order, {})[key] = position[rows][keep[rows]]
        done += len(bounds) - 1
    return out

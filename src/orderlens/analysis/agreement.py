"""How alike two orders reveal the same sample: Spearman of their steps in block 0 on shared positions."""

from __future__ import annotations

import pandas as pd

from orderlens.analysis.estimate import Clusters, Estimate, mean
from orderlens.analysis.frames import joined_keys
from orderlens.analysis.picked import pick, picked_traces
from orderlens.analysis.study import Study
from orderlens.metrics.order_shape import agreement
from orderlens.metrics.segments import IntArray

MAX_SAMPLES = 500
"""Samples compared: a path of every order is kept in memory, so their number is bounded."""

_KEY = ("prompt", "temperature")
Paths = dict[str, IntArray]


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


def _pair(study: Study, first: Paths, second: Paths) -> Estimate:
    shared = [key for key in first if key in second]
    if not shared:
        return Estimate.undefined("no sample under both orders")
    values = [agreement(first[key], second[key]) for key in shared]
    return mean(values, Clusters(shared, study.options.resampling), "fewer than 2 shared content positions")


def _chosen(study: Study, frame: pd.DataFrame) -> pd.DataFrame:
    """Return one trace per sample and order, of at most MAX_SAMPLES samples."""
    first = frame.sort_values("seed", kind="stable").drop_duplicates([*_KEY, "order"]).sort_index()
    keyed = first.assign(key=joined_keys(first, _KEY))
    kept = pick(keyed["key"].tolist(), MAX_SAMPLES, study.options.resampling.seed, "agreement")
    return keyed[keyed["key"].isin(kept)]


def _block0_paths(study: Study, chosen: pd.DataFrame) -> dict[str, Paths]:
    """Return the content positions of block 0 in reveal order, by order and sample."""
    out: dict[str, Paths] = {}
    names = dict(zip(chosen.index, zip(chosen["order"], chosen["key"], strict=True), strict=True))
    for row, traces, rows in picked_traces(study.run, study.every, chosen.index, ["block", "position"]):
        keep = traces.content[rows] & (traces.columns["block"][rows] == 0)
        order, key = names[row]
        out.setdefault(order, {})[key] = traces.columns["position"][rows][keep]
    return out

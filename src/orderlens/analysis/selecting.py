"""Accuracy of choosing one order per item by a statistic of its trace.

Every selector has the same candidates: the samples of an item with a defined Var, at least two tokens and
a verdict. Ties are averaged. ``max_mean``, ``max_min`` (highest minimum of log q) and ``shortest`` are rivals
of min-V, ``random`` is the average over candidates, ``oracle`` is 1 if any candidate is correct, and
``best_fixed`` is the single order with the highest accuracy on the same items. The ``_structured`` columns
repeat everything without the random and reversed orders: if min-V beats max-V only because max-V picks the
random order, the difference disappears there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from orderlens.analysis.frames import as_frame, cells, finite_flags, graded_rows, same_kind, side_by_side
from orderlens.errors import counted
from orderlens.metrics.estimate import Clusters, Estimate, Resampling, means
from orderlens.metrics.segments import BoolArray
from orderlens.metrics.significance import agreeing
from orderlens.rules.cards import is_structured

SELECTORS = (
    "min_v",
    "max_v",
    "delta_pp",
    "max_mean",
    "max_min",
    "shortest",
    "random",
    "best_fixed",
    "oracle",
)
"""Accuracies in percent; ``delta_pp`` = min_v − max_v in percentage points."""


SCOPES = {"all orders": "", "structured orders": "_structured"}
"""Scope of a comparison and the suffix of its columns."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Every selector of one task over one set of orders.

    Attributes:
        task: the task.
        scope: which orders take part, a key of ``SCOPES``.
        accuracy: accuracy in percent by selector name.
        best_fixed_order: the best single order, None when nothing is defined.
        n_items: items with a candidate.
        n_undefined: items without one.
        why: reason when nothing is defined.
    """

    task: str
    scope: str
    accuracy: Mapping[str, Estimate]
    best_fixed_order: str | None
    n_items: int
    n_undefined: int
    why: str | None


def selectors(data: Any, resampling: Resampling | None = None) -> Any:
    """Return one row per task with the accuracy (%) of every selector, over all and over structured orders.

    Args:
        data: table with the columns task, order, item_id, correct, mean, var, n.
        resampling: bootstrap over items; intervals are in ``…_low`` and ``…_high``.
    """
    rows: dict[str, dict[str, Any]] = {}
    for found in compare_selectors(data, resampling or Resampling()):
        rows.setdefault(found.task, {"task": found.task}).update(_wide(found))
    return same_kind(data)(pd.DataFrame(list(rows.values())))


def _wide(found: Comparison) -> dict[str, Any]:
    end = SCOPES[found.scope]
    out: dict[str, Any] = {f"{name}{end}": cell.value for name, cell in found.accuracy.items()}
    for name, cell in found.accuracy.items():
        out |= {f"{name}_low{end}": cell.low, f"{name}_high{end}": cell.high}
    out |= {f"best_fixed_order{end}": found.best_fixed_order, f"n_items{end}": found.n_items}
    return out | {f"n_undefined{end}": found.n_undefined, f"why{end}": found.why}


def compare_selectors(data: Any, resampling: Resampling) -> list[Comparison]:
    """Return the comparison of every task in both scopes."""
    out = []
    for (task,), part in cells(as_frame(data), ("task",)):
        structured = part[np.array([is_structured(str(order)) for order in part["order"]], np.bool_)]
        for scope, rows in zip(SCOPES, (part, structured), strict=True):
            out.append(_comparison(str(task), scope, rows, resampling))
    return out


def _comparison(task: str, scope: str, rows: pd.DataFrame, resampling: Resampling) -> Comparison:
    graded, _ = graded_rows(rows)
    n_items, n_orders = rows["item_id"].nunique(), rows["order"].nunique()
    candidates = graded[is_candidate(graded)]
    why = "no sample with a verdict, a defined Var and at least 2 tokens" if not len(candidates) else None
    if n_orders < 2:
        why = f"{counted(n_orders, 'order')}: nothing to choose from"
    if why:
        return Comparison(
            task, scope, dict.fromkeys(SELECTORS, Estimate.undefined(why)), None, 0, n_items, why
        )
    item, items = pd.factorize(candidates["item_id"])
    best, fixed = _best_fixed(graded, items)
    columns = _per_item_scores(candidates, item, len(items)) | {"best_fixed": 100.0 * fixed}
    found = means(np.column_stack(list(columns.values())), Clusters(items, resampling))
    accuracy = dict.fromkeys(SELECTORS, Estimate.undefined("the table has no column min"))
    for name, cell in zip(columns, found, strict=True):
        accuracy[name] = cell if name == "delta_pp" else agreeing(cell, len(items), resampling.level)
    return Comparison(task, scope, accuracy, best, len(items), n_items - len(items), None)


def _per_item_scores(candidates: pd.DataFrame, item: Any, n_items: int) -> dict[str, Any]:
    """Return each selector's correctness per item in percent."""
    correct = candidates["correct"].to_numpy(np.float64)
    picks = pick_weights(candidates, item)
    out = {name: 100.0 * _per_item(weight * correct, item, n_items) for name, weight in picks.items()}
    oracle = np.zeros(n_items)
    np.maximum.at(oracle, item, correct)
    return out | {"delta_pp": out["min_v"] - out["max_v"], "oracle": 100.0 * oracle}


def is_candidate(rows: pd.DataFrame) -> BoolArray:
    """Return which graded samples a selector may choose: defined mean and Var, and at least two tokens."""
    return finite_flags(rows, ["mean", "var"]) & (rows["n"].to_numpy(np.float64, na_value=np.nan) >= 2)


def pick_weights(candidates: pd.DataFrame, item: Any) -> dict[str, Any]:
    """Return each selector's weight on each candidate; the weights of an item sum to 1."""
    var, mean = candidates["var"].to_numpy(np.float64), candidates["mean"].to_numpy(np.float64)
    length = candidates["n"].to_numpy(np.float64)
    scores = {"min_v": -var, "max_v": var, "max_mean": mean, "shortest": -length, "random": 0.0 * var}
    if "min" in candidates.columns:
        scores["max_min"] = candidates["min"].fillna(-math.inf).to_numpy(np.float64)
    n_items = int(item.max()) + 1
    weights = {}
    for name, score in scores.items():
        top = np.full(n_items, -math.inf)
        np.maximum.at(top, item, score)
        tied = (score == top[item]).astype(np.float64)
        weights[name] = tied / _per_item(tied, item, n_items)[item]
    return weights


def _per_item(values: Any, item: Any, n_items: int) -> Any:
    return np.bincount(item, weights=values, minlength=n_items)


def _best_fixed(graded: pd.DataFrame, items: Any) -> tuple[str, Any]:
    """Return the order with the highest accuracy on ``items`` and its correctness per item."""
    wide = side_by_side(graded, "correct", of="item_id").reindex(items)
    best = str(wide.mean().idxmax())
    return best, wide[best].to_numpy(np.float64)

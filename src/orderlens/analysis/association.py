"""Association of trace statistics and correctness. Tables of graded samples in, tables out.

One cell is one (task, order): both are held fixed, so the association cannot come from comparing orders.
Every statistic of Var is accompanied by the same statistic of the rival predictors and by tests that control
for them. Does not depend on runs or models.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import scipy

from orderlens.analysis.frames import (
    RIVALS,
    as_frame,
    cells,
    finite_rows,
    graded_rows,
    same_kind,
    side_by_side,
)
from orderlens.metrics.estimate import (
    Clusters,
    Estimate,
    Resampling,
    difference_of_means,
    function_of_sums,
    means,
    two_groups,
)
from orderlens.metrics.order_shape import rank_correlation
from orderlens.metrics.segments import BoolArray, FloatArray, divide
from orderlens.metrics.significance import (
    BinaryRanks,
    Nested,
    adjust,
    agreeing,
    delong,
    mann_whitney_less,
    mcnemar,
    nested_logistic,
    partial_spearman,
)

DIRECTIONS = {
    "var": -1,
    "mean": 1,
    "min": 1,
    "bottleneck_rate": -1,
    "jensen": -1,
    "n": -1,
    "mean_entropy": -1,
    "self_certainty": 1,
    "lowest_group": 1,
    "lowest_decile": 1,
    "denoising_entropy": -1,
}
"""Sign that turns a predictor into "larger = more likely correct"; for length, shorter counts as better."""

QUADRANTS = ("hi_mean_lo_var", "hi_mean_hi_var", "lo_mean_lo_var", "lo_mean_hi_var")


def within_cell(data: Any, resampling: Resampling | None = None) -> Any:
    """Return one row per (task, order): Var of correct against incorrect samples (the paper's Table 3).

    Args:
        data: table with the columns task, order, item_id, correct, mean, var, n (and ``min``).
        resampling: bootstrap over items for ``gap_low/high`` and ``rho_low/high``.

    Returns:
        A table of the same library with n_correct, n_incorrect, var_correct, var_incorrect,
        gap = var_incorrect − var_correct, mw_p (one-sided Mann–Whitney), rho (Spearman of Var and
        correctness), their intervals, Holm and BH adjusted p, the same rho of the rival predictors, the
        partial rho of Var given mean and length, n_undefined, and ``why`` where something is undefined
        (``gap_why`` and ``rho_why`` where only the interval is).
        p is undefined in a cell with repeated items, because the tests assume independent answers.
    """
    chosen = resampling or Resampling()
    rows = [_within(key, rows, chosen) for key, rows in cells(as_frame(data), ("task", "order"))]
    table = pd.DataFrame(rows)
    if len(table):
        table["mw_p_holm"] = adjust(table["mw_p"], "holm")
        table["mw_p_bh"] = adjust(table["mw_p"], "bh")
    return same_kind(data)(table)


def _within(key: tuple[Any, ...], rows: pd.DataFrame, resampling: Resampling) -> dict[str, Any]:
    graded, ungraded = graded_rows(rows)
    known = finite_rows(graded, ["var"])
    lost = ungraded + len(graded) - len(known)
    yes = known["correct"].to_numpy(np.float64) > 0
    var = known["var"].to_numpy(np.float64)
    clusters = Clusters(known["item_id"], resampling)
    gap, var_yes, var_no = _gap(var, yes, clusters)
    test = mann_whitney_less(var[yes], var[~yes])
    repeats = _repeats(known)
    rho = BinaryRanks.of(var, yes).estimates(clusters)[0] if len(var) else Estimate.undefined("")
    out = {
        "task": key[0],
        "order": key[1],
        "n_correct": int(yes.sum()),
        "n_incorrect": int((~yes).sum()),
        "var_correct": var_yes.value,
        "var_incorrect": var_no.value,
        "gap": gap.value,
        "mw_p": math.nan if repeats else test.p,
        "rho": rho.value,
        "gap_low": gap.low,
        "gap_high": gap.high,
        "rho_low": rho.low,
        "rho_high": rho.high,
        "mw_u": test.statistic,
        "gap_why": gap.why,
        "rho_why": rho.why,
    }
    partial = _partial(known)
    reasons = {
        _why(yes, len(rows), lost): True,
        REPEATED: repeats,
        "Var is constant": len(np.unique(var)) == 1,
        "too few samples, or mean and length determine Var": math.isnan(partial["partial_rho"]),
    }
    why = next((reason for reason, holds in reasons.items() if reason and holds), None)
    return {**out, **_rivals(known), **partial, "n_undefined": lost, "why": why}


def _gap(var: FloatArray, yes: BoolArray, clusters: Clusters) -> tuple[Estimate, Estimate, Estimate]:
    sums = clusters.sums(np.column_stack([var * ~yes, ~yes, var * yes, yes]).astype(np.float64))

    def statistics(total: FloatArray) -> FloatArray:
        no, good = divide(total[:, 0], total[:, 1]), divide(total[:, 2], total[:, 3])
        return np.stack([good, no], axis=1)

    if not len(var):
        return (Estimate.undefined(""),) * 3
    good, no = function_of_sums(clusters, sums, statistics, len(var))
    return difference_of_means(var, ~yes, clusters), good, no


def _rivals(rows: pd.DataFrame) -> dict[str, float]:
    names = {name: name for name in DIRECTIONS if name != "var" and name in rows.columns}
    names = names | ({"n": "length"} if "n" in names else {})  # rho_n is the number of samples of rho
    return {f"rho_{ours}": _rho(rows[name], rows["correct"]) for name, ours in names.items()}


def _rho(values: pd.Series, correct: pd.Series) -> float:
    column = values.to_numpy(np.float64)
    known = np.isfinite(column)
    return rank_correlation(column[known], correct.to_numpy(np.float64)[known])


def _partial(rows: pd.DataFrame) -> dict[str, float]:
    known = finite_rows(rows, ["mean", "n"])
    if len(known) < 4:
        return {"partial_rho": math.nan, "partial_p": math.nan}
    result = partial_spearman(known["var"], known["correct"], [known["mean"], known["n"]])
    return {"partial_rho": result.statistic, "partial_p": math.nan if _repeats(known) else result.p}


REPEATED = "items repeat in this cell, but the test assumes independent answers"


def _repeats(rows: pd.DataFrame) -> bool:
    """Whether a cell holds an item more than once; other seeds do not make new items."""
    return bool(rows["item_id"].duplicated().any())


def _why(yes: BoolArray, total: int, lost: int) -> str | None:
    if not len(yes):
        return f"no graded sample with a defined Var ({total} rows, {lost} undefined)"
    if yes.all():
        return f"all {len(yes)} samples are correct"
    if not yes.any():
        return f"all {len(yes)} samples are incorrect"
    return None


def quadrants(data: Any, resampling: Resampling | None = None) -> Any:
    """Return one row per task: accuracy (%) after median splits of mean and Var (the paper's Table 4).

    Orders are pooled; "lo" means ≤ the median. Sizes of all four cells are in ``n_…``, intervals (items
    resampled, the split held fixed) in ``…_low`` and ``…_high``. ``low_var_never_worse`` says whether
    accuracy at lower Var is at least that at higher Var in both halves of the mean.
    """
    chosen = resampling or Resampling()
    rows = [_quadrants(key, rows, chosen) for key, rows in cells(as_frame(data), ("task",))]
    return same_kind(data)(pd.DataFrame(rows))


def _quadrants(key: tuple[Any, ...], rows: pd.DataFrame, resampling: Resampling) -> dict[str, Any]:
    graded, ungraded = graded_rows(rows)
    known = finite_rows(graded, ["mean", "var"])
    lost = ungraded + len(graded) - len(known)
    out: dict[str, Any] = {"task": key[0]}
    inside = quadrant_flags(known["mean"].to_numpy(np.float64), known["var"].to_numpy(np.float64))
    correct = known["correct"].to_numpy(np.float64)[:, None]
    scores = np.where(inside, 100.0 * correct, np.nan)
    found = (
        means(scores, Clusters(known["item_id"], resampling)) if len(known) else [Estimate.undefined("")] * 4
    )
    for place, cell in enumerate(found):
        found[place] = agreeing(cell, known["item_id"][inside[:, place]].nunique(), resampling.level)
    for name, cell in zip(QUADRANTS, found, strict=True):
        out[name] = cell.value
    for name, cell in zip(QUADRANTS, found, strict=True):
        out |= {f"n_{name}": cell.n, f"{name}_low": cell.low, f"{name}_high": cell.high}
    values = [out[name] for name in QUADRANTS]
    full = not any(math.isnan(value) for value in values)
    out["low_var_never_worse"] = bool(values[0] >= values[1] and values[2] >= values[3]) if full else None
    empty = [name for name in QUADRANTS if math.isnan(out[name])]
    out["n_undefined"] = lost
    out["why"] = f"no sample in {', '.join(empty)}" if empty else None
    return out


def quadrant_flags(mean: FloatArray, var: FloatArray) -> BoolArray:
    """Return membership in the four quadrants [N, 4], in the order of ``QUADRANTS``."""
    if not len(mean):
        return np.zeros((0, 4), np.bool_)
    low_mean, low_var = mean <= np.median(mean), var <= np.median(var)
    return np.column_stack(
        [~low_mean & low_var, ~low_mean & ~low_var, low_mean & low_var, low_mean & ~low_var]
    )


def controls(data: Any, resampling: Resampling | None = None) -> Any:
    """Return one row per (task, order): the association of Var with correctness, given mean and length.

    Partial Spearman; the nested logistic regression (correct ~ mean + mean² + length, then + Var, all as
    normal scores) with its coefficient and likelihood-ratio p (Wald's, clustered by item, when items repeat
    in a cell: the other p are then undefined); AUROC of every predictor present (DeLong
    interval; bootstrap over items when items repeat); Var's AUROC minus each rival's with its p; Holm and BH
    over cells. A row with order ``(all, order held fixed)`` per task pools the orders with
    fixed effects and errors clustered by item.
    """
    chosen = resampling or Resampling()
    frame = as_frame(data)
    rows = [_control(key, part, chosen) for key, part in cells(frame, ("task", "order"))]
    table = pd.DataFrame(rows)
    for name in ("partial_p", "lr_p", "auroc_var_minus_mean_p"):
        if len(table):
            table[f"{name}_holm"] = adjust(table[name], "holm")
            table[f"{name}_bh"] = adjust(table[name], "bh")
    pooled = [
        _pooled(key, part, chosen) for key, part in cells(frame, ("task",)) if part["order"].nunique() > 1
    ]
    return same_kind(data)(pd.concat([table, pd.DataFrame(pooled)], ignore_index=True) if pooled else table)


POOLED = "(all, order held fixed)"


def _control(key: tuple[Any, ...], rows: pd.DataFrame, resampling: Resampling) -> dict[str, Any]:
    graded, ungraded = graded_rows(rows)
    names = [name for name in DIRECTIONS if name in graded.columns and name not in RIVALS]
    known = finite_rows(graded, names)
    rivals = {name: without(known, name) for name in RIVALS if name in known and known[name].notna().any()}
    names += [name for name, missing in rivals.items() if not missing]
    lost = ungraded + len(graded) - len(known)
    yes = known["correct"].to_numpy(np.float64) > 0
    out: dict[str, Any] = {"task": key[0], "order": key[1], "n": len(known), **_partial(known)}
    items = pd.factorize(known["item_id"])[0] if _repeats(known) else None
    nested = nested_logistic(
        yes, normal_scores(known["var"]), _base(known), clusters=items, level=resampling.level
    )
    out |= _nested_columns(nested)
    out |= _aurocs(known, names, yes, resampling)
    for name, missing in rivals.items():
        if missing:
            undefined = (f"auroc_{name}", f"auroc_var_minus_{name}", f"auroc_var_minus_{name}_p")
            out |= {**dict.fromkeys(undefined, math.nan), f"auroc_{name}_why": missing}
    class_why, repeated = _why(yes, len(rows), lost), None if items is None else REPEATED
    out["leads_why"] = class_why or repeated or out["auroc_var_why"]
    why = class_why or nested.why or repeated or out["auroc_var_why"]
    return {**out, "n_undefined": lost, "why": why}


def without(rows: pd.DataFrame, name: str) -> str | None:
    """Return why a statistic cannot predict these answers: some have none; None if all have it."""
    count = len(rows) - len(finite_rows(rows, [name]))
    return f"{count} of {len(rows)} answers have no {name}" if count else None


def _base(rows: pd.DataFrame) -> list[FloatArray]:
    mean = normal_scores(rows["mean"])
    return [mean, mean**2, normal_scores(rows["n"])]


def normal_scores(values: pd.Series) -> FloatArray:
    """Return Φ⁻¹((rank − ½)/N), so that tests do not depend on the scale of skewed predictors.

    In raw units, a logistic model that is linear in mean and Var finds an effect of Var whenever the true
    dependence on the mean is nonlinear.
    """
    ranks = scipy.stats.rankdata(values.astype(float))
    return np.asarray(scipy.special.ndtri((ranks - 0.5) / max(len(ranks), 1)), np.float64)


def _aurocs(rows: pd.DataFrame, names: list[str], yes: BoolArray, resampling: Resampling) -> dict[str, Any]:
    scores = np.stack([DIRECTIONS[name] * rows[name].to_numpy(np.float64) for name in names])
    result = delong(scores, yes)
    repeated = _repeats(rows)
    clusters = Clusters(rows["item_id"], resampling)
    out: dict[str, Any] = {}
    for place, name in enumerate(names):
        cell = result.estimate(place, len(yes), resampling.level)
        if repeated:
            cell = BinaryRanks.of(scores[place], yes).estimates(clusters)[1]
        cell = two_groups(cell, yes, clusters)
        out |= {f"auroc_{name}": cell.value, f"auroc_{name}_low": cell.low, f"auroc_{name}_high": cell.high}
        out[f"auroc_{name}_why"] = cell.why
    for place, name in enumerate(names):
        if name != "var":
            difference, p = result.compare(names.index("var"), place)
            out[f"auroc_var_minus_{name}"] = difference
            out[f"auroc_var_minus_{name}_p"] = math.nan if repeated or out["auroc_var_why"] else p
    return out


def _pooled(key: tuple[Any, ...], rows: pd.DataFrame, resampling: Resampling) -> dict[str, Any]:
    graded, ungraded = graded_rows(rows)
    known = finite_rows(graded, ["var", "mean", "n"])
    orders = pd.get_dummies(known["order"], drop_first=True).to_numpy(np.float64)
    items = pd.factorize(known["item_id"])[0]
    nested = nested_logistic(
        known["correct"],
        normal_scores(known["var"]),
        [*_base(known), *orders.T],
        clusters=items,
        level=resampling.level,
    )
    return {
        "task": key[0],
        "order": POOLED,
        "n": len(known),
        **_nested_columns(nested),
        "n_undefined": ungraded + len(graded) - len(known),
        "why": nested.why,
    }


def _nested_columns(found: Nested) -> dict[str, Any]:
    return {
        "var_coefficient": found.coefficient,
        "var_coefficient_low": found.low,
        "var_coefficient_high": found.high,
        "lr": found.statistic,
        "lr_p": found.p,
        "var_coefficient_why": found.why,
    }


def order_differences(data: Any) -> Any:
    """Return one row per task and pair of orders: paired accuracies with the exact McNemar test.

    Items that one of the two did not answer, or answered several times (seeds), are averaged to a majority;
    an exact tie counts as incorrect. Holm runs over all pairs of the table.
    """
    frame, _ = graded_rows(as_frame(data, ("task", "order", "item_id", "correct")))
    rows = []
    for (task,), part in cells(frame, ("task",)):
        wide = side_by_side(part, "correct", of="item_id")
        orders = list(wide.columns)
        for place, first in enumerate(orders):
            for second in orders[place + 1 :]:
                both = wide[[first, second]].dropna() > 0.5
                test = mcnemar(both[first], both[second])
                difference = 100.0 * (test.only_first - test.only_second) / test.n if test.n else math.nan
                rows.append(
                    {"task": task, "first": first, "second": second, "n": test.n, "difference_pp": difference}
                    | {"only_first": test.only_first, "only_second": test.only_second, "mcnemar_p": test.p}
                )
    table = pd.DataFrame(rows)
    if len(table):
        table["mcnemar_p_holm"] = adjust(table["mcnemar_p"], "holm")
    return same_kind(data)(table)
